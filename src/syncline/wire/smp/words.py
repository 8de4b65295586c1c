"""Which words a version knows, and how what follows a word is read.

Commands and messages have one shape:

    whole = word, or word SP parameters

Parameters are not separated, and nothing may be left over. What has no parameters is found whole in
one table and made once for all; of the rest the word is looked up. Each version has its own tables,
made at the start, so that reading asks for no version twice.
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from syncline.errors import MalformedMessageError
from syncline.wire.smp.primitives import Reader
from syncline.wire.smp.versions import EXTENDED, VERSION_MAX, VERSION_MIN

T = TypeVar("T")
# Given the version and the parameters.
Read: TypeAlias = Callable[[int, bytes], T]

ALWAYS: Final = VERSION_MIN
FOREVER: Final = EXTENDED + 1


class UnknownWordError(MalformedMessageError):
    """The version does not know the word, or is not spoken at all."""


class Bare(NamedTuple, Generic[T]):
    """A word that is all there is, in versions from `since` to before `until`."""

    word: bytes
    value: T
    since: int = ALWAYS
    until: int = FOREVER


class Full(NamedTuple, Generic[T]):
    """A word that has parameters, in versions from `since` on."""

    word: bytes
    read: Read[T]
    since: int = ALWAYS


class _Spoken(NamedTuple, Generic[T]):
    values: Mapping[bytes, T]
    reads: Mapping[bytes, Read[T]]


# No word that is all there is has more: a whole message need not be looked up to find that out.
_BARE_BYTES_MAX: Final = 8


class Vocabulary(Generic[T]):
    """All words of all versions, for one direction."""

    __slots__ = ("_spoken",)

    def __init__(self, bare: tuple[Bare[T], ...], full: tuple[Full[T], ...]) -> None:
        assert all(len(each.word) <= _BARE_BYTES_MAX for each in bare)
        self._spoken = {
            version: _Spoken(
                {each.word: each.value for each in bare if each.since <= version < each.until},
                {each.word: each.read for each in full if version >= each.since},
            )
            for version in (*range(VERSION_MIN, VERSION_MAX + 1), EXTENDED)
        }

    def read(self, version: int, data: bytes) -> T:
        """Raises UnknownWordError, or MalformedMessageError for what follows a known word."""
        spoken = self._spoken.get(version)
        if spoken is None:
            raise UnknownWordError(f"version {version} is not spoken")
        if len(data) <= _BARE_BYTES_MAX and (value := spoken.values.get(data)) is not None:
            return value
        word, space, parameters = data.partition(b" ")
        read = spoken.reads.get(word)
        if read is None:
            if word in spoken.values:
                raise MalformedMessageError("parameters follow where the message should end")
            raise UnknownWordError(f"version {version} does not know the word")
        if not space:
            raise MalformedMessageError("the message ends where its parameters should follow")
        return read(version, parameters)

    def knows(self, version: int, data: bytes) -> bool:
        """Whether the version has a form for a word as `data` begins with."""
        spoken = self._spoken.get(version)
        word = data.partition(b" ")[0]
        return spoken is not None and (word in spoken.values or word in spoken.reads)


def whole(read: Callable[[int, Reader], T]) -> Read[T]:
    """Reads parameters one by one and refuses what is left over."""

    def read_whole(version: int, parameters: bytes) -> T:
        reader = Reader(parameters)
        value = read(version, reader)
        reader.finish()
        return value

    return read_whole


def rest(make: Callable[[bytes], T]) -> Read[T]:
    """All parameters are one value."""

    def read_rest(_version: int, parameters: bytes) -> T:
        return make(parameters)

    return read_rest
