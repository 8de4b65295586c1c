"""A router that notes where its CPU time goes, as it runs, and nothing else differs.

Every so often of its CPU time, its own and that of the system for it, the function is noted that
runs just then. What waits for nothing but the disk or a peer takes no CPU, and is not seen. Notes
are taken from the first signal to the second, so that starting and connecting do not count.

    python -m bench.queues.profiled FILE serve --json
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from syncline.cli.main import main

BEGIN, END = signal.SIGUSR1, signal.SIGUSR2
_STEP_SECONDS = 0.001

# What a function belongs to, by its module; the first that fits counts. What is in none, as
# libraries are, belongs to whoever called it.
PARTS = {
    "syncline.wire.smp.authorizations": "signatures",
    "syncline.wire.smp.chains": "blocks and bodies",
    "syncline.wire.smp.boxes": "blocks and bodies",
    "syncline.wire.smp.bodies": "blocks and bodies",
    "syncline.server.smp.openssl": "TLS",
    "syncline.wire.": "reading and writing commands",
    "syncline.storage.": "store",
    "syncline.server.committer": "committing",
    "syncline.server.batch_thread": "committing",
    "syncline.server.events": "events",
    "syncline.server.smp.": "carrying out commands",
    "syncline.core.": "carrying out commands",
    "syncline.": "all else",
}
CRYPTOGRAPHY = ("signatures", "blocks and bodies", "TLS")
# What primitives are for is known by who calls them; what starts the loop is below everything.
_NOBODYS = ("syncline.wire.smp.sodium", "syncline.wire.smp.hsalsa20", "syncline.cli.")
_LOOP = "event loop"


class Profile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts: Counter[str] = Counter()
        signal.signal(signal.SIGPROF, self._note)
        signal.signal(BEGIN, self._begin)
        signal.signal(END, self._end)
        # Calls of the system go on where they were.
        signal.siginterrupt(signal.SIGPROF, False)

    def _begin(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, _STEP_SECONDS, _STEP_SECONDS)

    def _end(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._path.write_text(json.dumps(self._counts))

    def _note(self, _: int, frame: FrameType | None) -> None:
        self._counts[part_of(frame)] += 1


def part_of(frame: FrameType | None) -> str:
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if not module.startswith(_NOBODYS):
            for place, part in PARTS.items():
                if module.startswith(place):
                    return part
        frame = frame.f_back
    return _LOOP


if __name__ == "__main__":
    Profile(Path(sys.argv.pop(1)))
    main()
