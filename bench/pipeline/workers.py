"""Memory of the Python workers of Spark: the most that each of them ever had."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.support.processes import family

# Told to a process, it starts to count its peak anew.
_RESET_PEAK = "5"


class WorkerMemory:
    def forget(self) -> None:
        """Peaks count from here on."""
        for pid in _workers():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def most_bytes(self) -> int:
        """Of the worker that had most; resident, with what it shares with others."""
        return max((_peak_bytes(pid) for pid in _workers()), default=0)


def _workers() -> Iterator[int]:
    for pid in family(os.getpid()):
        with suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
