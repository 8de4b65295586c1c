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
from syncline.storage.files import File, Files
from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    align,
    parse_batch_header,
)
from syncline.storage.log.reading import ReadBatch, first_batch, leading_batches, read_used
from syncline.storage.log.scan import Chain, DamagedStretch, End, WholeBatch, batches
from syncline.storage.log.segments import Segments
from syncline.storage.log.tails import Tails
from syncline.values.ids import StreamId

_TORN_BYTES_KEPT: Final = 1 << 20


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
    if not _first_number(files, segments, number):
        segments.give_up(number)
        return
    path = segments.set_aside(number)
    replay.damage.append(Damage(path, 0, "what it holds follows on a batch that was never written"))


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
    file = _opened(files, segments, number)
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
    file = _opened(files, segments, number)
    start, size = number * segments.segment_bytes, segments.segment_bytes
    end = start
    for found in leading_batches(file, start, size, replay.chain, segments.tag):
        _replay_batch(replay, segments, found)
        end = align(found.batch.header.end)
    offset = end - start
    data = read_used(file, start, size, offset)
    rest = _parts(segments, data, end, replay.chain, number_behind)
    if len(data) < size - offset and any(isinstance(part, DamagedStretch) for part in rest):
        # Headers are not to be trusted here: every byte may be one of a record that can be saved.
        data = file.read(offset, size - offset)
        rest = _parts(segments, data, end, replay.chain, number_behind)
    for part in rest:
        match part:
            case WholeBatch():
                _replay_batch(replay, segments, ReadBatch(part, data, end))
            case DamagedStretch():
                if part.records:
                    segments.note_epoch(part.start, part.epoch)
                _report_stretch(replay, part, start, segments.path(number))
                for position, _, length, *_ in part.records:
                    at = position - end
                    behind = at + RECORD_HEADER_BYTES + length
                    replay.tails.take(data, at, behind, end)
            case End(position=position, is_torn=is_torn):
                replay.end = position
                if is_torn and not number_behind:
                    replay.torn_tail_count += 1
                    _keep_torn(files, segments, data[position - end :], position)


def _parts(
    segments: Segments, data: bytes, position: int, chain: Chain, number_behind: int
) -> list[WholeBatch | DamagedStretch | End]:
    return list(batches(data, position, chain, number_behind=number_behind, tag=segments.tag))


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

    It begins with `data`, at position `end`.
    """
    header = parse_batch_header(data, 0, end)
    length = BATCH_HEADER_BYTES + (header.length if header is not None else 0)
    torn = files.open(f"{segments.folder}/torn-{end}.bin", create=True)
    try:
        torn.write(0, [data[: min(length, _TORN_BYTES_KEPT)]])
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
