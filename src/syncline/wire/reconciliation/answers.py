"""Answers of reconciliation, field by field as docs/formats/reconciliation.md, "Answers"."""

from collections.abc import Iterator
from typing import Final, assert_never

import numpy as np

from syncline.errors import MalformedMessageError
from syncline.values.reconciliation import (
    CHANGE_COUNT_MAX,
    DIGEST_BYTES,
    FINGERPRINT_BYTES,
    HASH_BYTES,
    ID_BYTES,
    SALT_BYTES,
    Answer,
    Change,
    Counts,
    Fetched,
    Found,
    Listing,
    Opening,
    Part,
    Parts,
    PlainPart,
    PlainParts,
    Restart,
    Sifted,
    TooFew,
)
from syncline.wire.reconciliation import fields
from syncline.wire.reconciliation.fields import Reader, number
from syncline.wire.reconciliation.runs import cut

OPENING: Final = 65
FOUND: Final = 66
TOO_FEW: Final = 67
SIFTED: Final = 68
COUNTS: Final = 69
PARTS: Final = 70
FETCHED: Final = 71
LISTING: Final = 72
PLAIN_PARTS: Final = 73
RESTART: Final = 74


def encode_answer(answer: Answer) -> Iterator[bytes]:
    """Its parts."""
    return cut(*_encode(answer))


def _encode(answer: Answer) -> tuple[int, bytes]:
    state = fields.state(answer.state)
    match answer:
        case Opening():
            return OPENING, _opening(answer)
        case Found():
            return FOUND, state + fields.ids(answer.ids) + fields.hashes(answer.hashes)
        case TooFew():
            return TOO_FEW, state + number(answer.difference)
        case Sifted():
            members = fields.hash_filter(answer.members)
            return SIFTED, state + fields.ids(answer.ids) + members + fields.cells(answer.cells)
        case Counts():
            return COUNTS, state + fields.counts(answer.counts)
        case Parts():
            return PARTS, state + _parts(answer.parts)
        case Fetched():
            changes = b"".join(bytes([change.is_added]) + change.id for change in answer.changes)
            count = number(len(answer.changes))
            return FETCHED, state + fields.ids(answer.ids) + count + changes
        case Listing():
            return LISTING, state + fields.ids(answer.ids)
        case PlainParts():
            ranges = b"".join(map(_plain_parts, answer.ranges))
            return PLAIN_PARTS, state + number(len(answer.ranges)) + ranges
        case Restart():
            return RESTART, state
        case _:
            assert_never(answer)


def _opening(answer: Opening) -> bytes:
    head = fields.state(answer.state) + answer.salt + fields.cells(answer.cells)
    if not answer.cells:
        return head
    return head + fields.counts(answer.prefix_counts) + fields.bucket_counts(answer.bucket_counts)


def _parts(parts: tuple[Part, ...]) -> bytes:
    """All counts, a bit for each whether it has a fingerprint, then fingerprints or hashes."""
    has_fingerprint = np.array([part.fingerprint is not None for part in parts], np.bool_)
    bodies = b"".join(
        part.hashes if part.fingerprint is None else part.fingerprint for part in parts
    )
    counts = fields.counts(tuple(part.count for part in parts))
    return counts + np.packbits(has_fingerprint).tobytes() + bodies


def _plain_parts(parts: tuple[PlainPart, ...]) -> bytes:
    found = [number(len(parts))]
    for part in parts:
        end = b"\0" if part.last is None else b"\1" + part.last
        found += part.first, end, part.xor128
    return b"".join(found)


def decode_answer(kind: int, body: bytes) -> Answer:
    """Raises MalformedMessageError, LimitExceededError."""
    reader = Reader(body)
    answer = _decode(kind, reader)
    reader.finish()
    return answer


def _decode(kind: int, reader: Reader) -> Answer:
    match kind:
        case 65:
            return _decode_opening(reader)
        case 66:
            return Found(reader.state(), reader.ids(), reader.hashes())
        case 67:
            return TooFew(reader.state(), reader.number())
        case 68:
            return Sifted(reader.state(), reader.ids(), reader.hash_filter(), reader.cells())
        case 69:
            return Counts(reader.state(), reader.counts())
        case 70:
            return Parts(reader.state(), _decode_parts(reader))
        case 71:
            state, ids = reader.state(), reader.ids()
            count = reader.count((1 + ID_BYTES) * 8, "the changes of a set", CHANGE_COUNT_MAX)
            changes = tuple(Change(reader.flag(), reader.raw(ID_BYTES)) for _ in range(count))
            return Fetched(state, ids, changes)
        case 72:
            return Listing(reader.state(), reader.ids())
        case 73:
            state, count = reader.state(), reader.count(8)
            return PlainParts(state, tuple(_decode_plain(reader) for _ in range(count)))
        case 74:
            return Restart(reader.known_state())
        case _:
            raise MalformedMessageError(f"{kind} is no answer")


def _decode_opening(reader: Reader) -> Opening:
    state, salt, cells = reader.known_state(), reader.raw(SALT_BYTES), reader.cells()
    if not cells:
        return Opening(state, salt, b"", (), ())
    return Opening(state, salt, cells, reader.counts(), reader.bucket_counts())


def _decode_parts(reader: Reader) -> tuple[Part, ...]:
    counts = reader.counts()
    flags = np.unpackbits(np.frombuffer(reader.raw((len(counts) + 7) // 8), np.uint8))
    if flags[len(counts) :].any():
        raise MalformedMessageError("the last byte is not filled up with zeros")
    return tuple(
        Part(count, reader.raw(FINGERPRINT_BYTES))
        if has_fingerprint
        else Part(count, None, reader.raw(count * HASH_BYTES))
        for count, has_fingerprint in zip(counts, flags[: len(counts)].tolist(), strict=True)
    )


def _decode_plain(reader: Reader) -> tuple[PlainPart, ...]:
    parts: list[PlainPart] = []
    before = b""
    for _ in range(reader.count((ID_BYTES + 1 + DIGEST_BYTES) * 8)):
        first = reader.raw(ID_BYTES)
        last = reader.raw(ID_BYTES) if reader.flag() else None
        if first <= before or (last is not None and last <= first):
            raise MalformedMessageError("ranges are out of order")
        before = last or first
        parts.append(PlainPart(first, last, reader.raw(DIGEST_BYTES)))
    return tuple(parts)
