"""`inspect`, `tail` and `verify`: they look, and leave the folder as it is."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from syncline.cli.document_folders import (
    StreamCounts,
    count_stream,
    listed_facts,
    print_listed,
    read_documents,
)
from syncline.cli.folders import DEFAULT_FOLDER, FolderArgument, format_of, looked_at, whole_path
from syncline.cli.output import JsonFlag, Output
from syncline.cli.records_checks import (
    check_router,
    examine_records,
    facts_of,
    print_records,
    repair_records,
)
from syncline.cli.router_client import RouterClient, UrlOption
from syncline.cli.tailing import Printed, read_folder, read_router
from syncline.errors import CorruptionError, StorageError
from syncline.server.health import damage_facts
from syncline.storage.base import Damage, Store, StreamKind, run_jobs
from syncline.storage.copies import (
    MANIFEST_NAME,
    check_no_backup,
    compare_copy,
    folder_bytes,
    read_manifest,
)
from syncline.storage.files import DiskFiles
from syncline.storage.inspection import Findings, read_everything, report, with_unreadable
from syncline.storage.life import Life, log_id, read_lives
from syncline.storage.stored_documents import StoredDocument
from syncline.values.ids import StreamId

EXIT_DAMAGED = 1

_PREVIEW_BYTES = 200
# The store knows how many streams it has, not of which kind: each is looked at for that.
_COUNTED_UNASKED_MAX = 10_000

_Found = TypeVar("_Found")


def inspect(
    folder: FolderArgument = DEFAULT_FOLDER,
    queues: Annotated[int, typer.Option(help="How many queues to list.", min=0)] = 0,
    documents: Annotated[
        bool, typer.Option("--documents", help="List all documents; this goes through everything.")
    ] = False,
    is_json: JsonFlag = False,
) -> None:
    """Say what is in a data folder: queues, documents, files, bytes, damage."""
    found = format_of(folder)
    output = Output(is_json=is_json)
    with looked_at(folder) as store:
        if not store.stats().is_counted:
            run_jobs(store)
        kept, counts = _documents(output, store, is_wanted=documents)
        listed, unreadable = _queues(store, queues)
        # Last: what the walk has met is part of it.
        about = report(found.kind, store)
    met = unreadable if counts is None else counts.unreadable
    head: dict[str, object] = {
        "folder": whole_path(folder),
        "kind": found.kind,
        "format": found.version,
        "store_id": found.store_id.hex(),
    }
    lives, damaged_life = _read_lives(folder)
    if lives:
        head |= {"log_id": log_id(found.store_id, lives).hex(), "restores": len(lives)}
    about = replace(about, damage=(*with_unreadable(about.damage, met), *damaged_life))
    damage = [damage_facts(each) for each in about.damage]
    if is_json:
        output.json(
            head
            | {"stats": asdict(about.stats), "details": about.details}
            | {"counts": None if counts is None else counts.facts()}
            | {"damage": damage, "queues": listed}
            | ({"documents": [listed_facts(each) for each in kept]} if documents else {})
        )
        return
    stats = about.stats
    output.facts(
        "data folder",
        head
        | _count_facts(stats.stream_count, counts)
        | {"files": stats.file_count, "bytes": stats.disk_bytes}
        | dict(about.details),
    )
    if queues:
        columns = ["queue", "first", "next", "unread", "quota", "is_blocked"]
        rows = [[facts[column] for column in columns] for facts in listed]
        output.table("queues", columns, rows)
    if documents:
        print_listed(output, kept)
    print_damage(output, about.damage)


def _first(found: Iterator[_Found], count: int | None) -> Iterator[_Found]:
    """So many of them, all if None. More than can be counted to are all as well."""
    return islice(found, None if count is None else min(count, sys.maxsize))


def _documents(
    output: Output, store: Store, *, is_wanted: bool
) -> tuple[list[StoredDocument], StreamCounts | None]:
    """Documents if they are wanted, and how many of each there are if that is soon known."""
    if is_wanted:
        return read_documents(output, store)
    if store.stats().stream_count > _COUNTED_UNASKED_MAX:
        return [], None
    counts = StreamCounts()
    for stream in store.streams():
        count_stream(store, stream, counts)
    return [], counts


def _count_facts(stream_count: int, counts: StreamCounts | None) -> dict[str, object]:
    if counts is None:
        return {"queues and documents": f"{stream_count} (--documents counts them apart)"}
    facts: dict[str, object] = {"queues": counts.queue_count, "documents": counts.document_count}
    return facts | ({"unreadable": len(counts.unreadable)} if counts.unreadable else {})


def _queues(store: Store, count: int) -> tuple[list[dict[str, object]], list[Damage]]:
    """The first `count` queues, and what could not be read on the way to them."""
    counts = StreamCounts()
    queues = (
        _queue_facts(store, stream)
        for stream in store.streams()
        if count_stream(store, stream, counts) is StreamKind.QUEUE
    )
    return list(_first(queues, count)), counts.unreadable


def _queue_facts(store: Store, stream: StreamId) -> dict[str, object]:
    state = store.state(stream)
    return {
        "queue": str(stream),
        "kind": state.kind.name.lower(),
        "first": state.first,
        "next": state.next,
        "unread": state.unread_count,
        "quota": state.quota,
        "is_blocked": state.is_blocked,
    }


def print_damage(output: Output, damage: tuple[Damage, ...]) -> None:
    if not damage:
        output.line("no damage is known", style="green")
        return
    columns = ["file", "offset", "reason", "queue", "first_lost_seq", "lost_count"]
    rows = [[damage_facts(each)[column] for column in columns] for each in damage]
    shown = ["file", "offset", "reason", "queue or document", "first_lost_seq", "lost_count"]
    output.table(f"damage in {len(damage)} places", shown, rows)


def verify(
    folder: FolderArgument = DEFAULT_FOLDER,
    url: UrlOption = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Set digests and counters of the records right."),
    ] = False,
    is_json: JsonFlag = False,
) -> None:
    """Read everything and check it; exit code 1 if anything is damaged, and stays so.

    A backup is checked against its list of hashes first. With --url a running router checks its
    records: queues, services, and the digests of their sets.
    """
    output = Output(is_json=is_json)
    if url is not None:
        facts = check_router(output, RouterClient(url), repairs=repair)
        _tell_records(output, facts)
        return
    if repair:
        check_no_backup(DiskFiles(), whole_path(folder))
    checked_file_count, damaged_files = _verify_copy(output, folder)
    try:
        format_of(folder)
        findings = read_whole(output, folder)
        report = (repair_records if repair else examine_records)(output, folder)
    except StorageError:
        # A backup that is not as it was made may be no store any more.
        if not damaged_files:
            raise
        findings, report = Findings(0, 0, 0, 0, ()), None
    findings = replace(findings, damage=(*damaged_files, *findings.damage))
    is_whole = findings.is_whole and (report is None or report.is_left_whole)
    if is_json:
        facts = asdict(findings) | {"damage": [damage_facts(each) for each in findings.damage]}
        output.json(
            facts
            | {"whole": is_whole, "checked_files": checked_file_count}
            | {"records": facts_of(report)}
        )
    else:
        output.facts(
            "read",
            {
                "queues and documents": findings.stream_count,
                "messages and updates": findings.entry_count,
                "bytes": findings.payload_bytes,
                "missing": findings.missing_count,
            },
        )
        print_damage(output, findings.damage)
        print_records(output, facts_of(report))
    if not is_whole:
        raise typer.Exit(EXIT_DAMAGED)


def _tell_records(output: Output, facts: dict[str, Any]) -> None:
    if output.is_json:
        output.json({"whole": facts["left_whole"], "records": facts})
    else:
        print_records(output, facts)
    if not facts["left_whole"]:
        raise typer.Exit(EXIT_DAMAGED)


def _verify_copy(output: Output, folder: Path) -> tuple[int, tuple[Damage, ...]]:
    """How many files a backup lists, and those that are not as they were; of others none."""
    if not (folder / MANIFEST_NAME).exists():
        return 0, ()
    files = DiskFiles()
    try:
        manifest = read_manifest(files, whole_path(folder))
    except CorruptionError as error:
        return 0, (Damage(error.file, error.offset, error.reason),)
    damaged: list[Damage] = []
    with output.progress("checking hashes", manifest.byte_count) as bar:
        for found in compare_copy(files, whole_path(folder), manifest):
            if isinstance(found, Damage):
                damaged.append(found)
            else:
                bar.advance(found)
    return len(manifest.files), tuple(damaged)


def read_whole(output: Output, folder: Path) -> Findings:
    """Read all of a folder, changing nothing."""
    with looked_at(folder) as store:
        findings = read_store(output, folder, store)
    damaged_life = _read_lives(folder)[1]
    return replace(findings, damage=(*findings.damage, *damaged_life))


def read_store(output: Output, folder: Path, store: Store) -> Findings:
    """Read all of a store, which then knows all of its damage."""
    total_bytes = folder_bytes(DiskFiles(), whole_path(folder))
    with output.progress("reading", total_bytes) as bar:
        steps = read_everything(store)
        while True:
            try:
                _, byte_count = next(steps)
            except StopIteration as end:
                findings: Findings = end.value
                return findings
            bar.advance(byte_count)


def _read_lives(folder: Path) -> tuple[tuple[Life, ...], tuple[Damage, ...]]:
    """Of a folder that was restored, as far as they can be read."""
    try:
        return read_lives(DiskFiles(), whole_path(folder)), ()
    except CorruptionError as error:
        return (), (Damage(error.file, error.offset, error.reason),)


def tail(
    folder: FolderArgument = DEFAULT_FOLDER,
    url: UrlOption = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="One queue; may repeat. All if none.")
    ] = None,
    from_seq: Annotated[int, typer.Option("--from", help="First sequence to show.", min=0)] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as messages come; needs --url.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="Stop after so many.", min=1)
    ] = None,
    is_json: JsonFlag = False,
) -> None:
    """Print messages of a queue, or of all, from a data folder or a running router."""
    wanted = [StreamId.parse(text) for text in queue or []]
    output = Output(is_json=is_json)
    if url is None and follow:
        raise typer.BadParameter("--follow needs --url: nobody writes to a folder that is read")
    where = "`syncline verify`" if url is None else f"{url.rstrip('/')}/api/damage"
    left_out: set[str] = set()

    def leave_out(queue: str, what: str) -> None:
        # A router is asked for its queues again and again, and damage may have several places.
        if queue not in left_out:
            output.warn(f"{queue} {what}; {where} says why")
        left_out.add(queue)

    if url is not None:
        lines = read_router(RouterClient(url), wanted, from_seq, leave_out, follow=follow)
        _print_lines(output, _first(lines, count))
    else:
        with looked_at(folder) as store:
            _print_lines(output, _first(read_folder(store, wanted, from_seq, leave_out), count))
    if left_out:
        raise typer.Exit(EXIT_DAMAGED)


def _print_lines(output: Output, lines: Iterator[Printed]) -> None:
    for line in lines:
        if output.is_json:
            output.json(line)
        else:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(line.time_ms / 1_000))
            size = f"{len(line.body)} B"
            output.line(f"{stamp}Z {line.queue} {line.seq:>6} {line.kind} {size:>8} {_text(line)}")


def _text(line: Printed) -> str:
    shown = line.body[:_PREVIEW_BYTES]
    try:
        text: Any = shown.decode("utf-8")
    except UnicodeDecodeError:
        return shown.hex()
    return text if text.isprintable() else repr(text)[1:-1]
