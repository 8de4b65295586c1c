"""Starts writers, stops them at any moment, and judges what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from traceback import format_exc
from types import TracebackType
from typing import Self

from syncline.storage.base import Store, StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.testing.clock import START_MS
from syncline.testing.observation import observe
from syncline.testing.oracle import Violation
from syncline.values.ids import StreamId
from tests.crash.reports import PatientOracle, finished_count, lines_of, tell
from tests.crash.subjects import open_subject
from tests.crash.writer import HOUR_MS, Work

PROJECT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
_VISITOR = StreamId(b"a visitor after a crash.")
_POLL_SECONDS = 0.002
# A writer is stopped up to so long after the batch that is waited for: that is several batches.
_DELAY_SECONDS_MAX = 0.03
# Some are stopped while they open the store.
_OPENING_SHARE = 0.15


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SYNCLINE_")}
    path = f"{PROJECT}{os.pathsep}{PROJECT / 'src'}"
    return kept | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def patient_oracle(kind: str) -> PatientOracle:
    """The journal counts its streams in the course of its upkeep."""
    return PatientOracle(expects_count=kind != "journal")


class WriterProcess:
    """One writer, in a process and a group of processes of its own."""

    def __init__(self, nursery: "Nursery", work: Work, order: dict[str, object]) -> None:
        self._nursery = nursery
        self.report = Path(work.report)
        self.process_id = nursery.ask(order | {"work": asdict(work)})["process_id"]
        self.code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def wait_for_a_moment(self, random: Random, batch_count_max: int) -> None:
        """Return somewhere in the middle of its work."""
        if random.random() < _OPENING_SHARE:
            self._wait_for(lambda: bool(lines_of(self.report)))
        else:
            batch_count = random.randint(1, batch_count_max)
            self._wait_for(lambda: finished_count(self.report) >= batch_count)
        time.sleep(random.uniform(0, _DELAY_SECONDS_MAX))

    def kill(self) -> None:
        """End it at once. Its helpers, if it has any, live on for a moment as orphans."""
        if self.code is None:
            # Nobody else gets its number before it is waited for.
            os.kill(self.process_id, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Its exit code."""
        if self.code is None:
            self.code = self._nursery.ask({"ended": self.process_id})["code"]
        return self.code

    @property
    def errors(self) -> str:
        return Path(f"{self.report}.stderr").read_text(errors="replace")

    def _wait_for(self, is_reached: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_reached():
            assert time.monotonic() < end, f"the writer makes no progress: {self.errors}"
            time.sleep(_POLL_SECONDS)


class Nursery:
    """The program that forks writers, started under another one if need be."""

    def __init__(self, *prefix: str) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.crash.writer"],
            cwd=PROJECT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def start(self, work: Work, **order: object) -> WriterProcess:
        Path(work.report).unlink(missing_ok=True)
        return WriterProcess(self, work, order)

    def ask(self, order: dict[str, object]) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program that forks writers has ended"
        answer: dict[str, int] = json.loads(line)
        return answer


def check_folder(
    work: Work, oracle: PatientOracle, heard_bytes: int | None = None
) -> list[Violation]:
    """Open what a writer left, and say what is wrong with it; the oracle goes on from there.

    Acknowledgements behind the first `heard_bytes` of the report reached nobody.
    """
    tell(oracle, lines_of(Path(work.report), heard_bytes))
    try:
        store = _open(work)
        seen = observe(store)
        found = oracle.violations(seen)
        oracle.adopt(seen)
        store.close()
        store = _open(work)
        again = observe(store)
        if (again.streams, again.damage) != (seen.streams, seen.damage):
            found += oracle.violations(again)
            found.append(Violation("changed", None, "opened twice, it shows two things"))
        _work_on(store)
        store.close()
    except Exception:  # noqa: BLE001 whatever keeps a store from opening is what we look for
        return [Violation("closed", None, format_exc(limit=-6))]
    return found


def _work_on(store: Store) -> None:
    """The store takes new work; afterwards it is as it was."""
    payload = b"after the crash"
    store.create(_VISITOR, StreamKind.QUEUE, 0, START_MS)
    assert store.append(_VISITOR, payload, START_MS) == 1
    commit(store)
    assert [entry.payload for entry in store.read(_VISITOR, 1, 10, 1_000)] == [payload]
    store.delete(_VISITOR)
    commit(store)


def _open(work: Work) -> Store:
    now_ms = START_MS + (work.round_number + 1) * HOUR_MS
    return open_subject(work.kind, DiskFiles(), work.folder, seed=work.seed, now_ms=now_ms)
