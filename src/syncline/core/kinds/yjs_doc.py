"""A document of the CRDT library that is given nothing but what fits it.

The library holds back an update whose predecessors it has not seen, and merges it with those that
come later. Where two of them tell different things of the same clocks, which no honest client does,
that has taken the whole process down. So this document holds back nothing: it says what an update
waits for, and whoever asks keeps the update until then. For the same reason only those updates are
merged before they are applied that follow one another without overlap.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pycrdt

from syncline.errors import ProtocolError
from syncline.wire.lib0 import var_uint
from syncline.wire.yjs_extent import Extent, extent_of, fitting_part, typed_on

# A client and the clock that it must have reached.
Awaited = tuple[int, int]

_NEVER: Final = (0, 1 << 62)

# Updates that are merged before the document takes them in as one, at a quarter of the price of
# each by itself. More gain nothing, and the memory for what is taken in at once grows with its
# square.
_TOGETHER: Final = 32


class FoldingError(Exception):
    """The CRDT library cannot do with these updates what it was asked for."""


@contextmanager
def library() -> Generator[None]:
    """Whatever the CRDT library raises within, its panics too, becomes a FoldingError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise FoldingError(str(error)) from error
    except BaseException as error:
        # A panic is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise FoldingError(f"the CRDT library panicked: {error}") from error


@dataclass(slots=True)
class Rest:
    """What was not taken in: what came too early, with what it waits for, and what never fits."""

    early: dict[bytes, Awaited] = field(default_factory=dict[bytes, Awaited])
    unfoldable: list[bytes] = field(default_factory=list[bytes])


class FittingDoc:
    """See the module. Raises FoldingError if the state it is made of cannot be read."""

    __slots__ = ("_doc", "_group", "_heads", "_is_typed")

    def __init__(self, state: bytes) -> None:
        self._doc: pycrdt.Doc[Any]
        # The next clock of each client.
        self._heads: dict[int, int]
        self._read(state)
        # Follow one another, and are counted in the heads already.
        self._group: list[bytes] = []
        # Whether they bring nothing but typed text.
        self._is_typed = True

    def state_vector(self) -> bytes:
        return self._doc.get_state()

    def update_since(self, state_vector: bytes | None = None) -> bytes:
        """Raises FoldingError."""
        with library():
            return self._doc.get_update(state_vector)

    def take_in(self, updates: Iterable[bytes], early: dict[bytes, Awaited]) -> Rest:
        """Take in these, and whatever of the `early` ones fits then."""
        rest = Rest(early=dict(early))
        self._take_all(updates, rest)
        while ready := [each for each, awaited in rest.early.items() if self._has(awaited)]:
            for each in ready:
                del rest.early[each]
            self._take_all(ready, rest)
        return rest

    def _has(self, awaited: Awaited) -> bool:
        client, clock = awaited
        return self._heads.get(client, 0) >= clock

    def _take_all(self, updates: Iterable[bytes], rest: Rest) -> None:
        for update in updates:
            typed = typed_on(update, self._heads)
            if typed is not None:
                client, self._heads[client] = typed
                self._group.append(update)
            else:
                self._look_at(update, rest)
            if len(self._group) == _TOGETHER:
                self._take_group(rest)
        self._take_group(rest)

    def _look_at(self, update: bytes, rest: Rest) -> None:
        try:
            extent = extent_of(update)
        except ProtocolError:
            # Stored before updates were looked at as closely, or damaged.
            if _is_update(update):
                rest.early[update] = _NEVER
            else:
                rest.unfoldable.append(update)
            return
        if extent.missing(self._heads) is None and extent.follows(self._heads):
            self._group.append(update)
            self._heads.update(extent.ends)
            self._is_typed = self._is_typed and not extent.ends
        else:
            self._take_group(rest)
            self._take(update, extent, rest)

    def _take_group(self, rest: Rest) -> None:
        group, self._group = self._group, []
        is_typed, self._is_typed = self._is_typed, True
        if not group:
            return
        try:
            with library():
                together = group[0] if len(group) == 1 else pycrdt.merge_updates(*group)
            is_whole = self._apply(together)
        except FoldingError:
            is_whole = False
        if not (is_whole and is_typed):
            # Some made-up contents are taken in only in part, without a word.
            self._heads = pairs(self._doc.get_state())
        if not is_whole:
            # It is for one of them: taking the others twice is as good as once.
            for update in group:
                self._take(update, extent_of(update), rest)

    def _take(self, update: bytes, extent: Extent, rest: Rest) -> None:
        awaited = extent.missing(self._heads)
        if awaited is not None:
            rest.early[update] = awaited
            # A client that waits for something itself sends all that it has as one.
            update = fitting_part(update, self._heads)
        try:
            is_whole = self._apply(update)
        except FoldingError:
            # It passed every check and cannot be folded; without it the document is whole.
            if awaited is None:
                rest.unfoldable.append(update)
            is_whole = True
        self._heads = pairs(self._doc.get_state())
        if not is_whole and awaited is None:
            rest.early[update] = self._next_chance(extent)

    def _next_chance(self, extent: Extent) -> Awaited:
        """For what the library did not take in though it seemed to fit."""
        for client, end in extent.ends.items():
            head = self._heads.get(client, 0)
            if head < end:
                return client, head + 1
        return _NEVER

    def _apply(self, update: bytes) -> bool:
        """Whether all of it was taken in. What was not, the document forgets.

        Raises FoldingError.
        """
        try:
            with library():
                self._doc.apply_update(update)
                held_back = pycrdt.get_update(update, self._doc.get_state())
        except FoldingError:
            self._forget_held_back()
            raise
        if held_back[0]:
            self._forget_held_back()
        return not held_back[0]

    def _forget_held_back(self) -> None:
        with suppress(FoldingError), library():
            self._read(self._doc.get_update())

    def _read(self, state: bytes) -> None:
        doc: pycrdt.Doc[Any] = pycrdt.Doc()
        with library():
            doc.apply_update(state)
        self._doc = doc
        self._heads = pairs(doc.get_state())


def _is_update(update: bytes) -> bool:
    try:
        with library():
            pycrdt.get_state(update)
    except FoldingError:
        return False
    return True


def without_conflicts(base: bytes, updates: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """What of these can be merged with `base`: no two that tell of the same clocks.

    What was there before is taken off; what overlaps behind a gap is left out altogether, and so
    is what cannot be read. Each comes with what it is a part of. Raises FoldingError.
    """
    with library():
        heads = pairs(pycrdt.get_state(base))
    behind_gaps: dict[int, list[tuple[int, int]]] = {}
    kept: list[tuple[bytes, bytes]] = []
    for update in updates:
        try:
            part, extent = update, extent_of(update)
            if any(begin < heads.get(client, 0) for client, begin in extent.begins.items()):
                with library():
                    part = pycrdt.get_update(update, _state_vector(heads))
                extent = extent_of(part)
        except (FoldingError, ProtocolError):
            continue
        ranges = [(client, begin, extent.ends[client]) for client, begin in extent.begins.items()]
        if any(
            begin < other_end and other_begin < end
            for client, begin, end in ranges
            for other_begin, other_end in behind_gaps.get(client, ())
        ):
            continue
        kept.append((part, update))
        for client, begin, end in ranges:
            if begin == heads.get(client, 0):
                heads[client] = end
            else:
                behind_gaps.setdefault(client, []).append((begin, end))
    return kept


def _state_vector(heads: Mapping[int, int]) -> bytes:
    numbers = (len(heads), *chain.from_iterable(heads.items()))
    return b"".join(map(var_uint, numbers))


def pairs(state_vector: bytes) -> dict[int, int]:
    """The next clock of each client."""
    numbers = _varints(state_vector)
    count = next(numbers)
    return {next(numbers): next(numbers) for _ in range(count)}


def _varints(data: bytes) -> Iterator[int]:
    """Of bytes that the CRDT library wrote itself."""
    value, shift = 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            yield value
            value, shift = 0, 0
