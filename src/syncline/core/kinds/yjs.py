"""Yjs documents: updates are relayed as they came and folded later, when a state is asked for.

Folding goes through a `Doc`, which merges and throws away what was deleted. A `Doc` forgets updates
whose predecessors it has not seen when it is written out; such *early* updates are therefore kept
beside it until they fit. State, as stored:

    MessagePack array: the merged update, then each early update as it came

The library does not take back everything that it wrote. What it writes is read again before it
takes the place of the updates that it was made of; if it cannot be, these stay beside it as early
ones do. So a state is never worse than the updates that led to it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import pycrdt

from syncline.core.kinds.yjs_doc import (
    Awaited,
    FittingDoc,
    FoldingError,
    Rest,
    library,
    pairs,
    without_conflicts,
)
from syncline.errors import (
    CorruptionError,
    InvalidMutationError,
    LimitExceededError,
    ProtocolError,
)
from syncline.values import limits
from syncline.wire.yjs_updates import nested_type_count, nested_type_count_max

_EMPTY = b"\x00\x00"
_KNOWS_NOTHING = b"\x00"

# What a shared type in another takes at least.
_TYPE_BYTES_MIN: Final = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class YjsFolding:
    """See the module."""

    __slots__ = (
        "_counted",
        "_doc",
        "_early",
        "_folded_count",
        "_is_stuck",
        "_merged",
        "_newer",
        "_newer_bytes",
        "_state_vector",
        "_type_count",
        "_unfoldable_count",
        "_unshown",
    )

    def __init__(self, state: bytes = b"") -> None:
        # The second: what came since the first was written out, or was early then. Bounded by
        # whoever takes snapshots.
        self._merged, *self._newer = _decode(state) if state else [_EMPTY]
        self._newer_bytes = sum(map(len, self._newer))
        # So many of them were given to the document.
        self._folded_count = 0
        # Those that it could not take in yet.
        self._early: dict[bytes, Awaited] = {}
        # With them the document cannot be written out so that it can be read again.
        self._is_stuck = False
        self._unfoldable_count = 0
        # Those of the early ones that no update for subscribers can hold.
        self._unshown: set[bytes] = set()
        # Both only while somebody is at work; the vector outlives the document.
        self._doc: FittingDoc | None = None
        # Shared types that lie in others, or more; None until somebody wants to know.
        self._type_count: int | None = None
        # The state in which they were counted one by one.
        self._counted = b""
        self._state_vector: bytes | None = None

    def check(self) -> None:
        if self._merged == _EMPTY:
            return
        if self._newer:
            # Whether any of them fits nowhere, it takes the document to tell.
            self._folded()
            return
        try:
            with library():
                # Without a document: many are opened for readers who only need what is stored.
                pycrdt.get_state(self._merged)
        except FoldingError as error:
            raise _unreadable() from error

    def prepare(self, body: bytes, value: object = None) -> bytes:
        """`value`: anything, if it is known beyond doubt that this is an update."""
        if value is not None:
            return body
        try:
            with library():
                # Decodes the whole update, at a tenth of the price of applying it.
                pycrdt.get_state(body)
        except FoldingError as error:
            raise InvalidMutationError("a mutation of a Yjs document is a Yjs update") from error
        return body

    def admit(self, body: bytes) -> None:
        """Shared types are counted: to delete one takes a stack for all that are in it."""
        count_max = limits.document_type_count_max
        if (self.byte_count + len(body)) // _TYPE_BYTES_MIN <= count_max:
            return
        count = nested_type_count(body)
        if not count:
            return
        if self._type_count is None:
            self._type_count = self._types(nested_type_count_max)
        if self._type_count + count > count_max and self._counted is not self._merged:
            # Takes long, so once for each state.
            self._counted = self._merged
            with suppress(ProtocolError):
                self._type_count = self._types(nested_type_count)
        if self._type_count + count > count_max:
            reason = "the number of shared types in others, in a document"
            raise LimitExceededError(reason, self._type_count + count, count_max)
        self._type_count += count

    def _types(self, count: Callable[[bytes], int]) -> int:
        return sum(map(count, (self._merged, *self._early, *self._newer)))

    def apply(self, prepared: bytes) -> None:
        self._newer.append(prepared)
        self._newer_bytes += len(prepared)
        self._is_stuck = False

    def apply_all(self, updates: Sequence[bytes]) -> None:
        """`apply` for each."""
        self._newer += updates
        self._newer_bytes += sum(map(len, updates))
        self._is_stuck = False

    def state(self) -> bytes:
        self._write_out()
        return _encode([self._merged, *self._beside()])

    @property
    def is_folded(self) -> bool:
        return not self._is_stuck

    def shown(self) -> bytes:
        """One update that has everything, the early ones too, unless they fit into none."""
        self._write_out()
        beside = [each for each in self._beside() if each not in self._unshown]
        if not beside:
            return self._merged
        return self._with(self._merged, without_conflicts(self._merged, beside))

    @property
    def byte_count(self) -> int:
        # There are hardly ever any, and this is asked for each update.
        early_bytes = sum(map(len, self._early)) if self._early else 0
        return len(self._merged) + early_bytes + self._newer_bytes + 16

    @property
    def unfoldable_count(self) -> int:
        return self._unfoldable_count

    def rest(self) -> None:
        if self._doc is None:
            # What was not folded stays as it came; nobody has asked for more.
            return
        self._write_out()
        self.state_vector()
        self._doc = None
        self._folded_count = 0

    def updates_since(self, state_vector: bytes) -> list[bytes]:
        """What somebody with that state vector lacks, as updates; the first may be empty.

        Raises InvalidMutationError for bytes that are no state vector.
        """
        if self._doc is None and not self._newer and state_vector == _KNOWS_NOTHING:
            return [self._merged, *self._early]
        try:
            with library():
                pycrdt.get_update(_EMPTY, state_vector)
        except FoldingError as error:
            raise InvalidMutationError("sync step 1 holds a state vector") from error
        doc = self._folded()
        if not self._is_stuck:
            with suppress(FoldingError), library():
                return [doc.update_since(state_vector), *self._early]
        # All of it, as it came: whoever has some of it takes it twice, which is as good as once.
        return [self._merged, *dict.fromkeys((*self._early, *self._newer))]

    def has_news(self, update: bytes) -> bool:
        """Whether an update holds anything that is not folded in; sometimes true if it does not.

        Raises InvalidMutationError.
        """
        if update == _EMPTY:
            # What a client brings that has nothing: no document is made for that.
            return False
        self.prepare(update)
        state_vector = self.state_vector()
        doc = self._folded()
        with suppress(FoldingError), library():
            rest = pycrdt.get_update(update, state_vector)
            return rest not in (_EMPTY, doc.update_since(state_vector))
        return True

    def state_vector(self) -> bytes:
        if self._merged == _EMPTY and not (self._newer or self._early):
            return _KNOWS_NOTHING
        if self._state_vector is None or self._folded_count < len(self._newer):
            self._state_vector = self._folded().state_vector()
        return self._state_vector

    # Writing out.

    def _write_out(self) -> None:
        """Make `_merged` of everything, if that can be read again.

        Reading it may cost five times as much as writing it; but what nobody can read must neither
        be stored in the place of the updates that it was made of, nor be sent.
        """
        if not self._newer or self._is_stuck:
            return
        doc = self._folded()
        with suppress(FoldingError), library():
            written = doc.update_since()
            if pairs(FittingDoc(written).state_vector()) == pairs(doc.state_vector()):
                self._merged = written
                self._newer, self._newer_bytes, self._folded_count = [], 0, 0
                return
        self._is_stuck = True

    def _beside(self) -> list[bytes]:
        """What is not in `_merged`, once it was tried to write everything into it."""
        return list(dict.fromkeys((*self._early, *self._newer)))

    def _with(self, base: bytes, updates: list[tuple[bytes, bytes]]) -> bytes:
        """One update of these and of `base`, without those that fit into none.

        Of each: what is to be merged, and the update that it is a part of.
        """
        with suppress(FoldingError), library():
            merged = pycrdt.merge_updates(base, *(part for part, _ in updates))
            # Merging some contents garbles those behind them.
            found = pairs(FittingDoc(merged).state_vector())
            wanted = pairs(pycrdt.get_state(base))
            if all(found.get(client, 0) >= clock for client, clock in wanted.items()):
                return merged
        if len(updates) <= 1:
            self._unshown.update(update for _, update in updates)
            self._unfoldable_count += len(updates)
            return base
        half = len(updates) // 2
        return self._with(self._with(base, updates[:half]), updates[half:])

    # Folding.

    def _folded(self) -> FittingDoc:
        """Raises CorruptionError if the state that this was made of cannot be read."""
        if self._doc is None:
            try:
                self._doc = FittingDoc(self._merged)
            except FoldingError as error:
                raise _unreadable() from error
        if self._folded_count < len(self._newer):
            rest = self._doc.take_in(self._newer[self._folded_count :], self._early)
            if self._early or rest.early or rest.unfoldable:
                self._set_aside(rest)
            self._folded_count = len(self._newer)
        return self._doc

    def _set_aside(self, rest: Rest) -> None:
        """What is in the document and not in `_merged` is in `_newer`, and nothing else is."""
        left_out = set(rest.unfoldable)
        self._unfoldable_count += len(left_out - self._unshown)
        self._unshown -= left_out
        self._newer = [
            each
            for each in (*self._newer, *self._early)
            if each not in left_out and each not in rest.early
        ]
        self._newer_bytes = sum(map(len, self._newer))
        self._early = rest.early


def warm_up() -> None:
    """In the event loop: the first document there imports much that it never uses."""
    pycrdt.Doc()


def is_empty(update: bytes) -> bool:
    """Neither structs nor deletions: nothing to store."""
    return update == _EMPTY


def _unreadable() -> CorruptionError:
    return CorruptionError("a document's snapshot", 0, "its state cannot be folded")
