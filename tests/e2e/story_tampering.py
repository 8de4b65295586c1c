"""A history with something taken out of it: what an audit of it must notice.

Every row of a log is written again, through the store, but for some events. The copy is a whole
log: no checksum, no sequence and no position in it is wrong.
"""

from collections.abc import Callable
from pathlib import Path

from syncline.pipeline.sources.folders import Tail
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.storage.log.format import RecordKind
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.values.events import NO_STREAM, Event, encode_event
from syncline.values.ids import StreamId
from tests.pipeline.log_rows import COMPARED, Row
from tests.pipeline.test_log_source import rows_read

_WORD = (1 << 64) - 1
_IS_DOCUMENT = 0x80


class LogRow:
    """A row by its columns."""

    def __init__(self, row: Row) -> None:
        self._row = dict(zip(COMPARED, row, strict=True))

    def __getitem__(self, name: str) -> int:
        value: int = self._row[name]
        return value

    @property
    def stream(self) -> StreamId:
        return StreamId(self._row["stream"] or NO_STREAM)

    @property
    def body(self) -> bytes:
        return bytes(self._row["body"] or b"")

    @property
    def event(self) -> Event:
        session, first, detail = (
            self._row[name] & _WORD for name in ("session", "first", "detail")
        )
        last = self._row["seq"] & _WORD
        return Event(
            self["event"], self["time_ms"], bytes(self.stream), session, first, last, detail
        )


def rows_of(folder: Path) -> list[LogRow]:
    """Of a router that is stopped, in the order in which things happened."""
    rows = rows_read(str(folder), tail=Tail.STOPPED)
    return [LogRow(row) for row in sorted(rows, key=lambda row: row[:2])]


def copy_without(folder: Path, target: Path, is_left_out: Callable[[Event], bool]) -> None:
    """The log of `folder` once more, in `target`, without some of its events."""
    rows = rows_of(folder)
    store = LogStore.open(
        str(target),
        DiskFiles(),
        StoreOptions(is_durable=False),
        now_ms=rows[0]["time_ms"],
        random_bytes=lambda count: bytes(range(count)),
    )
    for row in rows:
        _write(store, row, is_left_out)
        # One by one: what shares a batch may change places.
        commit(store)
    store.close()


def _write(store: LogStore, row: LogRow, is_left_out: Callable[[Event], bool]) -> None:
    stream, time_ms = row.stream, row["time_ms"]
    match row["kind"]:
        case RecordKind.EVENTS:
            if not is_left_out(row.event):
                event = row.event
                store.note_event(encode_event(event.kind, event.time_ms, *event[2:]))
        case RecordKind.CREATE:
            is_document = row["flags"] & _IS_DOCUMENT
            kind = StreamKind.DOCUMENT if is_document else StreamKind.QUEUE
            store.create(stream, kind, row["quota"], time_ms)
        case RecordKind.MESSAGE:
            assert store.append(stream, row.body, time_ms) == row["seq"]
        case RecordKind.ACKNOWLEDGEMENTS:
            store.truncate_before(stream, row["seq"] + 1)
        case RecordKind.SNAPSHOT:
            store.put_snapshot(stream, row["seq"], row.body, time_ms)
        case other:
            raise AssertionError(f"a record of kind {other} in a workload")
