"""Brings the live log back: replays its segments into tails and finds where it ends.

- The last batch is read again from the device and written once more before anything is served:
  after a failed sync the page cache may show bytes that the disk never got.
- A torn tail was never acknowledged: it is cut off, counted and kept beside the log. The epoch
  grows with every opening, so its remains never pass for a record again.
- Damage costs the damaged records. It is reported with the streams it touches, and the log is read
  on behind it.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from syncline.errors import StoreFullError
from syncline.storage.base import Damage
from syncline.storage.files import Files
from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    KIND_MASK,
    QUOTA_MASK,
    RECORD_HEADER_BYTES,
    SEQUENCE,
    UNREAD_BITS,
    RecordKind,
    ack_rows,
    align,
    parse_batch_header,
    parse_cursors,
)
from syncline.storage.log.scan import (
    Chain,
    DamagedStretch,
    End,
    RawRecord,
    WholeBatch,
    batches,
    next_batch,
)
from syncline.storage.log.segments import Segments
from syncline.storage.log.streams import LENGTH_BITS, Tail
from syncline.values.ids import StreamId

_TORN_BYTES_KEPT: Final = 1 << 20


@dataclass(slots=True)
class Replay:
    """What the live log held."""

    chain: Chain
    end: int
    last_batch: int = 0
    last_batch_end: int = 0
    tails: dict[bytes, Tail] = field(default_factory=dict[bytes, Tail])
    # The batch before the first of each segment: where replay starts once older ones are sealed.
    chain_before: dict[int, Chain] = field(default_factory=dict[int, Chain])
    damage: list[Damage] = field(default_factory=list[Damage])
    torn_tail_count: int = 0
    record_count_in_last: int = 0
    stream_count_change: int = 0


def replay_log(
    files: Files,
    segments: Segments,
    oldest: int,
    chain: Chain,
    counted_to: int,
    progress: Callable[[int, int], None],
) -> Replay:
    """Read every segment from `oldest` on.

    `chain` is the batch before it. Creations and deletions behind `counted_to` change the number of
    streams. `progress` hears of segments read and segments in all.
    """
    while True:
        numbers = _segment_numbers(files, segments, oldest)
        with _no_collections():
            replay = _replay_segments(files, segments, numbers, oldest, chain, counted_to, progress)
        if _is_settled(segments, replay):
            return replay
        # The device holds less than the page cache showed. The last batch is gone from both now,
        # and nobody was told of it; read again without it.
        segments.forget_all()


@contextmanager
def _no_collections() -> Generator[None, None, None]:
    """Replay makes many objects and no rubbish: looking for some takes a fourth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _replay_segments(
    files: Files,
    segments: Segments,
    numbers: list[int],
    oldest: int,
    chain: Chain,
    counted_to: int,
    progress: Callable[[int, int], None],
) -> Replay:
    replay = Replay(chain, oldest * segments.segment_bytes)
    if not numbers or numbers[0] != oldest:
        replay.damage.append(Damage(segments.path(oldest), 0, "the oldest live segment is missing"))
    data = _read_segment(files, segments, numbers[0]) if numbers else b""
    for step, number in enumerate(numbers):
        progress(step, len(numbers))
        behind = numbers[step + 1] if step + 1 < len(numbers) else None
        data_behind = b"" if behind is None else _read_segment(files, segments, behind)
        first_behind = (
            None
            if behind is None
            else next_batch(data_behind, 0, behind * segments.segment_bytes, None, segments.tag)
        )
        replay.chain_before[number] = replay.chain
        replay.record_count_in_last = 0
        number_behind = first_behind.header.number if first_behind is not None else 0
        _replay_segment(replay, segments, number, data, counted_to, number_behind)
        if first_behind is None:
            if replay.torn_tail_count:
                _keep_torn(files, segments, number, data, replay.end)
            for unused in numbers[step + 1 :]:
                # Prepared for a batch that never came.
                segments.give_up(unused)
            break
        data = data_behind
    progress(len(numbers), len(numbers))
    return replay


def _read_segment(files: Files, segments: Segments, number: int) -> bytes:
    if not segments.is_open(number):
        segments.adopt(number, files.open(segments.path(number)))
    file = segments.file_for(number * segments.segment_bytes, "")
    data = file.read(0, segments.segment_bytes)
    if len(data) < segments.segment_bytes:
        # Cut off from outside: the missing end may be written to again.
        missing = bytes(segments.segment_bytes - len(data))
        file.write(len(data), [missing])
        data += missing
    return data


def _segment_numbers(files: Files, segments: Segments, oldest: int) -> list[int]:
    found: list[int] = []
    for name in files.list(segments.folder):
        stem, _, suffix = name.partition(".")
        if suffix != "wal" or not stem.isdigit():
            continue
        if int(stem) >= oldest:
            found.append(int(stem))
        else:
            segments.retired.append(f"{segments.folder}/{name}")
    return sorted(found)


def _replay_segment(
    replay: Replay,
    segments: Segments,
    number: int,
    data: bytes,
    counted_to: int,
    number_behind: int,
) -> None:
    start = number * segments.segment_bytes
    parts = batches(data, start, replay.chain, number_behind=number_behind, tag=segments.tag)
    for part in parts:
        match part:
            case WholeBatch(header=header, records=records):
                segments.note_epoch(header.position, header.epoch)
                replay.chain = part.chain
                replay.last_batch = header.position
                replay.last_batch_end = align(header.end)
                replay.record_count_in_last += len(records)
                _take_records(replay, records, data, start, counted_to, segments.path(number))
            case DamagedStretch():
                if part.records:
                    segments.note_epoch(part.start, part.epoch)
                _report_stretch(replay, part, start, segments.path(number))
                _take_records(replay, part.records, data, start, counted_to, segments.path(number))
            case End(position=position, is_torn=is_torn):
                replay.end = position
                replay.torn_tail_count += is_torn and not number_behind


def _report_stretch(replay: Replay, part: DamagedStretch, start: int, path: str) -> None:
    replay.damage.append(Damage(path, part.start - start, part.reason))
    for stream in part.suspects:
        replay.damage.append(
            Damage(path, part.start - start, "a record fails its checksum", StreamId(stream))
        )


def _take_records(
    replay: Replay,
    records: list[RawRecord],
    data: bytes,
    start: int,
    counted_to: int,
    path: str,
) -> None:
    """Bring tails up to date. This loop decides how long a restart takes (bench: restart)."""
    tails = replay.tails
    for position, kind, length, stream, last_unread, time_quota in records:
        record_kind = kind & KIND_MASK
        if record_kind == RecordKind.ACKNOWLEDGEMENTS:
            at = position - start + RECORD_HEADER_BYTES
            _take_acknowledgements(tails, data[at : at + length], position)
            continue
        tail = tails.get(stream)
        if tail is None:
            tail = tails[stream] = Tail()
        if record_kind <= RecordKind.QUOTA_MARKER:
            seq = last_unread >> UNREAD_BITS
            missing = tail.add_entry(seq, position << LENGTH_BITS | length)
            if missing:
                replay.damage.append(
                    Damage(
                        path,
                        position - start,
                        "entries before this one are missing",
                        StreamId(stream),
                        seq - missing,
                        missing,
                    )
                )
        else:
            at = position - start + RECORD_HEADER_BYTES
            _take_other(tail, record_kind, position, length, data[at : at + length])
            if position >= counted_to:
                if record_kind == RecordKind.CREATE:
                    replay.stream_count_change += 1
                elif record_kind == RecordKind.DELETE:
                    replay.stream_count_change -= 1
        tail.kind = kind
        tail.last_unread = last_unread
        tail.quota = time_quota & QUOTA_MASK
        tail.applied = position


def _take_acknowledgements(tails: dict[bytes, Tail], payload: bytes, position: int) -> None:
    for stream, last_seq, unread_count in ack_rows(payload):
        tail = tails.get(stream)
        if tail is None:
            tail = tails[stream] = Tail()
        tail.last_unread = last_seq << UNREAD_BITS | unread_count
        tail.applied = position


def _take_other(tail: Tail, record_kind: int, position: int, length: int, payload: bytes) -> None:
    match record_kind:
        case RecordKind.CREATE:
            tail.begin_anew()
            tail.born = position
            tail.is_deleted = False
        case RecordKind.DELETE:
            tail.begin_anew()
            tail.is_deleted = True
        case RecordKind.SNAPSHOT:
            tail.snapshot_place = position << LENGTH_BITS | length
        case RecordKind.CURSOR:
            (seq,) = SEQUENCE.unpack_from(payload)
            if tail.cursors is None:
                tail.cursors = {}
                tail.cursor_position = position
            tail.cursors[payload[SEQUENCE.size :]] = seq
        case RecordKind.DROP_CURSOR:
            if tail.cursors is not None:
                tail.cursors.pop(payload, None)
        case RecordKind.CURSORS:
            tail.cursors = parse_cursors(payload) or {}
            tail.cursor_position = position
        case _:
            pass


def _keep_torn(files: Files, segments: Segments, number: int, data: bytes, end: int) -> None:
    """Keep what was cut off beside the log, for whoever wants to look; not at any price."""
    offset = end - number * segments.segment_bytes
    header = parse_batch_header(data, offset, end)
    length = BATCH_HEADER_BYTES + (header.length if header is not None else 0)
    torn = files.open(f"{segments.folder}/torn-{end}.bin", create=True)
    try:
        torn.write(0, [data[offset : offset + min(length, _TORN_BYTES_KEPT)]])
    except StoreFullError:
        torn.truncate(0)
    finally:
        torn.close()


def _is_settled(segments: Segments, replay: Replay) -> bool:
    """Read the last batch from the device, and write it once more; False if it is not there."""
    if not replay.last_batch:
        return True
    file = segments.file_for(replay.last_batch, "")
    offset = replay.last_batch % segments.segment_bytes
    length = replay.last_batch_end - replay.last_batch
    cached = file.read(offset, length)
    file.forget_cached(offset, length)
    stored = file.read(offset, length)
    file.write(offset, [stored])
    file.sync()
    return stored == cached
