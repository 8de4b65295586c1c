"""Replaying segments: what a torn end, a gap and a message made to look like a batch lead to."""

import random

import pytest

from syncline.storage.base import StreamKind, commit
from syncline.storage.log.format import (
    BLOCK_BYTES,
    RecordKind,
    encode_batch_header,
    encode_record,
)
from syncline.storage.log.recovery import replay_log
from syncline.storage.log.scan import Chain
from syncline.storage.log.segments import Segments
from syncline.storage.log.store import LogStore
from syncline.storage.log.streams import LENGTH_BITS
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min
from tests.log_files import SEGMENT_BYTES, SegmentBuilder, message, put, stream_id


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
    positions = [place >> LENGTH_BITS for place in replay.tails[stream].positions]
    assert positions[1:] == [acknowledged]
    assert replay.tails[stream].log_next == 3


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
