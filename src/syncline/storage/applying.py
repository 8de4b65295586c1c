"""Stages records on a store: the one place where a step's writes meet a backend."""

from typing import assert_never

from syncline.storage.base import Store
from syncline.values.records import (
    AppendEntry,
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    Record,
    TruncateStream,
)


def stage(store: Store, record: Record) -> int | None:
    """Stage `record`; return the sequence an entry got, None for everything else.

    Raises what the store raises; then nothing of this record was staged.
    """
    match record:
        case AppendEntry(stream=stream, payload=payload, now_ms=now_ms):
            return store.append(stream, payload, now_ms)
        case TruncateStream(stream=stream, before_seq=before_seq):
            store.truncate_before(stream, before_seq)
        case CreateStream(stream=stream, kind=kind, quota=quota, now_ms=now_ms):
            store.create(stream, kind, quota, now_ms)
        case DeleteStream(stream=stream):
            store.delete(stream)
        case PutSnapshot(stream=stream, up_to_seq=up_to_seq, payload=payload, now_ms=now_ms):
            store.put_snapshot(stream, up_to_seq, payload, now_ms)
        case MoveCursor(stream=stream, name=name, seq=seq):
            store.move_cursor(stream, name, seq)
        case DropCursor(stream=stream, name=name):
            store.drop_cursor(stream, name)
        case _:
            assert_never(record)
    return None
