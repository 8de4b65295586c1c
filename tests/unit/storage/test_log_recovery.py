"""Replaying segments: what a torn end, a gap and a message made to look like a batch lead to."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.files import File
from syncline.storage.log import reading, recovery, tails
from syncline.storage.log import store as store_module
from syncline.storage.log.format import (
    BLOCK_BYTES,
    RecordKind,
    encode_batch_header,
    encode_record,
)
from syncline.storage.log.recovery import Replay, replay_log
from syncline.storage.log.scan import Chain, batches
from syncline.storage.log.segments import Segments
from syncline.storage.log.store import LogStore
from syncline.storage.log.streams import LENGTH_BITS, Tail
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import MIB, segment_bytes_min
from tests.log_files import SEGMENT_BYTES, SegmentBuilder, message, put, stream_id
from tests.unit.storage.test_log_adopting import check, made, opened, write


def test_a_torn_end_before_the_next_segment_stays_torn() -> None:
    stream = stream_id(1)
    files = SimulatedFiles()
    files.make_folder("/wal")
    torn = SegmentBuilder(5, first_batch=1)
    torn.add([message(stream, 1, b"one")])
    next_batch, previous_crc = torn.next_batch, torn.previous_crc
    places = torn.add([message(stream, 2, b"never acknowledged"), message(stream, 3, b"torn")])
    torn.data[places[1] - torn.start + 48] ^= 1
    behind = SegmentBuilder(6, first_batch=next_batch, previous_crc=previous_crc)
    (acknowledged,) = behind.add([message(stream, 2, b"acknowledged")], epoch=4)
    put(files, "/wal/000000000005.wal", bytes(torn.data))
    put(files, "/wal/000000000006.wal", bytes(behind.data))

    segments = Segments(files, "/wal", SEGMENT_BYTES, 5, 0)
    replay = replay_log(files, segments, 5, Chain(0, 0, 0), 0, lambda done, total: None)

    assert replay.damage == []
    tail = replay.tails.pop(stream)
    assert tail is not None
    positions = [place >> LENGTH_BITS for place in tail.positions]
    assert positions[1:] == [acknowledged]
    assert tail.log_next == 3


def _forged_batch(position: int, number: int, epoch: int, stream: bytes, tag: int) -> bytes:
    record_position = position + 48
    payload = b"nobody sent this"
    head, _ = encode_record(
        record_position, epoch ^ tag, RecordKind.MESSAGE, stream, 2, 2, 0, 0, payload
    )
    header, _ = encode_batch_header(epoch, number, position, 0, 1, [head, payload], 0, tag)
    return header + head + payload


@pytest.mark.parametrize(("knows_the_tag", "is_taken_in"), [(False, False), (True, True)])
def test_a_message_that_looks_like_a_batch_is_none(knows_the_tag: bool, is_taken_in: bool) -> None:
    # The last bytes of a segment may be remains of any message. Only the tag of the store tells a
    # batch from a message made to look like one; the second case shows that all else fits.
    files = SimulatedFiles()
    files.make_folder("/data")
    chance = random.Random(3)
    options = StoreOptions(segment_bytes=segment_bytes_min)

    def opened() -> LogStore:
        return LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)

    victim = StreamId(chance.randbytes(24))
    store = opened()
    store.create(victim, StreamKind.QUEUE, 0, 1)
    store.append(victim, b"sent", 1)
    commit(store)
    store.close()
    store_id = files.open("/data/FORMAT").read(0, 200).split()[-1]
    tag = int.from_bytes(bytes.fromhex(store_id.decode())[:4], "little") if knows_the_tag else 0
    offset = 4 * BLOCK_BYTES
    forged = _forged_batch(segment_bytes_min + offset, 9, 9, victim, tag)
    segment = files.open("/data/wal/000000000001.wal")
    segment.write(offset, [forged])
    segment.sync()
    segment.close()

    store = opened()
    found = [entry.payload for entry in store.read(victim, 1, 10, 1000)]
    assert (b"nobody sent this" in found) == is_taken_in
    assert found[0] == b"sent"


def _replayed(files: SimulatedFiles, segment_bytes: int) -> Replay:
    segments = Segments(files, "/wal", segment_bytes, 9, 0)
    replay = replay_log(files, segments, 5, Chain(0, 0, 0), 0, lambda done, total: None)
    segments.close()
    return replay


def test_records_behind_a_damaged_header_are_kept_however_far_behind() -> None:
    """Two batches at the end of a segment are damaged, the header of the second one with them."""
    size = 4 * MIB
    files = SimulatedFiles()
    files.make_folder("/wal")
    a, b = stream_id(1), stream_id(2)
    damaged = SegmentBuilder(5, first_batch=1, segment_bytes=size)
    damaged.add([message(a, 1, b"whole")])
    lost, _ = damaged.add([message(a, 2, b"lost"), message(a, 3, b"kept")])
    damaged.data[lost - damaged.start + 48] ^= 1
    # Far enough that a reader who believes the headers never sees it.
    damaged.end = 3 * MIB
    (kept,) = damaged.add([message(b, 1, b"behind a header that is none")])
    damaged.data[3 * MIB] ^= 1
    behind = SegmentBuilder(
        6, first_batch=damaged.next_batch, previous_crc=damaged.previous_crc, segment_bytes=size
    )
    behind.add([message(a, 4, b"goes on")])
    for segment in (damaged, behind):
        put(files, f"/wal/{segment.number:012d}.wal", bytes(segment.data))

    replay = _replayed(files, size)

    found = dict(replay.tails.items())
    assert [place >> LENGTH_BITS for place in found[b].positions] == [kept]
    assert found[a].log_next == 5
    gaps = [(d.stream, d.first_lost_seq, d.lost_count) for d in replay.damage if d.lost_count]
    assert gaps == [(a, 2, 1)]


@pytest.mark.parametrize(("is_torn", "kept_bytes"), [(False, 0), (True, 2 * MIB)])
def test_of_what_follows_whole_batches_only_what_others_reach_is_kept(
    monkeypatch: pytest.MonkeyPatch, is_torn: bool, kept_bytes: int
) -> None:
    size = 4 * MIB
    files = SimulatedFiles()
    files.make_folder("/wal")
    segment = SegmentBuilder(5, first_batch=1, segment_bytes=size)
    # Remains of an older segment are no batches of this one.
    older = SegmentBuilder(4, segment_bytes=size)
    older.end = 3 * MIB
    older.add([message(stream_id(1), 1, b"old")])
    segment.data[:] = older.data
    segment.add([message(stream_id(1), 1, b"x" * (MIB + 100))])
    segment.data[MIB] ^= is_torn
    put(files, "/wal/000000000005.wal", bytes(segment.data))
    lengths: list[int] = []

    def noted(data: bytes, *rest: object, **others: object) -> Iterator[object]:
        lengths.append(len(data))
        return batches(data, *rest, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "batches", noted)
    replay = _replayed(files, size)
    assert lengths == [kept_bytes]
    assert replay.torn_tail_count == is_torn
    assert replay.end == segment.start + (0 if is_torn else segment.end)


@pytest.mark.parametrize("seed", range(40))
def test_a_segment_says_the_same_through_windows_of_any_size(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Batches shorter and longer than a window, whole and damaged, and a torn end."""
    chance = random.Random(seed)
    files = SimulatedFiles()
    files.make_folder("/wal")
    stream, seq = stream_id(1), 0
    next_batch, previous_crc = 1, 0
    for number in (5, 6):
        segment = SegmentBuilder(
            number, first_batch=next_batch, previous_crc=previous_crc, segment_bytes=MIB
        )
        while segment.end < MIB - 200_000:
            records = []
            for _ in range(chance.randint(1, 3)):
                seq += 1
                records.append(message(stream, seq, bytes(chance.choice([10, 4_000, 50_000]))))
            segment.add(records)
        next_batch, previous_crc = segment.next_batch, segment.previous_crc
        for _ in range(chance.choice([0, 0, 1, 3])):
            segment.data[chance.randrange(segment.end)] ^= 1
        put(files, f"/wal/{number:012d}.wal", bytes(segment.data))

    def told(window_bytes: int) -> tuple[object, ...]:
        monkeypatch.setattr(reading, "_WINDOW_BYTES", window_bytes)
        replay = _replayed(files, MIB)
        tail = replay.tails.pop(stream)
        return (
            replay.chain,
            replay.end,
            replay.chain_before,
            replay.damage,
            replay.torn_tail_count,
            replay.record_count_in_last,
            tail and (tail.positions, tail.log_next, tail.last_unread),
        )

    whole = told(MIB)
    assert whole[-1]
    for window_bytes in (BLOCK_BYTES, 3 * BLOCK_BYTES, 25 * BLOCK_BYTES):
        assert told(window_bytes) == whole


def test_a_batch_that_holds_more_than_its_records_is_reported() -> None:
    """Its checksum is right, so somebody wrote it like that."""
    files = SimulatedFiles()
    files.make_folder("/wal")
    position = 5 * SEGMENT_BYTES
    stream = stream_id(1)
    head, _ = encode_record(position + 48, 3, RecordKind.MESSAGE, stream, 1, 1, 0, 0, b"one")
    pieces = [head, b"one", b"no record"]
    header, _ = encode_batch_header(3, 1, position, 0, 1, pieces, 0, 0)
    data = bytearray(SEGMENT_BYTES)
    whole = b"".join([header, *pieces])
    data[: len(whole)] = whole
    put(files, "/wal/000000000005.wal", bytes(data))

    replay = _replayed(files, SEGMENT_BYTES)

    assert [(damage.offset, "add up" in damage.reason) for damage in replay.damage] == [(48, True)]
    tail = replay.tails.pop(stream)
    assert tail is not None
    assert tail.log_next == 2


def test_cursors_of_a_replayed_log_outlive_its_segments() -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    files.sync_folder("/")
    document, queue = StreamId(stream_id(1)), StreamId(stream_id(2))

    def opened() -> LogStore:
        options = StoreOptions(segment_bytes=segment_bytes_min)
        chance = random.Random(3)
        return LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)

    store = opened()
    store.create(document, StreamKind.DOCUMENT, 0, 1)
    store.create(queue, StreamKind.QUEUE, 0, 1)
    store.append(document, b"one", 1)
    store.move_cursor(document, b"reader", 1)
    store.move_cursor(document, b"gone", 1)
    store.drop_cursor(document, b"gone")
    commit(store)
    first = store.describe()["checkpoint"]
    for _ in range(3):
        files = files.kill(random.Random(1))
        store = opened()
        # Nobody asks for the document, and the segment with its cursors is let go of.
        checkpoint = store.describe()["checkpoint"]
        while store.describe()["checkpoint"] == checkpoint:
            store.truncate_before(queue, store.append(queue, bytes(8_000), 1) + 1)
            commit(store)
            run_jobs(store)
    assert store.describe()["checkpoint"] > first
    store.close()
    store = opened()
    assert store.cursors(document) == {b"reader": 1}
    store.close()


def _store_with_streams(files: SimulatedFiles, count: int) -> list[StreamId]:
    """Killed, with so many streams of which its table knows nothing."""
    store = _opened(files)
    streams = [StreamId(stream_id(number)) for number in range(count)]
    for stream in streams:
        store.create(stream, StreamKind.QUEUE, 0, 1)
    commit(store)
    for stream in streams:
        store.append(stream, b"sent", 1)
    commit(store)
    return streams


def _opened(files: SimulatedFiles) -> LogStore:
    options = StoreOptions(segment_bytes=4 * MIB)
    return LogStore.open("/data", files, options, now_ms=1, random_bytes=random.Random(3).randbytes)


def test_a_stream_of_the_replayed_log_is_looked_at_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    streams = _store_with_streams(files, 100)
    made: list[Tail] = []

    class CountedTail(Tail):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(tails, "Tail", CountedTail)
    store = _opened(files.kill(random.Random(1)))
    assert made == []
    assert [entry.payload for entry in store.read(streams[7], 1, 10, 1000)] == [b"sent"]
    assert len(made) == 1
    assert sum(1 for _ in store.streams()) == 100


def test_upkeep_takes_replayed_streams_a_share_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_TAILS_AT_ONCE", 30)
    files = SimulatedFiles()
    files.make_folder("/data")
    _store_with_streams(files, 100)
    store = _opened(files.kill(random.Random(1)))
    left: list[int] = []
    for _ in range(4):
        store.take_job()
        left.append(len(store._residents.tails))  # pyright: ignore[reportPrivateUsage]
    assert left == [70, 40, 10, 0]


class _FillsUp(SimulatedFiles):
    """A disk that has no room for batches while `is_full`, though the file has its blocks."""

    is_full = False

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        file = super().open(path, create=create, writable=writable)
        if path.rpartition("/")[2][:12].isdigit():
            write = file.write

            def write_or_fail(
                offset: int, pieces: Sequence[bytes | bytearray | memoryview]
            ) -> None:
                if self.is_full:
                    raise StoreFullError(path)
                write(offset, pieces)

            file.write = write_or_fail  # type: ignore[method-assign]
        return file


def _write_carelessly(store: LogStore, queue: StreamId, payload: bytes) -> None:
    """As no program should: a batch counts as written though it is not."""
    store.append(queue, payload, 1)
    batch = store.take_batch()
    assert batch is not None
    with suppress(DeviceError):
        store.write_batch(batch)
    store.finish_batch(batch)


@pytest.mark.parametrize("goes_on", [False, True])
def test_who_went_on_though_the_disk_was_full_loses_that_and_nothing_else(goes_on: bool) -> None:
    filling = _FillsUp()
    files: SimulatedFiles = filling
    files.make_folder("/data")
    files.sync_folder("/")
    chance = random.Random(3)
    options = StoreOptions(segment_bytes=segment_bytes_min)

    def opened() -> LogStore:
        return LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)

    queue = StreamId(stream_id(1))
    store = opened()
    store.create(queue, StreamKind.QUEUE, 100, 1)
    store.append(queue, b"written", 1)
    commit(store)
    filling.is_full = True
    # Each but the first needs a segment of its own, which is there and stays empty.
    for _ in range(4):
        _write_carelessly(store, queue, bytes(segment_bytes_min // 2))
    filling.is_full = False
    if goes_on:
        _write_carelessly(store, queue, bytes(segment_bytes_min // 2))

    files = files.crash(random.Random(1))
    store = opened()
    assert [entry.payload for entry in store.read(queue, 1, 10, MIB)] == [b"written"]
    reasons = [damage.reason for damage in store.damage() if "never written" in damage.reason]
    assert len(reasons) == (1 if goes_on else 0)
    # What cannot be taken in is kept from being written over.
    assert any(name.startswith("unreached-") for name in files.list("/data/wal")) == goes_on
    store.append(queue, b"next", 1)
    commit(store)
    store.close()
    again = opened()
    assert [entry.payload for entry in again.read(queue, 1, 10, MIB)] == [b"written", b"next"]
    again.close()


def torn_end(files: SimulatedFiles, seed: int) -> tuple[SimulatedFiles, int]:
    """What a crash leaves that tore the last batch, and the position of that."""
    options = StoreOptions(segment_bytes=segment_bytes_min)
    chance = random.Random(seed)
    store = LogStore.open("/data", files, options, now_ms=1, random_bytes=chance.randbytes)
    store.create(StreamId(chance.randbytes(24)), StreamKind.QUEUE, 0, 1)
    commit(store)
    end = store.describe()["log_end"]
    store.create(StreamId(chance.randbytes(24)), StreamKind.QUEUE, 0, 1)
    commit(store)
    files = files.kill(chance)
    files.flip_bit(f"/data/wal/{end // segment_bytes_min:012d}.wal", end % segment_bytes_min + 60)
    return files, end


def test_what_the_last_crashes_tore_off_is_kept_and_no_more() -> None:
    files = SimulatedFiles()
    ends: list[int] = []
    for seed in range(12):
        files, end = torn_end(files, seed)
        ends.append(end)
    torn_end(files, 12)
    found = [name for name in files.list("/data/wal") if name.startswith("torn-")]
    assert sorted(found) == sorted(f"torn-{end}.bin" for end in ends[-8:])


def test_a_log_is_opened_though_there_is_no_room_for_what_a_crash_tore_off() -> None:
    files, _ = torn_end(SimulatedFiles(), 0)
    files.fail("create")
    torn_end(files, 1)
    assert files.calls["create"] == 1


def test_a_spare_that_has_another_name_is_not_written_to() -> None:
    files = SimulatedFiles()
    store = made(files)
    write(store, 3)
    files = files.kill(random.Random(0))
    files.link("/data/wal/000000000001.wal", "/data/wal/spare-1-9.wal")
    store = opened(files)
    write(store, 20)
    check(store)
