"""The fields that messages of reconciliation are made of, written and read.

A number has 7 bits to a byte, the lowest first, 0x80 while more follow, without needless zeros.
What a peer wrote is checked here: order, counts against the bytes that are there, exact ends. So a
message, once read, holds nothing that could not have been meant.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.kernels import ranges, rice
from syncline.values.reconciliation import (
    BUCKET_COUNT,
    BUCKET_MODULUS,
    CELL_BYTES,
    DIGEST_BYTES,
    HASH_BYTES,
    HASH_COUNT_MAX,
    ID_BYTES,
    PART_COUNT_MAX,
    SET_COUNT_MAX,
    HashFilter,
    Prefixes,
    SetState,
)

NUMBER_MAX: Final = (1 << 64) - 1
# Of ids, hashes and the like in one message.
PIECE_COUNT_MAX: Final = 1 << 26
_NUMBER_BYTES_MAX: Final = 10
_TAIL_BYTES: Final = ID_BYTES - 8
_BUCKET_BITS: Final = 7
_RAW_BUCKETS: Final = 255

Words = npt.NDArray[np.uint64]


# ----------------------------------------------------------------------------------------- writing


def number(value: int) -> bytes:
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{value} has no 64 bits")
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def state(value: SetState | None) -> bytes:
    if value is None:
        return b"\0"
    return b"\1" + number(value.version) + number(value.count) + value.xor128 + value.sum128


def ids(data: bytes) -> bytes:
    """Ids in order: gaps between their first eight bytes, and the rest of each as it is."""
    rows = np.frombuffer(data, np.uint8).reshape(-1, ID_BYTES)
    return number(len(rows)) + _gaps(ranges.keys(rows)) + rows[:, 8:].tobytes()


def hashes(data: bytes) -> bytes:
    """Hashes in order."""
    words = _hash_words(data)
    return number(len(words)) + _gaps(words)


def cells(data: bytes) -> bytes:
    return number(len(data) // CELL_BYTES) + data


def prefixes(value: Prefixes) -> bytes:
    words = np.array(value.values, np.uint64)
    return bytes([value.depth]) + number(len(words)) + _gaps(words)


def hash_filter(value: HashFilter | None) -> bytes:
    """A universe of 0 is no filter."""
    if value is None:
        return number(0)
    members = np.frombuffer(value.members, "<u8").astype(np.uint64)
    return number(value.universe) + number(len(members)) + _gaps(members)


def counts(values: tuple[int, ...]) -> bytes:
    """Counts of about the same size, as distances from their mean."""
    mean = sum(values) // max(1, len(values))
    far = np.array([_zigzag(value - mean) for value in values], np.uint64)
    return number(len(values)) + number(mean) + rice.pack(far)


def bucket_counts(values: tuple[int, ...]) -> bytes:
    """Remainders: as distances around the circle from a common centre, or as they are."""
    if not values:
        return b""
    numbers = np.array(values, np.int64)
    angles = numbers * (2 * np.pi / BUCKET_MODULUS)
    angle = np.arctan2(np.sin(angles).sum(), np.cos(angles).sum())
    centre = round(float(angle) * BUCKET_MODULUS / (2 * np.pi)) % BUCKET_MODULUS
    half = BUCKET_MODULUS // 2
    distances = (numbers - centre + half) % BUCKET_MODULUS - half
    coded = rice.pack(_zigzags(distances))
    raw = np.unpackbits(numbers.astype(np.uint8)[:, None], axis=1)[:, 8 - _BUCKET_BITS :]
    packed = np.packbits(raw).tobytes()
    return bytes([centre]) + coded if len(coded) < len(packed) else bytes([_RAW_BUCKETS]) + packed


def _gaps(words: Words) -> bytes:
    return rice.pack(np.diff(words, prepend=np.uint64(0))) if len(words) else b""


def _hash_words(data: bytes) -> Words:
    raw = np.zeros((len(data) // HASH_BYTES, 8), np.uint8)
    raw[:, 8 - HASH_BYTES :] = np.frombuffer(data, np.uint8).reshape(-1, HASH_BYTES)
    return raw.view(">u8").reshape(-1).astype(np.uint64)


def _zigzag(value: int) -> int:
    return value * 2 if value >= 0 else -value * 2 - 1


def _zigzags(values: npt.NDArray[np.int64]) -> Words:
    return np.where(values >= 0, values * 2, -values * 2 - 1).astype(np.uint64)


# ----------------------------------------------------------------------------------------- reading


class Reader:
    """Takes fields from the front; every method raises MalformedMessageError.

    Those of which a message has lists raise LimitExceededError: of what is packed into a bit or two
    each, far more than anybody means would fit, and take hundreds of times as much memory.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def byte(self) -> int:
        return self.raw(1)[0]

    def raw(self, size: int) -> bytes:
        if len(self._data) < size:
            raise MalformedMessageError(f"{size} bytes are announced, {len(self._data)} are there")
        found = bytes(self._data[:size])
        self._data = self._data[size:]
        return found

    def rest(self) -> bytes:
        return self.raw(len(self._data))

    def flag(self) -> bool:
        value = self.byte()
        if value > 1:
            raise MalformedMessageError(f"{value} is neither 0 nor 1")
        return value == 1

    def number(self) -> int:
        value = 0
        for place in range(_NUMBER_BYTES_MAX):
            byte = self.byte()
            value |= (byte & 127) << 7 * place
            if byte < 128:
                if (byte == 0 and place) or value > NUMBER_MAX:
                    break
                return value
        raise MalformedMessageError("a number has needless zeros or more than 64 bits")

    def count(self, each_bits_min: int, what: str = "", count_max: int = NUMBER_MAX) -> int:
        """How many of something follow, each of at least so many bits: no more than fit."""
        value = self.number()
        if value > count_max:
            raise LimitExceededError(what, value, count_max)
        if value > PIECE_COUNT_MAX or value * each_bits_min > len(self._data) * 8:
            raise MalformedMessageError(f"{value} pieces do not fit what is left of the message")
        return value

    def set_count(self) -> int:
        """How large a set or a universe is."""
        value = self.number()
        if value > SET_COUNT_MAX:
            raise MalformedMessageError(f"{value} is too large a set")
        return value

    def state(self) -> SetState | None:
        if not self.flag():
            return None
        version, count = self.number(), self.set_count()
        return SetState(version, count, self.raw(DIGEST_BYTES), self.raw(DIGEST_BYTES))

    def known_state(self) -> SetState:
        found = self.state()
        if found is None:
            raise MalformedMessageError("the state of the set is missing")
        return found

    def ids(self) -> bytes:
        count = self.count(_TAIL_BYTES * 8 + 1)
        heads = self._ascending(count, NUMBER_MAX)
        rows = np.empty((count, ID_BYTES), np.uint8)
        rows[:, :8] = heads.astype(">u8").view(np.uint8).reshape(-1, 8)
        tails = np.frombuffer(self.raw(count * _TAIL_BYTES), np.uint8)
        rows[:, 8:] = tails.reshape(-1, _TAIL_BYTES)
        if not ranges.are_sorted(rows):
            raise MalformedMessageError("ids are out of order or come twice")
        return rows.tobytes()

    def hashes(self) -> bytes:
        count = self.count(1, "the hashes of a message", HASH_COUNT_MAX)
        words = self._ascending(count, (1 << HASH_BYTES * 8) - 1)
        raw = words.astype(">u8").view(np.uint8).reshape(-1, 8)
        return raw[:, 8 - HASH_BYTES :].tobytes()

    def cells(self) -> bytes:
        return self.raw(self.count(CELL_BYTES * 8) * CELL_BYTES)

    def prefixes(self) -> Prefixes:
        depth = self.byte()
        if depth > 64:
            raise MalformedMessageError(f"{depth} is no depth of a prefix")
        count = self.count(1, "the ranges of a message", PART_COUNT_MAX)
        words = self._ascending(count, (1 << depth) - 1)
        if not len(words):
            raise MalformedMessageError("there are no ranges")
        _check_distinct(words)
        return Prefixes(depth, tuple(words.tolist()))

    def hash_filter(self) -> HashFilter | None:
        universe = self.set_count()
        if not universe:
            return None
        words = self._ascending(self.count(1), universe - 1)
        _check_distinct(words)
        return HashFilter(universe, words.astype("<u8").tobytes())

    def counts(self) -> tuple[int, ...]:
        count = self.count(1, "the counts of a message", PART_COUNT_MAX)
        mean = self.set_count()
        far = self._rice(count).tolist()
        values = tuple(
            mean + (value // 2 if value % 2 == 0 else -(value // 2) - 1) for value in far
        )
        if any(not 0 <= value <= SET_COUNT_MAX for value in values):
            raise MalformedMessageError("a count is negative or too large")
        return values

    def bucket_counts(self) -> tuple[int, ...]:
        centre = self.byte()
        if centre == _RAW_BUCKETS:
            packed = np.frombuffer(self.raw(BUCKET_COUNT * _BUCKET_BITS // 8), np.uint8)
            raw = np.zeros((BUCKET_COUNT, 8), np.uint8)
            raw[:, 8 - _BUCKET_BITS :] = np.unpackbits(packed).reshape(-1, _BUCKET_BITS)
            return tuple(np.packbits(raw, axis=1).reshape(-1).tolist())
        far = self._rice(BUCKET_COUNT)
        if centre >= BUCKET_MODULUS or int(far.max()) >= BUCKET_MODULUS:
            raise MalformedMessageError("the count of a bucket is too large")
        halves = (far >> np.uint64(1)).astype(np.int64)
        distances = np.where(far % np.uint64(2) == 0, halves, -halves - 1)
        return tuple(((distances + centre) % BUCKET_MODULUS).tolist())

    def finish(self) -> None:
        if len(self._data):
            raise MalformedMessageError(f"{len(self._data)} bytes follow the end of a message")

    def _rice(self, count: int) -> Words:
        try:
            words, used = rice.unpack(self._data, count)
        except rice.RiceError as error:
            raise MalformedMessageError(f"numbers cannot be read: {error}") from error
        self._data = self._data[used:]
        return words

    def _ascending(self, count: int, largest: int) -> Words:
        words = np.cumsum(self._rice(count), dtype=np.uint64)
        # A sum that passed 64 bits is smaller than the one before it.
        if count and (bool((words[1:] < words[:-1]).any()) or int(words[-1]) > largest):
            raise MalformedMessageError("a number is larger than it may be")
        return words


def _check_distinct(words: Words) -> None:
    if bool((words[1:] == words[:-1]).any()):
        raise MalformedMessageError("a number comes twice")
