"""What two peers say to one another to find out how their sets of ids differ.

The *initiator* asks and learns both lists; the *responder* answers each question from its set as it
is then, and remembers nothing between them. Ids, hashes and cells are strings of bytes of equal
pieces, one after another; ids are in order. docs/formats/reconciliation.md has the bytes.
"""

from dataclasses import dataclass
from typing import Final

ID_BYTES: Final = 24
HASH_BYTES: Final = 6
SALT_BYTES: Final = 8
CELL_BYTES: Final = 9
FINGERPRINT_BYTES: Final = 5
DIGEST_BYTES: Final = 16

# In every opening: ids counted by the first bits of the id, and by the first bits of their hash.
OPENING_DEPTH: Final = 6
BUCKET_COUNT: Final = 320
# Counts of buckets are sent modulo this: differences between two sets are far smaller.
BUCKET_MODULUS: Final = 128

# Larger sets, and filters over more numbers, are not spoken of.
SET_COUNT_MAX: Final = (1 << 40) - 1
# What one question may ask for at most.
PART_COUNT_MAX: Final = 1 << 16
PLAIN_RANGE_COUNT_MAX: Final = 4_096
# More than the leaves of as many parts have, or can be read from the cells of a sketch.
HASH_COUNT_MAX: Final = 1 << 21
# What one answer tells of changes at most.
CHANGE_COUNT_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class SetState:
    """A set at one moment: `version` counts its changes; hashes are XXH3-128 of the ids."""

    version: int
    count: int
    xor128: bytes
    sum128: bytes

    def is_same_set(self, other: "SetState") -> bool:
        """Whatever the versions: each side counts its own."""
        return (self.count, self.xor128, self.sum128) == (other.count, other.xor128, other.sum128)


@dataclass(frozen=True, slots=True)
class SetHashes:
    """Of a set, by XXH3-128 of its ids. XOR cannot tell an id counted twice from none; sums can."""

    xor128: bytes
    sum128: bytes


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Ranges of ids that share their first `depth` bits, 0 to 64, with one of these, in order."""

    depth: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HashFilter:
    """Salted hashes scaled down to numbers below `universe`, in order, each once, as 64-bit words.

    Whatever is in the set passes; of the rest, as large a part as the filter is of its universe.
    """

    universe: int
    members: bytes

    @property
    def count(self) -> int:
        return len(self.members) // 8


# ---------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class Open:
    """Start, or start again. Without a salt the responder takes its own."""

    salt: bytes | None
    cell_count: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Take these cells of mine from yours and say what differs: `Found` or `TooFew`."""

    version: int
    salt: bytes
    cells: bytes


@dataclass(frozen=True, slots=True)
class Sift:
    """Send ids that do not pass my filter, a filter of the others, and cells of them: `Sifted`.

    No filter of mine: all pass. `universe` 0: none of yours is wanted.
    """

    version: int
    salt: bytes
    members: HashFilter | None
    universe: int
    cell_count: int


@dataclass(frozen=True, slots=True)
class CountParts:
    """Cut each range into 2^fan_bits parts and count the ids in them: `Counts`."""

    version: int
    ranges: Prefixes
    fan_bits: int


@dataclass(frozen=True, slots=True)
class Split:
    """The same with fingerprints, or the hashes of all ids where they are few: `Parts`."""

    version: int
    salt: bytes
    ranges: Prefixes
    fan_bits: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Whole ids for hashes: `Fetched`. They are looked for in these ranges, or everywhere."""

    version: int
    salt: bytes
    hashes: bytes
    ranges: Prefixes | None = None


@dataclass(frozen=True, slots=True)
class ListIds:
    """All ids in these ranges: `Listing`."""

    version: int
    ranges: Prefixes


@dataclass(frozen=True, slots=True)
class PlainRanges:
    """The plain algorithm: cut each range, ends included, into up to `fan` ranges: `PlainParts`.

    No range at all stands for everything.
    """

    version: int
    ranges: tuple[tuple[bytes, bytes], ...]
    fan: int


Request = Open | Compare | Sift | CountParts | Split | Fetch | ListIds | PlainRanges


# ----------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Opening:
    """The set, the salt of all that follows, the first cells, and counts to guess by."""

    state: SetState
    salt: bytes
    cells: bytes
    prefix_counts: tuple[int, ...]
    bucket_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Ids that only the responder has; hashes of what only the initiator has.

    The state, here and below, is None if the version is the one that was asked about.
    """

    state: SetState | None
    ids: bytes
    hashes: bytes


@dataclass(frozen=True, slots=True)
class TooFew:
    """The cells could not be read; about so many ids differ. 0: there is no telling."""

    state: SetState | None
    difference: int


@dataclass(frozen=True, slots=True)
class Sifted:
    state: SetState | None
    ids: bytes
    members: HashFilter | None
    cells: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    state: SetState | None
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Of a range: a fingerprint, or without one the hashes of its ids."""

    count: int
    fingerprint: bytes | None
    hashes: bytes = b""


@dataclass(frozen=True, slots=True)
class Parts:
    state: SetState | None
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One id that came or went since the version that was asked about."""

    is_added: bool
    id: bytes


@dataclass(frozen=True, slots=True)
class Fetched:
    """With the changes, in order, the answer holds for the newer state."""

    state: SetState | None
    ids: bytes
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    state: SetState | None
    ids: bytes


@dataclass(frozen=True, slots=True)
class PlainPart:
    """A single id has no end, and its hash says nothing that the id does not."""

    first: bytes
    last: bytes | None
    xor128: bytes


@dataclass(frozen=True, slots=True)
class PlainParts:
    """For each range that was asked for, its parts."""

    state: SetState | None
    ranges: tuple[tuple[PlainPart, ...], ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """The set has changed in a way that the question does not survive."""

    state: SetState


Answer = (
    Opening | Found | TooFew | Sifted | Counts | Parts | Fetched | Listing | PlainParts | Restart
)


# ----------------------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Difference:
    """Both lists, checked: what the initiator lacks and what only it has give the other's set."""

    state: SetState
    missing: bytes
    extra: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The lists could not be found; nothing is known. `reason` is for people."""

    reason: str


Result = Difference | Failure
