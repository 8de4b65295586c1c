"""Memory of a server: the proportional set of its process and of all that it started."""

from pathlib import Path

from bench.support.processes import family


def memory_bytes(pid: int) -> int:
    """Shared pages count by their share, so a forked child does not count twice."""
    return sum(_proportional_bytes(each) for each in family(pid))


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
