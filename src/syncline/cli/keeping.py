"""`backup`, `restore` and `repair`: whole folders, copied with hashes before a change."""

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.cli.folders import (
    DEFAULT_FOLDER,
    FolderArgument,
    check_outside,
    clock_ms,
    format_of,
    in_memory,
    looked_at,
    opened_over,
    whole_path,
    worked_on,
)
from syncline.cli.looking import EXIT_DAMAGED, print_damage, read_store, read_whole
from syncline.cli.output import JsonFlag, Output, bytes_text
from syncline.cli.plan_repairs import repair_by_plan
from syncline.cli.records_checks import (
    examine_records,
    facts_of,
    print_salvage,
    print_wrong_records,
    repair_records,
    salvage_facts,
    salvage_records,
)
from syncline.cli.router_client import RouterClient, UrlOption
from syncline.errors import (
    CorruptionError,
    RefusedError,
    StorageError,
    StoreLockedError,
)
from syncline.server.health import damage_facts
from syncline.storage.base import run_jobs
from syncline.storage.copies import (
    CopyManifest,
    check_copy,
    check_empty,
    check_no_backup,
    copy_folder,
    copy_format,
    folder_bytes,
    read_manifest,
    write_manifest,
)
from syncline.storage.files import DiskFiles
from syncline.storage.folder import lock_to_read
from syncline.storage.inspection import Describes, Findings, Mends
from syncline.storage.life import LIFE_BYTES, begin_life, read_lives
from syncline.storage.records.base import RecordsReport
from syncline.storage.records.sqlite_salvage import Salvage

TargetArgument = Annotated[Path, typer.Argument(help="A folder that is empty or not there yet.")]


def backup(
    target: TargetArgument,
    folder: Annotated[Path, typer.Option("--data", "-d", help="The data folder.")] = DEFAULT_FOLDER,
    url: UrlOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Copy a data folder with a list of hashes; with --url from a router while it serves."""
    output = Output(is_json=is_json)
    if url is not None:
        facts = _back_up_router(output, RouterClient(url), whole_path(target))
    else:
        manifest = _back_up_folder(output, folder, target)
        facts = {"files": len(manifest.files), "bytes": manifest.byte_count}
    if is_json:
        output.json({"backup": whole_path(target)} | facts)
    else:
        size = bytes_text(facts["bytes"])
        output.line(f"backed up {facts['files']} files, {size}, to {whole_path(target)}")


def _back_up_router(output: Output, client: RouterClient, target: str) -> dict[str, Any]:
    """The router writes the copy itself, so `target` is a folder of its machine."""
    with output.progress("copying", None) as bar:
        copied_bytes = 0
        for line in client.post_lines("/api/backup", {"folder": target}):
            if "error" in line:
                raise RefusedError(str(line["error"]))
            if line.get("done"):
                return {"files": line["files"], "bytes": line["bytes"]}
            bar.advance(line["copied_bytes"] - copied_bytes)
            copied_bytes = line["copied_bytes"]
    raise RefusedError(f"the router ended the backup early; {target} is not whole, remove it")


def _back_up_folder(output: Output, folder: Path, target: Path) -> CopyManifest:
    found = format_of(folder)
    check_outside(target, folder, "the data folder")
    try:
        with _locked(folder):
            return _copy(output, folder, target)
    except StoreLockedError as error:
        # No other kind can be copied while it serves.
        if found.kind != "log":
            raise
        raise RefusedError(
            f"{error}; for a backup while it serves, give its address with --url"
        ) from error


def _copy(output: Output, folder: Path, target: Path) -> CopyManifest:
    """Copy, hash what was copied, and compare with the source once more."""
    files = DiskFiles()
    source, copy = whole_path(folder), whole_path(target)
    total_bytes = folder_bytes(files, source)
    with output.progress("copying", total_bytes) as bar:
        bar.run_out(copy_folder(files, source, copy))
    with output.progress("hashing", total_bytes) as bar:
        hashing = write_manifest(files, copy, clock_ms())
        while True:
            try:
                bar.advance(next(hashing))
            except StopIteration as end:
                manifest: CopyManifest = end.value
                break
    with output.progress("comparing", total_bytes) as bar:
        bar.run_out(check_copy(files, source, manifest))
    return manifest


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Nobody works on `folder` meanwhile."""
    lock = lock_to_read(DiskFiles(), whole_path(folder))
    try:
        yield
    finally:
        lock.release()


def restore(
    source: Annotated[Path, typer.Argument(help="A backup.")],
    target: TargetArgument,
    is_json: JsonFlag = False,
) -> None:
    """Check the hashes of a backup and make a data folder of it."""
    output = Output(is_json=is_json)
    files = DiskFiles()
    check_outside(target, source, "the backup")
    check_empty(files, whole_path(target))
    manifest = read_manifest(files, whole_path(source))
    found = format_of(source)
    with output.progress("checking", manifest.byte_count) as bar:
        bar.run_out(check_copy(files, whole_path(source), manifest))
    # Before anything is written: without its lives a copy could pass for another folder.
    read_lives(files, whole_path(source))
    end = _end_of_log(source)
    with output.progress("copying", manifest.byte_count) as bar:
        bar.run_out(copy_folder(files, whole_path(source), whole_path(target), has_format=False))
    with output.progress("comparing", manifest.byte_count) as bar:
        bar.run_out(check_copy(files, whole_path(target), manifest.without_format()))
    begin_life(files, whole_path(target), found.store_id, secrets.token_bytes(LIFE_BYTES), end)
    # Only now is it a store: there is never one that does not know that it was restored.
    copy_format(files, whole_path(source), whole_path(target))
    if is_json:
        facts = {"files": len(manifest.files), "bytes": manifest.byte_count}
        output.json({"restored": whole_path(target)} | facts)
    else:
        size = bytes_text(manifest.byte_count)
        output.line(f"restored {len(manifest.files)} files, {size}, to {whole_path(target)}")


def _end_of_log(folder: Path) -> int:
    """Where the log of a store goes on when it is opened next; 0 if its kind has none."""
    with looked_at(folder) as store:
        end = store.describe().get("log_end") if isinstance(store, Describes) else None
    return end if isinstance(end, int) else 0


def repair(
    folder: FolderArgument = DEFAULT_FOLDER,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; else only say what.")] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Mend the associations of a running router by this plan."),
    ] = None,
    url: UrlOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Keep what is readable of a damaged folder. Copies all of it before anything is changed.

    With --plan and --url, do what `pipeline reconcile --plan` found to a router while it serves.
    """
    output = Output(is_json=is_json)
    if (plan is None) != (url is None):
        raise typer.BadParameter("--plan and --url belong together")
    if plan is not None and folder != DEFAULT_FOLDER:
        raise typer.BadParameter("a plan is carried out by a router; name no folder")
    if plan is not None and url is not None:
        if not repair_by_plan(output, plan, url, applies=apply):
            raise typer.Exit(EXIT_DAMAGED)
        return
    format_of(folder)
    if apply:
        check_no_backup(DiskFiles(), whole_path(folder))
    before = _State(_read_or_explain(output, folder), examine_records(output, folder))
    if before.is_whole or not apply:
        _tell_repair(output, before, None, None, None)
        if not before.is_whole:
            raise typer.Exit(EXIT_DAMAGED)
        return
    mends_store = not before.findings.is_whole and _is_mendable(output, folder)
    if not mends_store and before.are_records_whole:
        _tell_lost(output, before)
        if before.findings.damage:
            raise typer.Exit(EXIT_DAMAGED)
        return
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    kept = folder.absolute().with_name(f"{folder.absolute().name}.before-repair-{stamp}")
    with _locked(folder):
        _copy(output, folder, kept)
    if mends_store:
        _mend_store(output, folder)
    saved = None
    if before.records is not None and not before.records.is_whole:
        saved = _mend_records(output, folder, before.records)
    after = _State(read_whole(output, folder), examine_records(output, folder))
    _tell_repair(output, before, after, kept, saved)
    if after.findings.damage or not after.are_records_whole:
        raise typer.Exit(EXIT_DAMAGED)


@dataclass(frozen=True, slots=True)
class _State:
    """A folder before a repair or after it."""

    findings: Findings
    records: RecordsReport | None

    @property
    def are_records_whole(self) -> bool:
        return self.records is None or self.records.is_whole

    @property
    def is_whole(self) -> bool:
        return self.findings.is_whole and self.are_records_whole


def _is_mendable(output: Output, folder: Path) -> bool:
    """Whether files can be written anew, or opening alone leaves damage behind; tried in memory.

    A store that was mended still misses what was lost: that is no reason to copy it once more.
    """
    with in_memory() as files:
        with opened_over(folder, files) as store:
            found = read_store(output, folder, store)
            # Of a log the runs are, and those that were are gone.
            if isinstance(store, Mends) and any(_is_run(each.file) for each in found.damage):
                return True
        with opened_over(folder, files) as store:
            return read_store(output, folder, store) != found


def _is_run(file: str) -> bool:
    return Path(file).suffix == ".run"


def _mend_store(output: Output, folder: Path) -> None:
    with worked_on(folder) as store:
        # Opening has recovered what can be. Of files, only those are written anew whose damage was
        # met by then, so everything is read; the upkeep that is due may leave more behind.
        read_store(output, folder, store)
        if isinstance(store, Mends):
            with output.progress("writing anew", None) as bar:
                bar.run_out(store.mend())
        run_jobs(store)


def _mend_records(output: Output, folder: Path, report: RecordsReport) -> Salvage | None:
    """What was saved, where they had to be written anew."""
    if report.damage:
        return salvage_records(output, folder)
    repair_records(output, folder)
    return None


def _read_or_explain(output: Output, folder: Path) -> Findings:
    try:
        return read_whole(output, folder)
    except CorruptionError as error:
        raise StorageError(
            f"{error.file} is damaged at byte {error.offset} ({error.reason}) and nothing can be "
            "read without it; make a data folder of a backup with `syncline restore`"
        ) from error


def _tell_lost(output: Output, before: _State) -> None:
    """Nothing was changed, since nothing can be."""
    if output.is_json:
        _tell_repair(output, before, None, None, None)
        return
    _tell_store(output, before.findings)
    print_damage(output, before.findings.damage)
    output.line(
        "nothing of this can be mended, and nothing was changed: what is readable stays so, what "
        "is lost is only in a backup; `syncline restore` makes a data folder of one"
    )


def _tell_repair(
    output: Output, before: _State, after: _State | None, kept: Path | None, saved: Salvage | None
) -> None:
    if output.is_json:
        output.json(
            {
                "applied": after is not None,
                "copy": None if kept is None else str(kept),
                "before": _findings_facts(before.findings),
                "after": None if after is None else _findings_facts(after.findings),
                "records": {
                    "before": facts_of(before.records),
                    "after": None if after is None else facts_of(after.records),
                    "saved": None if saved is None else salvage_facts(saved),
                },
            }
        )
        return
    if before.is_whole:
        output.line("nothing to repair: everything is readable", style="green")
        return
    if not before.findings.is_whole:
        _tell_store(output, before.findings)
    if not before.are_records_whole:
        print_wrong_records(output, facts_of(before.records))
    if after is None:
        output.line("nothing was changed; --apply copies the folder, then keeps what is readable")
        return
    output.line(f"the folder as it was is in {kept}")
    if not before.findings.is_whole:
        output.line(
            f"kept {after.findings.entry_count} entries; {len(after.findings.damage)} damaged "
            f"places are left, {after.findings.missing_count} entries are gone"
        )
        if after.findings.damage:
            print_damage(output, after.findings.damage)
    if saved is not None:
        print_salvage(output, saved)
    if not before.are_records_whole:
        print_wrong_records(output, facts_of(after.records))


def _tell_store(output: Output, findings: Findings) -> None:
    output.line(
        f"{findings.entry_count} entries in {findings.stream_count} queues and documents are "
        f"readable, {findings.missing_count} are not; {len(findings.damage)} places are damaged"
    )


def _findings_facts(findings: Findings) -> dict[str, Any]:
    damage = [damage_facts(each) for each in findings.damage]
    return asdict(findings) | {"damage": damage, "whole": findings.is_whole}
