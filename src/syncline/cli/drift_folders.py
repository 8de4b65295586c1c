"""`syncline drift` between two data folders."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from syncline.cli.drift_output import ROLE_NAMES, Compared, Repaired, Report, Verdict
from syncline.cli.folders import format_of, whole_path
from syncline.cli.output import Output
from syncline.core.reconciliation.initiator import Mode
from syncline.errors import ConfigError, RefusedError, StoreLockedError
from syncline.storage.copies import check_no_backup
from syncline.storage.drift.folders import (
    FolderRecords,
    FolderRepairer,
    ServiceDrift,
    ServiceRepair,
    compare_service,
    looked_into,
    worked_on,
)
from syncline.storage.files import DiskFiles
from syncline.values.ids import StreamId


def check(output: Output, first: Path, second: Path, mode: Mode) -> Report:
    _check_folders(first, second)
    files = DiskFiles()
    with (
        looked_into(whole_path(first), files) as mine,
        looked_into(whole_path(second), files) as theirs,
    ):
        found = [_compared(drift) for drift in _drifts(output, mine, theirs, mode)]
        report = _report(first, second, mode, found, mine, theirs)
    if report.verdict is Verdict.EQUAL:
        return report
    advice = f"`syncline drift repair {first} {second}` makes the second like the first"
    return replace(report, advice=advice)


def repair(output: Output, first: Path, second: Path, mode: Mode, *, is_dry: bool) -> Report:
    """Raises RefusedError while a router works on the second folder, ConfigError for a backup."""
    _check_folders(first, second)
    files = DiskFiles()
    check_no_backup(files, whole_path(second))
    with looked_into(whole_path(first), files) as mine:
        if is_dry:
            with looked_into(whole_path(second), files) as theirs:
                repairer = FolderRepairer(theirs, None)
                found = _repaired(output, mine, theirs, repairer, mode, is_dry=True)
                report = _report(first, second, mode, found, mine, theirs)
            return replace(report, advice="nothing was changed; leave out --dry-run to do it")
        try:
            with worked_on(whole_path(second), files) as (theirs, records):
                repairer = FolderRepairer(theirs, records)
                found = _repaired(output, mine, theirs, repairer, mode, is_dry=False)
                return _report(first, second, mode, found, mine, theirs)
        except StoreLockedError as error:
            raise RefusedError(f"{error}; `drift check` works beside it") from error


def _check_folders(first: Path, second: Path) -> None:
    format_of(first)
    format_of(second)
    if first.samefile(second):
        raise ConfigError(f"{first} and {second} are the same folder")


def _drifts(
    output: Output, mine: FolderRecords, theirs: FolderRecords, mode: Mode
) -> Iterator[ServiceDrift]:
    services = sorted(mine.services().keys() | theirs.services().keys())
    with output.count_progress("comparing services", len(services)) as bar:
        for service_id in services:
            yield compare_service(mine, theirs, service_id, secrets.token_bytes, mode)
            bar.advance(1)


def _repaired(
    output: Output,
    mine: FolderRecords,
    theirs: FolderRecords,
    repairer: FolderRepairer,
    mode: Mode,
    *,
    is_dry: bool,
) -> list[Compared]:
    drifts = list(_drifts(output, mine, theirs, mode))
    wrong = [drift for drift in drifts if not drift.is_equal]
    found = [each.comparison for each in wrong]
    id_count = sum(each.only_first_count + each.only_second_count for each in found)
    done: dict[bytes, Repaired] = {}
    with output.count_progress("repairing", id_count) as bar:
        for drift in wrong:
            repair = repairer.repair(mine.service(drift.service_id), drift, bar.advance)
            left = None
            if not is_dry and repair.refusal is None:
                left = compare_service(mine, theirs, drift.service_id, secrets.token_bytes, mode)
            done[drift.service_id] = _told(repair, left, is_dry=is_dry)
    return [_compared(drift, done.get(drift.service_id)) for drift in drifts]


def _told(done: ServiceRepair, left: ServiceDrift | None, *, is_dry: bool) -> Repaired:
    reasons = [] if done.refusal is None else [done.refusal]
    if done.absent:
        reasons.append(f"{done.absent_count:,} queues do not exist in the second folder")
    if left is not None:
        reasons += _troubles(left)
    return Repaired(
        {
            "associated": done.associated_count,
            "dissociated": done.dissociated_count,
            "services_made": int(done.is_service_made),
            "digests_repaired": int(done.is_digest_repaired),
        },
        is_dry,
        None if left is None else left.comparison,
        done.absent,
        tuple(reasons),
    )


def _compared(drift: ServiceDrift, repaired: Repaired | None = None) -> Compared:
    role = drift.first_role or drift.second_role
    assert role is not None, "one of the folders has it"
    service_id = str(StreamId(drift.service_id))
    return Compared(
        f"service {service_id} ({ROLE_NAMES[role]})",
        {"service": service_id, "role": ROLE_NAMES[role]},
        drift.comparison,
        _troubles(drift),
        repaired,
    )


def _troubles(drift: ServiceDrift) -> tuple[str, ...]:
    troubles: list[str] = []
    if drift.first_role is None or drift.second_role is None:
        which = "second" if drift.first_role is None else "first"
        troubles.append(f"only the {which} folder has this service")
    elif drift.first_role is not drift.second_role:
        troubles.append("the service does not have the same role in both")
    for which, is_wrong in (
        ("first", drift.is_first_digest_wrong),
        ("second", drift.is_second_digest_wrong),
    ):
        if is_wrong:
            troubles.append(f"the digest in the {which} folder is not that of its ids")
    return tuple(troubles)


def _report(
    first: Path,
    second: Path,
    mode: Mode,
    found: list[Compared],
    mine: FolderRecords,
    theirs: FolderRecords,
) -> Report:
    notes = tuple(
        f"a router works on {folder}: it was read beside it, and may have changed since"
        for folder, records in ((first, mine), (second, theirs))
        if records.is_worked_on
    )
    return Report("folders", whole_path(first), whole_path(second), mode, found, notes)
