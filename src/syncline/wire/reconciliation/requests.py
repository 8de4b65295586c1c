"""Questions of reconciliation, field by field as docs/formats/reconciliation.md, "Requests"."""

from collections.abc import Iterator
from typing import Final, assert_never

from syncline.errors import MalformedMessageError
from syncline.values.reconciliation import (
    ID_BYTES,
    SALT_BYTES,
    Compare,
    CountParts,
    Fetch,
    ListIds,
    Open,
    PlainRanges,
    Request,
    Sift,
    Split,
)
from syncline.wire.reconciliation import fields
from syncline.wire.reconciliation.fields import Reader, number
from syncline.wire.reconciliation.runs import cut

OPEN: Final = 1
COMPARE: Final = 2
SIFT: Final = 3
COUNT_PARTS: Final = 4
SPLIT: Final = 5
FETCH: Final = 6
LIST_IDS: Final = 7
PLAIN_RANGES: Final = 8


def encode_request(request: Request) -> Iterator[bytes]:
    """Its parts."""
    return cut(*_encode(request))


def _encode(request: Request) -> tuple[int, bytes]:
    match request:
        case Open():
            salt = b"\0" if request.salt is None else b"\1" + request.salt
            return OPEN, salt + number(request.cell_count)
        case Compare():
            return COMPARE, number(request.version) + request.salt + fields.cells(request.cells)
        case Sift():
            return SIFT, b"".join(
                (
                    number(request.version),
                    request.salt,
                    fields.hash_filter(request.members),
                    number(request.universe),
                    number(request.cell_count),
                )
            )
        case CountParts():
            head = number(request.version) + bytes([request.fan_bits])
            return COUNT_PARTS, head + fields.prefixes(request.ranges)
        case Split():
            head = number(request.version) + request.salt + bytes([request.fan_bits])
            return SPLIT, head + fields.prefixes(request.ranges)
        case Fetch():
            within = b"\0" if request.ranges is None else b"\1" + fields.prefixes(request.ranges)
            head = number(request.version) + request.salt
            return FETCH, head + fields.hashes(request.hashes) + within
        case ListIds():
            return LIST_IDS, number(request.version) + fields.prefixes(request.ranges)
        case PlainRanges():
            bounds = b"".join(first + last for first, last in request.ranges)
            head = number(request.version) + number(request.fan)
            return PLAIN_RANGES, head + number(len(request.ranges)) + bounds
        case _:
            assert_never(request)


def decode_request(kind: int, body: bytes) -> Request:
    """Raises MalformedMessageError, LimitExceededError."""
    reader = Reader(body)
    request = _decode(kind, reader)
    reader.finish()
    return request


def _decode(kind: int, reader: Reader) -> Request:
    match kind:
        case 1:
            salt = reader.raw(SALT_BYTES) if reader.flag() else None
            return Open(salt, reader.number())
        case 2:
            version, salt = reader.number(), reader.raw(SALT_BYTES)
            cells = reader.cells()
            if not cells:
                raise MalformedMessageError("there are no cells")
            return Compare(version, salt, cells)
        case 3:
            version, salt = reader.number(), reader.raw(SALT_BYTES)
            members, universe = reader.hash_filter(), reader.set_count()
            return Sift(version, salt, members, universe, reader.number())
        case 4:
            version, fan_bits = reader.number(), _fan_bits(reader)
            return CountParts(version, reader.prefixes(), fan_bits)
        case 5:
            version, salt, fan_bits = reader.number(), reader.raw(SALT_BYTES), _fan_bits(reader)
            return Split(version, salt, reader.prefixes(), fan_bits)
        case 6:
            version, salt, hashes = reader.number(), reader.raw(SALT_BYTES), reader.hashes()
            return Fetch(version, salt, hashes, reader.prefixes() if reader.flag() else None)
        case 7:
            return ListIds(reader.number(), reader.prefixes())
        case 8:
            version, fan = reader.number(), reader.number()
            ranges = tuple(
                (reader.raw(ID_BYTES), reader.raw(ID_BYTES))
                for _ in range(reader.count(2 * ID_BYTES * 8))
            )
            # Ranges that overlap would make the responder read its set over and over.
            bounds = [b"", *(bound for pair in ranges for bound in pair)]
            if any(last < first for first, last in ranges) or any(
                bounds[place] <= bounds[place - 1] for place in range(3, len(bounds), 2)
            ):
                raise MalformedMessageError("ranges are out of order")
            return PlainRanges(version, ranges, fan)
        case _:
            raise MalformedMessageError(f"{kind} is no request")


def _fan_bits(reader: Reader) -> int:
    value = reader.byte()
    if value > 16:
        raise MalformedMessageError(f"a range is not cut into 2^{value} parts")
    return value
