"""Documents: how much their updates come to, and whether the router's own states are the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.folding import (
    Fold,
    Reader,
    chosen,
    highest_rows,
    shaped,
    summing,
    with_column,
)
from syncline.pipeline.schemas import DOCUMENT_STATES
from syncline.pipeline.tables import Version

LARGEST_MAX: Final = 12
WRONG_MAX: Final = 50

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class DocumentState:
    store: bytes
    stream: bytes
    name: str
    kind: str
    up_to_seq: int
    update_count: int
    bytes_in: int
    bytes_out: int
    checked_count: int
    mismatch_count: int
    problem: str


@dataclass(frozen=True, slots=True)
class Documents:
    """Of the newest run. `wrong` are those with a mismatch or a problem, the worst of them."""

    run: int
    document_count: int
    totals: Mapping[str, int]
    wrong_count: int
    problem_count: int
    largest: tuple[DocumentState, ...]
    wrong: tuple[DocumentState, ...]


_SUMS: Final = ("update_count", "bytes_in", "bytes_out", "checked_count", "mismatch_count")
_TOTALS: Final = schema_of(
    [
        pa.field("run", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("wrong", pa.int64()),
        pa.field("problems", pa.int64()),
        *(pa.field(name, pa.int64()) for name in _SUMS),
    ]
)
_ROW: Final = schema_of(
    [
        pa.field("store", pa.binary()),
        pa.field("stream", pa.binary()),
        pa.field("name", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("up_to_seq", pa.int64()),
        *(pa.field(name, pa.int64()) for name in _SUMS),
        pa.field("problem", pa.string()),
    ]
)
_TIES: Final = [("store", "ascending"), ("stream", "ascending")]


def newest_run(version: Version) -> Version | None:
    """The files of the newest run of a table that is parted by runs; None if it has none."""
    runs = [int(each.partition["run"] or 0) for each in version.files]
    return version.skipping("run", str(max(runs)), str(max(runs))) if runs else None


def gather_documents(reader: Reader, version: Version) -> Documents | None:
    newest = newest_run(version)
    if newest is None:
        return None
    counting = summing(
        _TOTALS,
        ("run",),
        sums=("count", "wrong", "problems", *_SUMS),
        columns=("run", "problem", "is_deleted", *_SUMS),
        prepared=_with_counts,
    )
    (totals,) = reader.folded(DOCUMENT_STATES, newest, counting)
    read = (*cast(Any, _ROW).names, "is_deleted")
    largest = highest_rows(
        _ROW,
        [("bytes_in", "descending"), *_TIES],
        LARGEST_MAX,
        prepared=lambda rows: chosen(rows, _is_there(rows)),
        columns=read,
    )
    wrong = highest_rows(
        _ROW,
        [("mismatch_count", "descending"), *_TIES],
        WRONG_MAX,
        prepared=lambda rows: chosen(rows, _is_wrong(rows)),
        columns=read,
    )
    return Documents(
        int(totals["run"]),
        int(totals["count"]),
        {name: int(totals[name] or 0) for name in _SUMS},
        int(totals["wrong"]),
        int(totals["problems"]),
        tuple(map(_document, reader.folded(DOCUMENT_STATES, newest, largest))),
        tuple(map(_document, reader.folded(DOCUMENT_STATES, newest, wrong))),
    )


def gather_names(reader: Reader, version: Version, streams: Iterable[bytes]) -> dict[bytes, str]:
    """What the documents behind these streams are called, as far as that is known."""
    wanted = _pa.array(sorted(set(streams)), _pa.binary())
    newest = newest_run(version)
    if newest is None or not len(wanted):
        return {}
    schema = schema_of([pa.field("stream", pa.binary()), pa.field("name", pa.string())])

    def named(rows: pa.Table) -> pa.Table:
        is_wanted = _pc.is_in(_pc.field("stream"), value_set=wanted)
        return shaped(chosen(rows, is_wanted), schema)

    found = reader.folded(DOCUMENT_STATES, newest, Fold(("stream", "name"), schema, named, named))
    return {bytes(row["stream"]): str(row["name"]) for row in found if row["name"]}


def _with_counts(rows: pa.Table) -> pa.Table:
    """Of documents that were deleted, only what their states differed in still counts."""
    is_there = _is_there(rows).cast(_pa.int64())
    found = with_column(rows, "count", is_there)
    found = with_column(found, "wrong", _is_wrong(rows).cast(_pa.int64()))
    found = with_column(found, "problems", _has_problem(rows).cast(_pa.int64()))
    for name in _SUMS[:-1]:
        found = with_column(found, name, _pc.multiply(cast(Any, rows).column(name), is_there))
    return found


def _is_there(rows: pa.Table) -> Any:
    return _pc.invert(_pc.fill_null(cast(Any, rows).column("is_deleted"), False))


def _is_wrong(rows: pa.Table) -> Any:
    mismatches = _pc.fill_null(cast(Any, rows).column("mismatch_count"), 0)
    return _pc.or_(_pc.greater(mismatches, 0), _has_problem(rows))


def _has_problem(rows: pa.Table) -> Any:
    problem = _pc.not_equal(_pc.fill_null(cast(Any, rows).column("problem"), ""), "")
    return _pc.and_(problem, _is_there(rows))


def _document(row: Mapping[str, Any]) -> DocumentState:
    return DocumentState(
        bytes(row["store"]),
        bytes(row["stream"]),
        str(row["name"] or ""),
        str(row["kind"] or ""),
        int(row["up_to_seq"] or 0),
        int(row["update_count"] or 0),
        int(row["bytes_in"] or 0),
        int(row["bytes_out"] or 0),
        int(row["checked_count"] or 0),
        int(row["mismatch_count"] or 0),
        str(row["problem"] or ""),
    )
