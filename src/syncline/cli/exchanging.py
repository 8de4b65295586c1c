"""`export` and `import`: other layouts, and a file that anybody can read."""

import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from syncline.cli.folders import (
    DEFAULT_FOLDER,
    check_outside,
    clock_ms,
    filled,
    format_of,
    looked_at,
    whole_path,
)
from syncline.cli.output import Bar, JsonFlag, Output, bytes_text
from syncline.cli.records_checks import count_left_records, has_records, held
from syncline.storage.base import run_jobs
from syncline.storage.copies import folder_bytes
from syncline.storage.exchange import (
    ExchangeReport,
    Progress,
    detect_layout,
    export_journal_layout,
    export_messages,
    import_detected,
)
from syncline.storage.files import DiskFiles
from syncline.storage.options import StoreOptions
from syncline.values import limits

EXIT_INCOMPLETE = 1

DataOption = Annotated[Path, typer.Option("--data", "-d", help="The data folder.")]


class ExportLayout(Enum):
    JSON_LINES = "json-lines"
    JOURNAL = "journal"


class ImportStore(Enum):
    """Kinds of store that leave something on the disk."""

    LOG = "log"
    JOURNAL = "journal"


def export(
    target: Annotated[Path, typer.Argument(help="A file or folder that is not there yet.")],
    folder: DataOption = DEFAULT_FOLDER,
    layout: Annotated[
        ExportLayout,
        typer.Option(help="json-lines: one file; journal: a folder per queue."),
    ] = ExportLayout.JSON_LINES,
    is_json: JsonFlag = False,
) -> None:
    """Write the queues and documents of a data folder in another layout. It stays as it is.

    Not their SMP records, which are keys, links and services, nor certificates: without its keys
    nobody can use an SMP queue. `syncline backup` copies everything.
    """
    format_of(folder)
    check_outside(target, folder, "the data folder")
    output = Output(is_json=is_json)
    files = DiskFiles()
    total_bytes = folder_bytes(files, whole_path(folder))
    with looked_at(folder) as store, _counted(output, "exporting", total_bytes) as progress:
        if layout is ExportLayout.JOURNAL:
            report = export_journal_layout(
                store,
                whole_path(target),
                files,
                StoreOptions(),
                now_ms=clock_ms(),
                random_bytes=secrets.token_bytes,
                progress=progress,
            )
        else:
            report = export_messages(store, whole_path(target), files, progress=progress)
        # While the folder is held: nobody changes them meanwhile.
        left_records = count_left_records(folder)
    _tell(output, "exported", whole_path(target), report, left_records)


def import_(
    source: Annotated[
        Path,
        typer.Argument(help="An exported file, a journal folder, or one of the reference router."),
    ],
    folder: DataOption = DEFAULT_FOLDER,
    store_kind: Annotated[
        ImportStore, typer.Option("--store", help="Kind of store to make.")
    ] = ImportStore.LOG,
    quota: Annotated[
        int,
        typer.Option(
            help="Quota of queues whose source does not say.", min=0, max=limits.queue_quota_max
        ),
    ] = limits.queue_quota_default,
    is_json: JsonFlag = False,
) -> None:
    """Make a data folder of queues and documents in another layout. The source stays as it is.

    Not of SMP records beside them, which are keys, links and services, nor of certificates.
    """
    output = Output(is_json=is_json)
    # Before anything is made: a source that is none leaves no folder behind.
    detect_layout(whole_path(source), DiskFiles())
    check_outside(folder, source, "the source")
    check_outside(source, folder, "the data folder")
    with filled(folder, store_kind.value) as store, _counted(output, "importing", None) as progress:

        def keep_up(report: ExchangeReport) -> None:
            # Nobody else does the upkeep here, and the log needs it to take more.
            run_jobs(store)
            progress(report)

        report = import_detected(
            whole_path(source), store, DiskFiles(), now_ms=clock_ms(), quota=quota, progress=keep_up
        )
    left_records = None
    if has_records(source):
        with held(source, to_change=False):
            left_records = count_left_records(source)
    _tell(output, "imported", whole_path(folder), report, left_records)


@contextmanager
def _counted(output: Output, what: str, total_bytes: int | None) -> Generator[Progress]:
    with output.progress(what, total_bytes) as bar:
        yield _Counter(bar)


class _Counter:
    """Moves a bar by what a report has more than it had before."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._byte_count = 0

    def __call__(self, report: ExchangeReport) -> None:
        self._bar.advance(report.byte_count - self._byte_count)
        self._byte_count = report.byte_count


def _tell(
    output: Output,
    done: str,
    place: str,
    report: ExchangeReport,
    left_records: Mapping[str, int | None] | None,
) -> None:
    if output.is_json:
        facts = {done: place, "whole": report.is_whole, "left_records": left_records}
        output.json(facts | asdict(report))
    else:
        output.line(
            f"{done} {report.entry_count} entries of {report.stream_count} queues and documents, "
            f"{bytes_text(report.byte_count)}, to {place}"
        )
        if report.renumbered_stream_count:
            count = report.renumbered_stream_count
            output.line(f"{count} queues and documents have other sequences than before")
        if left_records is not None:
            queues, services = ("?" if each is None else each for each in left_records.values())
            output.line(
                f"the SMP records of {queues} queues and {services} services, their keys among "
                "them, are not part of it and were left behind; `syncline backup` copies them",
                style="bold yellow",
            )
        if not report.is_whole:
            output.line(
                "some of it could not be read and was left behind: "
                f"{report.lost_entry_count} entries are missing, {report.skipped_line_count} lines "
                f"were skipped, {report.damaged_stream_count} queues and documents and "
                f"{report.damaged_file_count} files are damaged",
                style="bold red",
            )
            columns = ["queue, document or file", "what is wrong"]
            output.table("damage", columns, report.damage)
    if not report.is_whole:
        raise typer.Exit(EXIT_INCOMPLETE)
