"""Which unsynced changes of a file reach the device when the power goes: drawn from one seed.

Five ways, since each finds other mistakes: nothing, everything, a prefix of the changes with the
last one torn, every sector as of its own moment, any subset of the changes with each torn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

SECTOR_BYTES = 512
# A device copies memory in words: a page that changes meanwhile is torn between them.
_WORD_BYTES = 8
_TORN_INSIDE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at an offset, by a write or through a map."""

    offset: int
    data: bytes
    is_mapped: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of size that brings no data."""

    size: int


Change = Write | Resize
# Is this sector of the change with this number on the device?
Survives = Callable[[int, int], bool]


def survivors(
    durable: bytes | bytearray,
    changes: Sequence[Change],
    random: Random,
    *,
    tears_words: bool = False,
) -> bytearray:
    """The bytes of the file after a power cut."""
    survives, size_moment = _draw(random, len(changes))
    content = bytearray(durable)
    size = len(content)
    for index, change in enumerate(changes):
        is_sized = index < size_moment
        match change:
            case Resize() if is_sized:
                size = change.size
                _resize(content, size)
            case Resize():
                pass
            case Write(offset=offset, data=data):
                end = offset + len(data)
                _resize(content, max(len(content), end))
                torn_share = _TORN_INSIDE_SHARE if tears_words and change.is_mapped else 0.0
                _write_some(content, index, change, survives, random, torn_share)
                if is_sized:
                    size = max(size, end)
    _resize(content, size)
    return content


def _draw(random: Random, count: int) -> tuple[Survives, int]:
    """Which sectors of which change survive, and how many changes the size has seen."""
    way = random.random()
    if way < 0.1:
        return _nothing, 0
    if way < 0.2:
        return _everything, count
    if way < 0.45:
        last = random.randrange(count)
        return _prefix(random, last), last + random.getrandbits(1)
    size_moment = random.choice((0, count, random.randint(0, count)))
    if way < 0.75:
        return _moments(random, count), size_moment
    return _subset(random), size_moment


def _nothing(_index: int, _sector: int) -> bool:
    return False


def _everything(_index: int, _sector: int) -> bool:
    return True


def _prefix(random: Random, last: int) -> Survives:
    def survives(index: int, _sector: int) -> bool:
        return index < last or (index == last and random.random() < 0.5)

    return survives


def _moments(random: Random, count: int) -> Survives:
    moments: dict[int, int] = {}

    def survives(index: int, sector: int) -> bool:
        moment = moments.get(sector)
        if moment is None:
            moment = moments[sector] = random.randint(0, count)
        return index < moment

    return survives


def _subset(random: Random) -> Survives:
    shares: dict[int, float] = {}

    def survives(index: int, _sector: int) -> bool:
        share = shares.get(index)
        if share is None:
            share = shares[index] = random.choice((0.0, 1.0, 0.5, 0.9))
        return random.random() < share

    return survives


def _write_some(
    content: bytearray,
    index: int,
    change: Write,
    survives: Survives,
    random: Random,
    torn_share: float,
) -> None:
    offset, data = change.offset, change.data
    end = offset + len(data)
    if survives is _everything:
        content[offset:end] = data
        return
    if survives is _nothing:
        return
    for sector in range(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
        if not survives(index, sector):
            continue
        start = max(offset, sector * SECTOR_BYTES)
        stop = min(end, (sector + 1) * SECTOR_BYTES)
        if torn_share and random.random() < torn_share:
            stop = min(stop, start + random.randrange(0, SECTOR_BYTES, _WORD_BYTES))
        content[start:stop] = data[start - offset : stop - offset]


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    elif size > len(content):
        content.extend(bytes(size - len(content)))
