"""Many streams in one call: heads read, entries let go of.

What `LogStore.read` and `LogStore.truncate_before` do, spelled out for the common case and with
everything at hand that stays the same from one stream to the next (bench: log). Whatever is not
common goes there.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from syncline.storage.base import Entry
from syncline.storage.log.format import (
    IS_BLOCKED,
    KIND_MASK,
    QUOTA_BITS,
    RECORD_HEADER_BYTES,
    RecordKind,
)
from syncline.storage.log.recent import RecentLog
from syncline.storage.log.streams import (
    LENGTH_BITS,
    LENGTH_MASK,
    SHORT_PLACE_COUNT,
    OpenStream,
)
from syncline.storage.log.tails import Tails
from syncline.values.ids import StreamId

# Kind byte and time of a record's header.
_KIND_OFFSET: Final = 7
_KIND_TIME: Final = struct.Struct("<B32xQ")
_unpack_kind_time = _KIND_TIME.unpack_from
_MESSAGE: Final = int(RecordKind.MESSAGE)
assert _KIND_OFFSET + _KIND_TIME.size == RECORD_HEADER_BYTES


def read_heads(
    streams: Iterable[StreamId],
    by_id: Mapping[bytes, OpenStream],
    recent: RecentLog,
    live_places: int,
    durable_places: int,
    read_head: Callable[[StreamId], Entry | None],
) -> list[Entry | None]:
    """The first entry of each; `read_head` is asked for what is not in memory."""
    get, memory, size = by_id.get, recent.memory, recent.size
    live_places = max(live_places, recent.start << LENGTH_BITS)
    heads: list[Entry | None] = []
    for stream in streams:
        opened = get(stream)
        if opened is not None and not opened.is_deleted and opened.positions:
            positions = opened.positions
            place = positions[0]
            seq = opened.next - len(positions)
            if seq == opened.first and live_places <= place < durable_places:
                start = (place >> LENGTH_BITS) % size
                end = start + RECORD_HEADER_BYTES + (place & LENGTH_MASK)
                if end <= size:
                    kind, time_quota = _unpack_kind_time(memory, start + _KIND_OFFSET)
                    if kind & KIND_MASK == _MESSAGE:
                        payload = memory[start + RECORD_HEADER_BYTES : end]
                        heads.append(Entry(seq, time_quota >> QUOTA_BITS, payload))
                        continue
        heads.append(read_head(stream))
    return heads


def unread_among(
    streams: Sequence[bytes],
    by_id: Mapping[bytes, OpenStream],
    tails: Tails,
    find: Callable[[bytes], OpenStream | None],
    with_entries: Callable[[Sequence[bytes]], list[bytes]],
) -> list[StreamId]:
    """Those that have entries, in the order of their ids; streams at rest stay where they are."""
    elsewhere = [stream for stream in streams if stream not in by_id]
    replayed = tails.among(elsewhere)
    at_rest = [stream for stream in elsewhere if stream not in replayed]
    unread: list[bytes] = []
    if len(at_rest) < len(streams):
        resting = set(at_rest)
        for stream in streams:
            opened = None if stream in resting else find(stream)
            if opened is not None and not opened.is_deleted and opened.first < opened.next:
                unread.append(stream)
    if at_rest:
        unread += with_entries(at_rest)
    return [StreamId(stream) for stream in sorted(unread)]


def truncate_many(
    wanted: Iterable[tuple[StreamId, int]],
    by_id: Mapping[bytes, OpenStream],
    live_places: int,
    deferred: dict[OpenStream, None],
    truncate: Callable[[StreamId, int], bool],
) -> int:
    """How many were let go of; `truncate` is asked where entries may be in runs."""
    get = by_id.get
    count = 0
    for stream, seq in wanted:
        opened = get(stream)
        if opened is not None and not opened.is_deleted:
            first, next_seq = opened.first, opened.next
            positions = opened.positions
            if (
                first < seq <= next_seq
                and len(positions) == next_seq - first
                and positions[0] >= live_places
            ):
                if not opened.has_deferred_ack:
                    opened.note_logged()
                    opened.has_deferred_ack = True
                    deferred[opened] = None
                opened.first = seq
                if seq == first + 1 and next_seq - first <= SHORT_PLACE_COUNT:
                    del positions[0]
                else:
                    opened.drop_places(seq - first)
                if seq == next_seq:
                    opened.flags &= ~IS_BLOCKED
                count += 1
                continue
        if not truncate(stream, seq):
            break
        count += 1
    return count
