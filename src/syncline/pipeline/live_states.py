"""The states in the table beside those that a running router has now, document by document.

The router goes on while it is asked. Only where it is still at the same sequence of the same
document can the two be compared; the others are counted.
"""

from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet as pq

from syncline.pipeline.arrow import rows_of
from syncline.pipeline.document_folds import is_same_state
from syncline.pipeline.schemas import DOCUMENT_STATES
from syncline.pipeline.tables import Table
from syncline.values.kinds import Kind

_BATCH_ROWS = 256
_COLUMNS = ["name", "kind", "incarnation", "up_to_seq", "state"]
# How many names of documents that differ are told.
_NAMES_MAX = 20


@dataclass(frozen=True, slots=True)
class StoredState:
    name: str
    kind: str
    incarnation: bytes
    up_to_seq: int
    state: bytes


@dataclass(frozen=True, slots=True)
class LiveState:
    """What the operator's API says: the state is JSON, or base64 of what a subscriber gets."""

    incarnation: str
    seq: int
    state: object


@dataclass(frozen=True, slots=True)
class LiveReport:
    """`other`: the router has another document of that name, or none."""

    equal_count: int
    mismatch_count: int
    moved_on_count: int
    other_count: int
    mismatches: list[str]


def stored_states(tables: Path) -> Iterator[StoredState]:
    """Of all documents that have one. Raises TableError."""
    for each in Table(tables, DOCUMENT_STATES).version().files:
        file = cast(Any, pq).ParquetFile(each.path)
        for batch in file.iter_batches(_BATCH_ROWS, columns=_COLUMNS):
            for row in rows_of(batch):
                if row["state"] is not None:
                    yield StoredState(**row)


class _Verdict(IntEnum):
    """The least one counts, of a document that several logs have: see `compare_live`."""

    EQUAL = 0
    MOVED_ON = 1
    MISMATCH = 2
    OTHER = 3


def compare_live(
    states: Iterator[StoredState], ask: Callable[[str], LiveState | None]
) -> LiveReport:
    """`ask` gives None for a name that the router does not know.

    A log that was restored and the one that it branched off from both have a document, each with
    what it wrote itself. The router has one of the two, and does not say which: so a document is
    what one of them says that it is, and a mismatch only if it is one to all of them.
    """
    found: dict[tuple[str, bytes], _Verdict] = {}
    for stored in states:
        key = stored.name, stored.incarnation
        verdict = _verdict(stored, ask(stored.name))
        found[key] = min(found.get(key, verdict), verdict)
    counts = Counter(found.values())
    mismatches = (name for (name, _), verdict in found.items() if verdict is _Verdict.MISMATCH)
    return LiveReport(
        counts[_Verdict.EQUAL],
        counts[_Verdict.MISMATCH],
        counts[_Verdict.MOVED_ON],
        counts[_Verdict.OTHER],
        list(islice(mismatches, _NAMES_MAX)),
    )


def _verdict(stored: StoredState, live: LiveState | None) -> _Verdict:
    if live is None or live.incarnation != stored.incarnation.hex():
        return _Verdict.OTHER
    if live.seq != stored.up_to_seq:
        return _Verdict.MOVED_ON
    is_same = is_same_state(stored.kind, stored.state, _as_stored(stored.kind, live.state))
    return _Verdict.EQUAL if is_same else _Verdict.MISMATCH


def _as_stored(kind: str, shown: object) -> bytes:
    """Subscribers get a Yjs document as one update."""
    if kind == Kind.JSON:
        return msgspec.json.encode(shown)
    data = b64decode(str(shown))
    return msgspec.msgpack.encode([data]) if kind == Kind.YJS else data
