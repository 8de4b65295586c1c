"""Messages of reconciliation keep their meaning on the wire, and what is no message is refused."""

from random import Random

import pytest

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.kernels import rice
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.values.reconciliation import (
    BUCKET_COUNT,
    CHANGE_COUNT_MAX,
    Answer,
    Change,
    Compare,
    CountParts,
    Counts,
    Fetch,
    Fetched,
    Found,
    HashFilter,
    ListIds,
    Listing,
    Open,
    Opening,
    Part,
    Parts,
    PlainPart,
    PlainParts,
    PlainRanges,
    Prefixes,
    Request,
    Restart,
    SetState,
    Sift,
    Sifted,
    Split,
    TooFew,
)
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.fields import PIECE_COUNT_MAX, Reader, number
from syncline.wire.reconciliation.requests import decode_request, encode_request
from syncline.wire.reconciliation.runs import PART_BYTES_MAX, Joiner, cut
from tests.reconciliation import joined, random_ids

RANDOM = Random(7)
SALT = RANDOM.randbytes(8)
STATE = SetState(12, 1_000_000, RANDOM.randbytes(16), RANDOM.randbytes(16))
IDS = b"".join(sorted(random_ids(RANDOM, 700)))
ONE_ID = IDS[:24]
HASHES = b"".join(sorted(RANDOM.randbytes(6) for _ in range(9)))
CELLS = RANDOM.randbytes(9 * 5)
FILTER = HashFilter(1000, b"".join(n.to_bytes(8, "little") for n in (0, 5, 6, 999)))
PREFIXES = Prefixes(10, (0, 3, 1023))
BUCKETS = tuple(RANDOM.randrange(128) for _ in range(BUCKET_COUNT))
NEAR_BUCKETS = tuple((126 + RANDOM.randrange(5)) % 128 for _ in range(BUCKET_COUNT))
COUNTS = tuple(15_600 + RANDOM.randrange(200) for _ in range(64))

REQUESTS: list[Request] = [
    Open(None, 8),
    Open(SALT, 0),
    Compare(3, SALT, CELLS),
    Sift(3, SALT, None, 0, 0),
    Sift(3, SALT, FILTER, 77, 12),
    CountParts(2**64 - 1, PREFIXES, 8),
    Split(0, SALT, Prefixes(64, (2**64 - 1,)), 0),
    Fetch(9, SALT, HASHES),
    Fetch(9, SALT, b"", PREFIXES),
    ListIds(9, Prefixes(0, (0,))),
    PlainRanges(9, (), 239),
    PlainRanges(9, ((IDS[:24], IDS[24:48]), (IDS[72:96], IDS[72:96])), 5),
]
ANSWERS: list[Answer] = [
    Opening(STATE, SALT, CELLS, COUNTS, BUCKETS),
    Opening(STATE, SALT, CELLS, (0,) * 63 + (10**9,), NEAR_BUCKETS),
    Opening(STATE, SALT, b"", (), ()),
    Found(None, IDS, HASHES),
    Found(STATE, b"", b""),
    TooFew(None, 77),
    Sifted(STATE, IDS, FILTER, CELLS),
    Sifted(None, b"", None, b""),
    Counts(None, COUNTS),
    Parts(STATE, (Part(3, bytes(5)), Part(0, None), Part(1, None, HASHES[:6]))),
    Fetched(STATE, ONE_ID, (Change(True, ONE_ID), Change(False, IDS[24:48]))),
    Listing(None, IDS),
    PlainParts(
        STATE,
        ((), (PlainPart(ONE_ID, None, bytes(16)), PlainPart(IDS[24:48], IDS[48:72], SALT * 2))),
    ),
    Restart(STATE),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda value: type(value).__name__)
def test_a_request_survives_its_bytes(request_: Request) -> None:
    assert decode_request(*joined(encode_request(request_))) == request_


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda value: type(value).__name__)
def test_an_answer_survives_its_bytes(answer: Answer) -> None:
    assert decode_answer(*joined(encode_answer(answer))) == answer


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda value: type(value).__name__)
def test_a_request_that_is_cut_short_or_goes_on_is_refused(request_: Request) -> None:
    kind, body = joined(encode_request(request_))
    for wrong in [body[:end] for end in range(len(body))] + [body + b"\0"]:
        with pytest.raises(MalformedMessageError):
            decode_request(kind, wrong)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda value: type(value).__name__)
def test_an_answer_that_is_cut_short_or_goes_on_is_refused(answer: Answer) -> None:
    kind, body = joined(encode_answer(answer))
    ends = range(len(body)) if len(body) < 300 else range(0, len(body), 97)
    for wrong in [body[:end] for end in ends] + [body + b"\0"]:
        with pytest.raises(MalformedMessageError):
            decode_answer(kind, wrong)


@pytest.mark.parametrize("kind", [0, 9, 64, 75, 255])
def test_unknown_kinds_are_refused(kind: int) -> None:
    with pytest.raises(MalformedMessageError, match="no request"):
        decode_request(kind, b"")
    with pytest.raises(MalformedMessageError, match="no answer"):
        decode_answer(kind, b"")


def test_ids_out_of_order_are_refused() -> None:
    same_head = bytes(8)
    twice = (same_head + b"b" * 16) + (same_head + b"a" * 16)
    kind, body = joined(encode_answer(Listing(None, twice)))
    with pytest.raises(MalformedMessageError, match="out of order"):
        decode_answer(kind, body)
    kind, body = joined(encode_answer(Listing(None, ONE_ID * 2)))
    with pytest.raises(MalformedMessageError, match="twice"):
        decode_answer(kind, body)


def test_numbers_of_a_filter_lie_in_its_universe() -> None:
    too_large = HashFilter(999, FILTER.members)
    kind, body = joined(encode_request(Sift(3, SALT, too_large, 0, 0)))
    with pytest.raises(MalformedMessageError, match="larger"):
        decode_request(kind, body)


def test_prefixes_are_of_their_depth_and_come_once() -> None:
    for wrong in (Prefixes(3, (8,)), Prefixes(3, (1, 1)), Prefixes(3, ())):
        kind, body = joined(encode_request(ListIds(0, wrong)))
        with pytest.raises(MalformedMessageError):
            decode_request(kind, body)


def test_plain_ranges_do_not_overlap() -> None:
    # Or the responder would read its set over and over for one small request.
    whole = (bytes(24), b"\xff" * 24)
    kind, body = joined(encode_request(PlainRanges(0, (whole, whole), 239)))
    with pytest.raises(MalformedMessageError, match="order"):
        decode_request(kind, body)
    kind, body = joined(encode_request(PlainRanges(0, ((whole[1], whole[0]),), 239)))
    with pytest.raises(MalformedMessageError, match="order"):
        decode_request(kind, body)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x00", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"]
)
def test_numbers_have_one_form_and_64_bits(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        Reader(data).number()


@pytest.mark.parametrize("value", [0, 1, 127, 128, 2**32, 2**64 - 1])
def test_numbers_survive(value: int) -> None:
    assert Reader(number(value)).number() == value


def test_more_pieces_than_fit_are_not_made_room_for() -> None:
    with pytest.raises(MalformedMessageError, match="fit"):
        Reader(number(2**40) + bytes(100)).ids()
    too_many = number(PIECE_COUNT_MAX + 1) + bytes(PIECE_COUNT_MAX // 8 + 8)
    with pytest.raises(MalformedMessageError, match="fit"):
        Reader(number(2**39) + too_many).hash_filter()


def test_an_opening_that_fills_a_block_is_one_part() -> None:
    opening = Opening(STATE, SALT, RANDOM.randbytes(9 * 1_696), COUNTS, BUCKETS)
    assert len(list(encode_answer(opening))) == 1


# ------------------------------------------------------------------------------------------- parts


def test_a_long_message_is_a_numbered_run() -> None:
    body = RANDOM.randbytes(3 * PART_BYTES_MAX)
    parts = list(cut(5, body))
    assert len(parts) == 4
    assert max(map(len, parts)) <= PART_BYTES_MAX
    assert joined(parts) == (5, body)


@pytest.mark.parametrize("order", [(0, 2), (1,), (0, 0), (0, 1, 2, 1)])
def test_parts_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    parts = list(cut(5, bytes(3 * PART_BYTES_MAX)))
    joiner = Joiner(1 << 20)
    for place in order[:-1]:
        joiner.add(parts[place])
    with pytest.raises(MalformedMessageError, match="order"):
        joiner.add(parts[order[-1]])


def test_a_part_of_another_message_is_refused() -> None:
    joiner = Joiner(1 << 20)
    joiner.add(next(cut(5, bytes(40_000))))
    with pytest.raises(MalformedMessageError, match="order"):
        joiner.add(list(cut(6, bytes(40_000)))[1])


def test_a_message_larger_than_allowed_is_refused_before_it_is_whole() -> None:
    joiner = Joiner(20_000)
    parts = cut(5, bytes(100_000))
    joiner.add(next(parts))
    with pytest.raises(LimitExceededError, match="a message"):
        joiner.add(next(parts))


@pytest.mark.parametrize(
    "part", [b"", b"\x05", b"\x05\x00\x00", b"\x05\x00\x02abc", b"\x05" + number(0) + number(2**20)]
)
def test_what_is_no_part_is_refused(part: bytes) -> None:
    with pytest.raises((MalformedMessageError, LimitExceededError)):
        Joiner(1 << 20).add(part)


# Packed with parameter 0: a one bit is a zero.
MANY = 2_500_000
PACKED = number(MANY) + b"\0" + b"\xff" * (MANY // 8)
CHANGES = number(CHANGE_COUNT_MAX + 1) + (b"\1" + ONE_ID) * (CHANGE_COUNT_MAX + 1)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (6, number(0) + SALT + PACKED + b"\0"),
        (7, number(0) + b"\x40" + PACKED),
        (66, b"\0" + number(0) + PACKED),
        (69, b"\0" + number(MANY) + number(0) + PACKED[len(number(MANY)) :]),
        (70, b"\0" + number(MANY) + number(0) + PACKED[len(number(MANY)) :]),
        (71, b"\0" + number(0) + CHANGES),
    ],
)
def test_more_than_anybody_means_is_refused_before_it_is_unpacked(
    kind: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = rice.unpack

    def checked(data: memoryview, count: int) -> object:
        assert count < MANY, "a few hundred kilobytes become a hundred megabytes"
        return unpack(data, count)

    monkeypatch.setattr(rice, "unpack", checked)
    with pytest.raises(LimitExceededError):
        (decode_request if kind < 65 else decode_answer)(kind, body)


def test_a_part_larger_than_a_block_is_refused() -> None:
    with pytest.raises(LimitExceededError, match="a part"):
        Joiner(1 << 20).add(b"\x05\x00\x01" + bytes(PART_BYTES_MAX))


def test_a_joiner_takes_one_message_after_another() -> None:
    joiner = Joiner(1 << 20)
    assert joiner.add(next(cut(5, b"first"))) == (5, b"first")
    assert joiner.add(next(cut(6, b""))) == (6, b"")


def test_cells_beyond_the_limit_still_parse_and_are_refused_by_the_responder() -> None:
    many = Compare(0, SALT, bytes(9 * (CELL_COUNT_MAX + 1)))
    assert decode_request(*joined(encode_request(many))) == many
