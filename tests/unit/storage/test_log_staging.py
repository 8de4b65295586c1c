"""Batches of the log as they are built: `append_many` makes the bytes that `append` makes."""

from random import Random

from syncline.storage.log.format import BATCH_HEADER_BYTES, parse_record
from syncline.storage.log.recovery import Replay
from syncline.storage.log.scan import Chain
from syncline.storage.log.segments import Segments
from syncline.storage.log.staging import StagedBatch, Stager
from syncline.storage.log.streams import LENGTH_BITS, OpenStream
from syncline.storage.log.tails import Tails
from syncline.testing.files import SimulatedFiles

SEGMENT_BYTES = 96 * 1024
EPOCH, TAG, NOW_MS = 3, 0xC0FFEE, 1_700_000_000_000


def stager_at(end: int) -> Stager:
    """A log that ends at `end`, in a segment that is begun."""
    files = SimulatedFiles()
    files.make_folder("wal")
    segments = Segments(files, "wal", SEGMENT_BYTES, EPOCH, TAG)
    number = end // SEGMENT_BYTES
    segments.adopt(number, files.open(segments.path(number), create=True))
    replay = Replay(Chain(1, 1, EPOCH), end, Tails(SEGMENT_BYTES, segments.path))
    return Stager(segments, replay, lambda: "spare", NOW_MS)


def streams(count: int) -> dict[bytes, OpenStream]:
    found = {bytes([number]) * 24: OpenStream(bytes([number]) * 24, -1) for number in range(count)}
    for number, opened in enumerate(found.values()):
        opened.first, opened.next, opened.quota = 5, 5 + number, number * 100
    return found


def batches_of(stager: Stager) -> list[StagedBatch]:
    found: list[StagedBatch] = []
    while (batch := stager.take(must_acknowledge=True)) is not None:
        found.append(batch)
    return found


def test_many_at_once_have_the_bytes_of_one_by_one() -> None:
    # The middle of a segment and of a batch is where positions grow past 32 bits.
    end = (1 << 32) - 8 * 4096
    random = Random(1)
    ids = sorted(streams(8))
    messages = [
        (random.choice(ids), random.randbytes(random.choice([0, 7, 900, 9_000]))) for _ in range(60)
    ]
    one_by_one, at_once = stager_at(end), stager_at(end)
    opened = streams(8)
    seqs = [one_by_one.append(opened[stream], 1, body, NOW_MS) for stream, body in messages]
    opened_at_once = streams(8)
    # In three goes: a batch is gone on with.
    found = [
        seq
        for part in (messages[:5], messages[5:6], messages[6:])
        for seq in at_once.append_many(part, NOW_MS, opened_at_once, lambda _: None, 1 << 20)
    ]

    assert found == seqs
    expected, made = batches_of(one_by_one), batches_of(at_once)
    assert [b"".join(batch.pieces) for batch in made] == [b"".join(b.pieces) for b in expected]
    assert [batch.record_count for batch in made] == [batch.record_count for batch in expected]
    assert any(batch.position < 1 << 32 < batch.end for batch in made)
    for stream, other in opened_at_once.items():
        assert other.positions == opened[stream].positions
        assert other.staged_to == opened[stream].staged_to


def test_each_record_passes_its_own_check_on_either_side_of_32_bits() -> None:
    end = (1 << 32) - 4 * 4096
    stager, opened = stager_at(end), streams(2)
    messages = [(stream, b"x" * 1_500) for stream in opened] * 10
    stager.append_many(messages, NOW_MS, opened, lambda _: None, 1 << 20)
    (batch,) = batches_of(stager)

    data = b"".join(batch.pieces)
    places = sorted(place for each in opened.values() for place in each.positions)
    assert len(places) == len(messages)
    for place in places:
        position = place >> LENGTH_BITS
        record = parse_record(
            data,
            position - batch.position,
            BATCH_HEADER_BYTES + batch.length,
            position,
            EPOCH ^ TAG,
        )
        assert record is not None
        assert record.payload == b"x" * 1_500
    assert places[0] >> LENGTH_BITS < 1 << 32 < places[-1] >> LENGTH_BITS


def test_acknowledgements_go_out_when_a_segment_begins() -> None:
    """Or the sealing of those before it would copy what nobody wants any more."""
    stager, opened = stager_at(SEGMENT_BYTES), streams(200)
    for each in opened.values():
        stager.defer(each)
        each.move_first(each.next)
    writer = next(iter(opened.values()))

    def deferred_after_append(size: int) -> int:
        stager.append(writer, 1, bytes(size), NOW_MS)
        batch = stager.take(must_acknowledge=False)
        assert batch is not None
        stager.finish(batch)
        return stager.deferred_count

    # Padding takes some; a new segment takes all.
    assert 0 < deferred_after_append(SEGMENT_BYTES // 2) < 199
    assert deferred_after_append(SEGMENT_BYTES // 2) == 0
