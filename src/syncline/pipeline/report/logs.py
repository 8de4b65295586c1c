"""The logs that the page has rows of, and which of them were restored from which.

A router that was restored from a backup writes a log of its own, and what it had before is in both:
only the name of the log tells two rows of a document or a queue apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from syncline.kernels.log_records import EVENTS as EVENTS_KIND
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report.folding import Reader, chosen, summing
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.tables import Version
from syncline.values.events import EventKind

_LOG_ID_BYTES: Final = 16
_STARTED: Final = int(EventKind.STARTED)

_pa = cast(Any, pa)
_pc = cast(Any, pc)


@dataclass(frozen=True, slots=True)
class Logs:
    """`former` has, by log, the one that it was restored from, as far as its events tell."""

    shown: frozenset[bytes]
    former: Mapping[bytes, bytes]

    @property
    def are_several(self) -> bool:
        return len(self.shown) > 1


_BRANCH: Final = schema_of([pa.field("store", pa.binary()), pa.field("stream", pa.binary())])


def gather_logs(reader: Reader, events: Version | None, shown: Iterable[bytes]) -> Logs:
    """Where one log is all there is, nothing is read: it need not be named."""
    stores = frozenset(filter(None, shown))
    if events is None or len(stores) < 2:
        return Logs(stores, {})
    wanted = _pa.array(sorted(stores), _pa.binary())

    def restored(rows: pa.Table) -> pa.Table:
        is_start = (_pc.field("kind") == EVENTS_KIND) & (_pc.field("event") == _STARTED)
        is_branch = (_pc.field("first") > 0) & _pc.field("stream").is_valid()
        return chosen(rows, is_start & is_branch & _pc.is_in(_pc.field("store"), value_set=wanted))

    # Every start of a restored router tells of it; one is enough.
    fold = summing(
        _BRANCH,
        ("store", "stream"),
        columns=("kind", "event", "first", "store", "stream"),
        prepared=restored,
    )
    told = events.skipping("kind", EVENTS_KIND, EVENTS_KIND)
    found = reader.folded(EVENTS, told, fold)
    pairs = sorted((bytes(row["store"]), bytes(row["stream"])) for row in found)
    return Logs(stores, {store: stream[:_LOG_ID_BYTES] for store, stream in pairs})
