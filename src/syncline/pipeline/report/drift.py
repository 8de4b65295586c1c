"""Sets of ids: whether the kept digests are right, and in what two snapshots differ, over time.

When something was looked at is the time of the commit that has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.folding import (
    Reader,
    chosen,
    counted,
    highest_rows,
    summing,
    with_column,
)
from syncline.pipeline.report.history import Commit
from syncline.pipeline.schemas import DRIFT_ITEMS, SERVICE_DIGESTS
from syncline.pipeline.tables import Version

SETS_MAX: Final = 50
_MISSING: Final = "missing"

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class Digested:
    """One snapshot, digested. `time_ms` is None if its commit is too far back."""

    snapshot: str
    time_ms: int | None
    set_count: int
    id_count: int
    mismatch_count: int


@dataclass(frozen=True, slots=True)
class WrongSet:
    snapshot: str
    service: bytes
    role: str
    count: int
    claimed_count: int


@dataclass(frozen=True, slots=True)
class ServiceDrift:
    service: bytes
    role: str
    missing: int
    extra: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One comparison of a router with what is wanted. `services` are those that drifted most."""

    run: str
    time_ms: int | None
    missing: int
    extra: int
    services: tuple[ServiceDrift, ...]
    service_count: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Oldest first."""

    digested: tuple[Digested, ...]
    wrong: tuple[WrongSet, ...]
    reconciled: tuple[Reconciled, ...]

    @property
    def mismatch_count(self) -> int:
        """Of the newest snapshot of each router: the one that counts now."""
        newest = {_router(each.snapshot): each for each in self.digested}
        return sum(each.mismatch_count for each in newest.values())


_SNAPSHOTS: Final = schema_of(
    [
        pa.field("snapshot", pa.string()),
        pa.field("sets", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("mismatches", pa.int64()),
    ]
)
_WRONG: Final = schema_of(
    [
        pa.field("snapshot", pa.string()),
        pa.field("service", pa.binary()),
        pa.field("role", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("claimed_count", pa.int64()),
    ]
)
_ITEMS: Final = schema_of(
    [
        pa.field("run", pa.string()),
        pa.field("service", pa.binary()),
        pa.field("role", pa.string()),
        pa.field("verdict", pa.string()),
        pa.field("count", pa.int64()),
    ]
)


def gather_drift(
    reader: Reader,
    digests: Version | None,
    digest_commits: Sequence[Commit],
    items: Version | None,
    item_commits: Sequence[Commit],
) -> Drift:
    digested, wrong = _digested(reader, digests, digest_commits) if digests else ((), ())
    reconciled = _reconciled(reader, items, item_commits) if items else ()
    return Drift(digested, wrong, reconciled)


def _digested(
    reader: Reader, version: Version, commits: Sequence[Commit]
) -> tuple[tuple[Digested, ...], tuple[WrongSet, ...]]:
    counting = summing(
        _SNAPSHOTS,
        ("snapshot",),
        sums=("sets", "count", "mismatches"),
        columns=("snapshot", "count", "matches"),
        prepared=_with_mismatches,
    )
    times = {str(each.inputs.get("snapshot")): each.time_ms for each in commits}
    found = [
        Digested(
            str(row["snapshot"]),
            times.get(str(row["snapshot"])),
            int(row["sets"]),
            int(row["count"] or 0),
            int(row["mismatches"]),
        )
        for row in reader.folded(SERVICE_DIGESTS, version, counting)
    ]
    order = [("snapshot", "ascending"), ("service", "ascending"), ("role", "ascending")]
    listing = highest_rows(
        _WRONG,
        order,
        SETS_MAX,
        columns=(*(name for name, _ in order), "count", "claimed_count", "matches"),
        prepared=lambda rows: chosen(rows, ~_pc.field("matches")),
    )
    wrong = [
        WrongSet(
            str(row["snapshot"]),
            bytes(row["service"]),
            str(row["role"]),
            int(row["count"] or 0),
            int(row["claimed_count"] or 0),
        )
        for row in reader.folded(SERVICE_DIGESTS, version, listing)
    ]
    return tuple(sorted(found, key=lambda each: (each.time_ms or 0, each.snapshot))), tuple(wrong)


def _with_mismatches(rows: pa.Table) -> pa.Table:
    there: Any = rows
    wrong = _pc.invert(_pc.fill_null(there.column("matches"), False)).cast(_pa.int64())
    ones = cast(Any, counted(rows)).column("count")
    return with_column(with_column(rows, "mismatches", wrong), "sets", ones)


def _reconciled(
    reader: Reader, version: Version, commits: Sequence[Commit]
) -> tuple[Reconciled, ...]:
    """Those that found nothing have no rows: their commits tell of them."""
    counting = summing(
        _ITEMS,
        ("run", "service", "role", "verdict"),
        sums=("count",),
        columns=("run", "service", "role", "verdict"),
        prepared=counted,
    )
    services: dict[str, dict[tuple[bytes, str], list[int]]] = {}
    for row in reader.folded(DRIFT_ITEMS, version, counting):
        of_run = services.setdefault(str(row["run"]), {})
        counts = of_run.setdefault((bytes(row["service"]), str(row["role"])), [0, 0])
        counts[0 if row["verdict"] == _MISSING else 1] += int(row["count"])
    times = dict(_runs(commits))
    runs = {run: _run(run, times.get(run), services.get(run, {})) for run in {*services, *times}}
    return tuple(sorted(runs.values(), key=lambda each: (each.time_ms or 0, each.run)))


def _runs(commits: Sequence[Commit]) -> Iterator[tuple[str, int | None]]:
    for each in commits:
        if each.job == "reconcile":
            yield f"{each.inputs.get('router')}..{each.inputs.get('wanted')}", each.time_ms


def _run(
    run: str, time_ms: int | None, services: Mapping[tuple[bytes, str], list[int]]
) -> Reconciled:
    drifted = [ServiceDrift(*key, *counts) for key, counts in services.items()]
    drifted.sort(key=lambda each: (-each.missing - each.extra, each.service, each.role))
    missing = sum(each.missing for each in drifted)
    extra = sum(each.extra for each in drifted)
    return Reconciled(run, time_ms, missing, extra, tuple(drifted[:SETS_MAX]), len(drifted))


def _router(snapshot: str) -> str:
    """Whose snapshot it is: the name begins with the id of the store."""
    return snapshot.partition("-")[0]
