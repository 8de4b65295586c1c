"""Memory of a server: the proportional set of its process, alone or with all that it started."""

from pathlib import Path

from bench.support.processes import family


def memory_bytes(pid: int) -> int:
    """Shared pages count by their share, so a forked child does not count twice."""
    return sum(process_memory_bytes(each) for each in family(pid))


def process_memory_bytes(pid: int) -> int:
    """Of the process alone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
