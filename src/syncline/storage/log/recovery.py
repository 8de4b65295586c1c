"""Brings the live log back: replays its segments into tails and finds where it ends.

- The last batch is read again from the device and written once more before anything is served:
  after a failed sync the page cache may show bytes that the disk never got.
- A torn tail was never acknowledged: it is cut off, counted and kept beside the log. The epoch
  grows with every opening, so its remains never pass for a record again.
- Blocks that the device cannot read are damage. If they are those of the last batch, that may have
  been acknowledged: it is no torn tail, and the log goes on behind it.
- Damage costs the damaged records. It is reported with the streams it touches, and the log is read
  on behind it.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.base import Damage
from syncline.storage.files import File, Files
from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    BLOCK_BYTES,
    RECORD_HEADER_BYTES,
    align,
    parse_batch_header,
)
from syncline.storage.log.reading import (
    Around,
    ReadBatch,
    first_batch,
    leading_batches,
    read_around,
    read_used,
)
from syncline.storage.log.scan import Chain, DamagedStretch, End, WholeBatch, batch_at, batches
from syncline.storage.log.segments import Segments
from syncline.storage.log.tails import Tails
from syncline.values.ids import StreamId

_TORN_BYTES_KEPT: Final = 1 << 20
_TORN_COUNT_KEPT: Final = 8
_TORN_PREFIX: Final = "torn-"
_TORN_SUFFIX: Final = ".bin"


@dataclass(slots=True)
class Replay:
    """What the live log held."""

    chain: Chain
    end: int
    tails: Tails
    last_batch: int = 0
    last_batch_end: int = 0
    # The batch before the first of each segment: where replay starts once older ones are sealed.
    chain_before: dict[int, Chain] = field(default_factory=dict[int, Chain])
    damage: list[Damage] = field(default_factory=list[Damage])
    torn_tail_count: int = 0
    record_count_in_last: int = 0


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
    tails = Tails(segments.segment_bytes, segments.path, counted_to)
    replay = Replay(chain, oldest * segments.segment_bytes, tails)
    if not numbers or numbers[0] != oldest:
        replay.damage.append(Damage(segments.path(oldest), 0, "the oldest live segment is missing"))
    for step, number in enumerate(numbers):
        progress(step, len(numbers))
        behind = numbers[step + 1] if step + 1 < len(numbers) else None
        number_behind = 0 if behind is None else _first_number(files, segments, behind)
        replay.chain_before[number] = replay.chain
        replay.record_count_in_last = 0
        _replay_segment(files, segments, number, replay, number_behind)
        if not number_behind:
            for beyond in numbers[step + 1 :]:
                _let_go_of(files, segments, beyond, replay)
            break
    tails.finish()
    if replay.damage:
        tails.report_gaps(replay.damage.append)
    progress(len(numbers), len(numbers))
    return replay


def _let_go_of(files: Files, segments: Segments, number: int, replay: Replay) -> None:
    """A segment behind one that holds nothing. Mostly it was prepared for a batch that never came.

    If somebody went on though a write had failed it may hold batches that follow on nothing. They
    cannot be taken in, and must not be written over.
    """
    file = Around(_opened(files, segments, number))
    found = first_batch(file, number * segments.segment_bytes, segments.segment_bytes, segments.tag)
    if found is None and not file.unreadable:
        segments.give_up(number)
        return
    path = segments.set_aside(number)
    reason = "what it holds follows on a batch that was never written"
    if found is None:
        reason = "its first batch cannot be read"
    replay.damage.append(Damage(path, 0, reason))


def _opened(files: Files, segments: Segments, number: int) -> File:
    if not segments.is_open(number):
        segments.adopt(number, files.open(segments.path(number)))
    file = segments.file_for(number * segments.segment_bytes, "")
    size = file.size()
    if size < segments.segment_bytes:
        # Cut off from outside: the missing end may be written to again.
        file.write(size, [bytes(segments.segment_bytes - size)])
    return file


def _first_number(files: Files, segments: Segments, number: int) -> int:
    """Of the first whole batch in a segment; 0 if there is none."""
    file = Around(_opened(files, segments, number))
    start = number * segments.segment_bytes
    found = first_batch(file, start, segments.segment_bytes, segments.tag)
    return found.header.number if found is not None else 0


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
    files: Files,
    segments: Segments,
    number: int,
    replay: Replay,
    number_behind: int,
) -> None:
    file = Around(_opened(files, segments, number))
    start, size = number * segments.segment_bytes, segments.segment_bytes
    end = start
    for found in leading_batches(file, start, size, replay.chain, segments.tag):
        _replay_batch(replay, segments, found)
        end = align(found.batch.header.end)
    offset = end - start
    data = read_used(file, start, size, offset)
    rest = _parts(segments, data, end, replay.chain, number_behind, file.unreadable)
    if len(data) < size - offset and any(isinstance(part, DamagedStretch) for part in rest):
        # Headers are not to be trusted here: every byte may be one of a record that can be saved.
        data = file.read(offset, size - offset)
        rest = _parts(segments, data, end, replay.chain, number_behind, file.unreadable)
    lost: DamagedStretch | None = None
    for part in rest:
        match part:
            case WholeBatch():
                _replay_batch(replay, segments, ReadBatch(part, data, end))
            case DamagedStretch():
                lost = part
                if part.records:
                    segments.note_epoch(part.start, part.epoch)
                _report_stretch(replay, part, start, segments.path(number))
                for position, _, length, *_ in part.records:
                    at = position - end
                    behind = at + RECORD_HEADER_BYTES + length
                    replay.tails.take(data, at, behind, end)
            case End(position=position, is_torn=is_torn):
                replay.end = position
                if lost is not None and lost.end == position and not number_behind:
                    replay.chain = _chain_behind(replay.chain, lost)
                if is_torn and not number_behind:
                    replay.torn_tail_count += 1
                    _keep_torn(files, segments, data[position - end :], position)


def _parts(
    segments: Segments,
    data: bytes,
    position: int,
    chain: Chain,
    number_behind: int,
    unreadable: set[int],
) -> list[WholeBatch | DamagedStretch | End]:
    segment_offset = position % segments.segment_bytes
    return list(
        batches(
            data,
            position,
            chain,
            number_behind=number_behind,
            tag=segments.tag,
            unreadable=[block - segment_offset for block in unreadable],
        )
    )


def _chain_behind(chain: Chain, lost: DamagedStretch) -> Chain:
    """What the next batch follows if the last ones cannot be read, however many those are.

    Should they be readable again some day, it must not have the number of one of them.
    """
    block_count = (lost.end - lost.start) // BLOCK_BYTES
    return Chain(chain.number + block_count, chain.crc, chain.epoch)


def _replay_batch(replay: Replay, segments: Segments, found: ReadBatch) -> None:
    header = found.batch.header
    segments.note_epoch(header.position, header.epoch)
    replay.chain = found.batch.chain
    replay.last_batch = header.position
    replay.last_batch_end = align(header.end)
    replay.record_count_in_last += header.record_count
    at = header.position - found.position + BATCH_HEADER_BYTES
    if not replay.tails.take(found.data, at, at + header.length, found.position):
        number, offset = divmod(header.position + BATCH_HEADER_BYTES, segments.segment_bytes)
        reason = "the records of a batch do not add up to its length"
        replay.damage.append(Damage(segments.path(number), offset, reason))


def _report_stretch(replay: Replay, part: DamagedStretch, start: int, path: str) -> None:
    replay.damage.append(Damage(path, part.start - start, part.reason))
    for stream in part.suspects:
        replay.damage.append(
            Damage(path, part.start - start, "a record fails its checksum", StreamId(stream))
        )


def _keep_torn(files: Files, segments: Segments, data: bytes, end: int) -> None:
    """Keep what was cut off beside the log, for whoever wants to look; not at any price.

    It begins with `data`, at position `end`. Of earlier crashes the last few are kept.
    """
    for name in _torn_names(files, segments)[: -(_TORN_COUNT_KEPT - 1)]:
        files.remove(f"{segments.folder}/{name}")
    header = parse_batch_header(data, 0, end)
    length = BATCH_HEADER_BYTES + (header.length if header is not None else 0)
    path = f"{segments.folder}/{_TORN_PREFIX}{end}{_TORN_SUFFIX}"
    try:
        torn = files.open(path, create=True)
    except StoreFullError:
        return
    try:
        torn.write(0, [data[: min(length, _TORN_BYTES_KEPT)]])
    except StoreFullError:
        torn.truncate(0)
    finally:
        torn.close()


def _torn_names(files: Files, segments: Segments) -> list[str]:
    """Oldest first."""
    found: list[tuple[int, str]] = []
    for name in files.list(segments.folder):
        position = name.removeprefix(_TORN_PREFIX).removesuffix(_TORN_SUFFIX)
        if name == f"{_TORN_PREFIX}{position}{_TORN_SUFFIX}" and position.isdigit():
            found.append((int(position), name))
    return [name for _, name in sorted(found)]


def _is_settled(segments: Segments, replay: Replay) -> bool:
    """Read the last batch from the device, and write it once more; False if it is not there."""
    if not replay.last_batch:
        return True
    file = segments.file_for(replay.last_batch, "")
    offset = replay.last_batch % segments.segment_bytes
    length = replay.last_batch_end - replay.last_batch
    cached = read_around(file, offset, length)
    file.forget_cached(offset, length)
    try:
        stored = file.read(offset, length)
    except DeviceError:
        if batch_at(cached, 0, replay.last_batch, None, segments.tag) is None:
            # It was whole when it was replayed: the next replay says what has become of it.
            return False
        # Whole in memory: written once more, it may be read again.
        stored = cached
    file.write(offset, [stored])
    file.sync()
    return stored == cached
