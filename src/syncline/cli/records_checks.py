"""Records of a data folder, or of a running router, checked and mended for `verify` and `repair`.

Facts about them are those that a router tells of its own, so both are printed alike.
"""

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from syncline.cli.folders import whole_path
from syncline.cli.output import Bar, Output
from syncline.cli.router_client import RouterClient
from syncline.errors import CorruptionError, RefusedError, StorageError
from syncline.server.smp.examining import report_facts
from syncline.storage.files import DiskFiles
from syncline.storage.folder import LOCK_NAME
from syncline.storage.overlay import OverlayFiles
from syncline.storage.records.base import RecordCounts, RecordsReport
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_reports import count_records, examine_steps
from syncline.storage.records.sqlite_salvage import Salvage, salvage

_Result = TypeVar("_Result")

# What counters count, in the order of `RecordCounts`.
_COUNTED = {
    "queue_count": "queues",
    "notifier_count": "notifiers",
    "link_count": "links",
    "association_count": "associations",
    "notifier_association_count": "notifier associations",
    "service_count": "services",
    "deleted_count": "deleted queues",
}


@contextmanager
def held(folder: Path, *, to_change: bool) -> Generator[None]:
    """Nobody works on the folder meanwhile. Only to look, no lock is made where there is none."""
    files = DiskFiles() if to_change else OverlayFiles(DiskFiles())
    lock = files.lock(f"{whole_path(folder)}/{LOCK_NAME}")
    try:
        yield
    finally:
        lock.release()


def has_records(folder: Path) -> bool:
    return (folder / FILE_NAME).exists()


def examine_records(output: Output, folder: Path) -> RecordsReport | None:
    """None if the folder has no records."""
    if not has_records(folder):
        return None
    path = whole_path(folder)
    try:
        with (
            held(folder, to_change=False),
            output.count_progress("checking records", None) as bar,
        ):
            return _run(bar, examine_steps(path, f"{path}/{FILE_NAME}", DiskFiles()))
    except CorruptionError as error:
        raise StorageError(
            f"{error.file} is damaged ({error.reason}) and nothing can be read of it; "
            "make a data folder of a backup with `syncline restore`"
        ) from error


def count_left_records(folder: Path) -> dict[str, int | None] | None:
    """How many queues and services there are records of; None without any.

    Numbers are None where they cannot be read. The caller sees to it that nobody works on them.
    """
    if not has_records(folder):
        return None
    path = whole_path(folder)
    try:
        counts = count_records(path, f"{path}/{FILE_NAME}", DiskFiles())
    except StorageError:
        return {"queue_count": None, "service_count": None}
    if counts == RecordCounts():
        return None
    return {"queue_count": counts.queue_count, "service_count": counts.service_count}


def repair_records(output: Output, folder: Path) -> RecordsReport | None:
    """Set digests and counters right where nothing else is wrong."""
    if not has_records(folder):
        return None
    with (
        held(folder, to_change=True),
        closing(SqliteRecords.open(whole_path(folder), DiskFiles())) as records,
        output.count_progress("repairing records", None) as bar,
    ):
        return _run(bar, records.check(repairs=True))


def salvage_records(output: Output, folder: Path) -> Salvage:
    """Whoever calls this has a copy of the folder."""
    with (
        held(folder, to_change=True),
        output.count_progress("saving records", None) as bar,
    ):
        return _run(bar, salvage(whole_path(folder), DiskFiles()))


def _run(bar: Bar, steps: Generator[int, None, _Result]) -> _Result:
    while True:
        try:
            bar.advance(next(steps))
        except StopIteration as end:
            result: _Result = end.value
            return result


def check_router(output: Output, client: RouterClient, *, repairs: bool) -> dict[str, Any]:
    """The router checks its records while it serves. Raises RefusedError, LinkLostError."""
    query = "?repair=true" if repairs else ""
    read_count = 0
    with output.count_progress("checking records", None) as bar:
        for line in client.post_lines(f"/api/smp/verify{query}", {}):
            if "error" in line:
                raise RefusedError(str(line["error"]))
            bar.advance(line["read_ids"] - read_count)
            read_count = line["read_ids"]
            if line.pop("done", False):
                return line
    raise RefusedError("the router ended the check early; try again")


def facts_of(report: RecordsReport | None) -> dict[str, object] | None:
    return None if report is None else report_facts(report)


def print_records(output: Output, facts: Mapping[str, Any] | None) -> None:
    """For people."""
    if facts is None:
        return
    found = facts["found_counts"]
    if found is not None:
        output.facts("records", {name: found[key] for key, name in _COUNTED.items()})
    print_wrong_records(output, facts)
    if facts["repaired"]:
        output.line("digests and counters of the records were set right", style="green")
    elif facts["damage_count"]:
        output.line("`syncline repair` keeps what is readable of the records", style="red")
    elif not facts["whole"]:
        output.line("--repair sets digests and counters of the records right", style="red")


def print_wrong_records(output: Output, facts: Mapping[str, Any] | None) -> None:
    """What is wrong, line by line; or that nothing is."""
    if facts is None:
        return
    if facts["whole"]:
        output.line("all digests and counters of the records are right", style="green")
        return
    for text in facts["damage"]:
        output.line(f"records are damaged: {text}", style="red")
    if facts["damage_count"] > len(facts["damage"]):
        output.line(f"… and in {facts['damage_count'] - len(facts['damage'])} more places")
    kept, found = facts["kept_counts"], facts["found_counts"]
    if kept is not None and found is not None:
        for key, name in _COUNTED.items():
            if kept[key] != found[key]:
                output.line(f"there are {found[key]} {name}, and the counter says {kept[key]}")
    for each in facts["mismatches"]:
        output.line(_mismatch_text(each))
    if facts["mismatch_count"] > len(facts["mismatches"]):
        output.line(f"… and {facts['mismatch_count'] - len(facts['mismatches'])} more digests")


def _mismatch_text(facts: Mapping[str, Any]) -> str:
    kept, found = facts["kept"], facts["found"]
    who = f"the digest of {facts['role']} service {facts['service']}"
    if kept is None:
        return f"{who} is missing; its set has {found['count']} ids"
    wrong = [name for name in kept if kept[name] != found[name]]
    if "count" in wrong:
        return f"{who} says {kept['count']} ids, and its set has {found['count']}"
    return f"{who} is not that of its {found['count']} ids ({', '.join(wrong)})"


def salvage_facts(found: Salvage) -> dict[str, object]:
    return asdict(found)


def print_salvage(output: Output, found: Salvage) -> None:
    kept, saved = found.kept_counts, found.saved_counts
    for key, name in _COUNTED.items():
        before = None if kept is None else getattr(kept, key)
        line = f"saved {getattr(saved, key)} {name}"
        output.line(line if before is None else f"{line} of {before}")
    lost = {
        "rows made no sense": found.senseless_count,
        "queues lost their link": found.lost_link_count,
        "queues lost their notifier": found.lost_notifier_count,
        "associations went with their services": found.lost_association_count,
    }
    for text, count in lost.items():
        if count:
            output.line(f"{count} {text}")
    if found.has_given_up:
        output.line("too much is damaged: some that could be read may be lost as well")
