"""Yjs documents: updates are relayed as they came and folded later, when a state is asked for.

Folding goes through a `Doc`, which merges and throws away what was deleted. A `Doc` forgets updates
whose predecessors it has not seen when it is written out; such *early* updates are therefore kept
beside it until they fit. State, as stored:

    MessagePack array: the merged update, then each early update as it came

The library does not take back everything that it wrote. What it writes is read again before it
takes the place of the updates that it was made of; if it cannot be, these stay beside it as early
ones do. So a state is never worse than the updates that led to it.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pycrdt

from syncline.errors import CorruptionError, InvalidMutationError

_EMPTY = b"\x00\x00"
_KNOWS_NOTHING = b"\x00"
# Updates that are merged before the document takes them in as one, at a quarter of the price of
# each by itself. More gain nothing, and the memory for what is taken in at once grows with its
# square.
_TOGETHER: Final = 32

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class FoldingError(Exception):
    """The CRDT library cannot do with these updates what it was asked for."""


@contextmanager
def _library() -> Generator[None]:
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


class YjsFolding:
    """See the module."""

    __slots__ = (
        "_doc",
        "_early",
        "_folded_count",
        "_is_stuck",
        "_merged",
        "_newer",
        "_newer_bytes",
        "_state_vector",
        "_unfoldable_count",
        "_unshown",
    )

    def __init__(self, state: bytes = b"") -> None:
        self._merged, *self._early = _decode(state) if state else [_EMPTY]
        # What came since `_merged` was written out; bounded by whoever takes snapshots.
        self._newer: list[bytes] = []
        self._newer_bytes = 0
        # So many of them are in the document.
        self._folded_count = 0
        # With them the document cannot be written out so that it can be read again.
        self._is_stuck = False
        self._unfoldable_count = 0
        # Those of the early ones that no update for subscribers can hold.
        self._unshown: set[bytes] = set()
        # Both only while somebody is at work; the vector outlives the document.
        self._doc: pycrdt.Doc[Any] | None = None
        self._state_vector: bytes | None = None

    def check(self) -> None:
        if self._merged == _EMPTY:
            return
        if self._early:
            # Whether any of them fits nowhere, it takes the document to tell.
            self._folded()
            return
        try:
            with _library():
                # Without a document: many are opened for readers who only need what is stored.
                pycrdt.get_state(self._merged)
        except FoldingError as error:
            raise _unreadable() from error

    def prepare(self, body: bytes, value: object = None) -> bytes:
        """`value`: anything, if it is known beyond doubt that this is an update."""
        if value is not None:
            return body
        try:
            with _library():
                # Decodes the whole update, at a tenth of the price of applying it.
                pycrdt.get_state(body)
        except FoldingError as error:
            raise InvalidMutationError("a mutation of a Yjs document is a Yjs update") from error
        return body

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
        return self._with(self._merged, beside) if beside else self._merged

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
            with _library():
                pycrdt.get_update(_EMPTY, state_vector)
        except FoldingError as error:
            raise InvalidMutationError("sync step 1 holds a state vector") from error
        doc = self._folded()
        if not self._is_stuck:
            with suppress(FoldingError), _library():
                return [doc.get_update(state_vector), *self._early]
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
        with suppress(FoldingError), _library():
            rest = pycrdt.get_update(update, state_vector)
            return rest not in (_EMPTY, doc.get_update(state_vector))
        return True

    def state_vector(self) -> bytes:
        if self._merged == _EMPTY and not (self._newer or self._early):
            return _KNOWS_NOTHING
        if self._state_vector is None or self._folded_count < len(self._newer):
            self._state_vector = self._folded().get_state()
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
        with suppress(FoldingError), _library():
            written = doc.get_update()
            if _pairs(_state_vector_of(written)) == _pairs(doc.get_state()):
                self._merged = written
                self._newer, self._newer_bytes, self._folded_count = [], 0, 0
                return
        self._is_stuck = True

    def _beside(self) -> list[bytes]:
        """What is not in `_merged`, once it was tried to write everything into it."""
        return list(dict.fromkeys((*self._early, *self._newer)))

    def _with(self, base: bytes, updates: list[bytes]) -> bytes:
        """One update of these and of `base`, without those that fit into none."""
        with suppress(FoldingError), _library():
            merged = pycrdt.merge_updates(base, *updates)
            # Merging some contents garbles those behind them.
            found = _pairs(_state_vector_of(merged))
            wanted = _pairs(_state_vector_of(base, *updates))
            if all(found.get(client, 0) >= clock for client, clock in wanted.items()):
                return merged
        if len(updates) == 1:
            self._unshown.update(updates)
            self._unfoldable_count += 1
            return base
        half = len(updates) // 2
        return self._with(self._with(base, updates[:half]), updates[half:])

    # Folding.

    def _folded(self) -> "pycrdt.Doc[Any]":
        """Raises CorruptionError if the state that this was made of cannot be read."""
        if self._doc is None:
            doc: pycrdt.Doc[Any] = pycrdt.Doc()
            try:
                with _library():
                    doc.apply_update(self._merged)
            except FoldingError as error:
                raise _unreadable() from error
            self._early = self._held_back(doc, self._early)
            self._doc = doc
        if self._folded_count < len(self._newer):
            self._fold(self._doc)
        return self._doc

    def _fold(self, doc: "pycrdt.Doc[Any]") -> None:
        maybe_early = list(self._early)
        tail = self._newer[self._folded_count :]
        has_failed = False
        for start in range(0, len(tail), _TOGETHER):
            updates = tail[start : start + _TOGETHER]
            try:
                maybe_early += _taken_in(doc, updates)
            except FoldingError:
                # One of them: taking the others twice is as good as once.
                has_failed = True
                maybe_early += self._taken_one_by_one(doc, updates)
        if has_failed:
            # A document that fails forgets what it held back.
            maybe_early = self._held_back(doc, maybe_early)
        if maybe_early:
            state_vector = doc.get_state()
            self._early = [
                each for each in dict.fromkeys(maybe_early) if _is_early(each, state_vector)
            ]
        self._folded_count = len(self._newer)

    def _held_back(self, doc: "pycrdt.Doc[Any]", updates: list[bytes]) -> list[bytes]:
        """Have a document hold these until they fit, without those that never will."""
        while len(taken := self._taken_one_by_one(doc, updates)) < len(updates):
            updates = taken
        return taken

    def _taken_one_by_one(self, doc: "pycrdt.Doc[Any]", updates: list[bytes]) -> list[bytes]:
        taken: list[bytes] = []
        for update in updates:
            try:
                with _library():
                    doc.apply_update(update)
            except FoldingError:
                # It passed every check and cannot be folded; without it the document is whole.
                self._leave_out(update)
            else:
                taken.append(update)
        return taken

    def _leave_out(self, update: bytes) -> None:
        if update not in self._unshown:
            self._unfoldable_count += 1
        self._unshown.discard(update)
        self._newer = [each for each in self._newer if each != update]


def warm_up() -> None:
    """In the event loop: the first document there imports much that it never uses."""
    pycrdt.Doc()


def is_empty(update: bytes) -> bool:
    """Neither structs nor deletions: nothing to store."""
    return update == _EMPTY


def _taken_in(doc: "pycrdt.Doc[Any]", updates: list[bytes]) -> list[bytes]:
    """Those that may have come too early. Raises FoldingError."""
    with _library():
        merged = pycrdt.merge_updates(*updates)
        doc.apply_update(merged)
    return updates if _is_early(merged, doc.get_state()) else []


def _unreadable() -> CorruptionError:
    return CorruptionError("a document's snapshot", 0, "its state cannot be folded")


def _state_vector_of(*updates: bytes) -> bytes:
    """Of a document that takes these in, one after the other."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    for update in updates:
        doc.apply_update(update)
    return doc.get_state()


def _is_early(update: bytes, state_vector: bytes) -> bool:
    """Whether a document of that state holds back some of it, for want of what came before."""
    try:
        with _library():
            rest = pycrdt.get_update(update, state_vector)
    except FoldingError:
        # Nobody can tell: as an early one it is kept.
        return True
    if rest == _EMPTY:
        return False
    if rest[0] != 0:
        return True
    known = _pairs(state_vector)
    return any(end > known.get(client, 0) for client, end in _deleted(rest))


def _pairs(state_vector: bytes) -> dict[int, int]:
    numbers = _varints(state_vector)
    count = next(numbers)
    return {next(numbers): next(numbers) for _ in range(count)}


def _deleted(update: bytes) -> Iterator[tuple[int, int]]:
    """Client and end of each range that an update without structs deletes."""
    numbers = _varints(update)
    next(numbers)
    for _ in range(next(numbers)):
        client = next(numbers)
        for _ in range(next(numbers)):
            yield client, next(numbers) + next(numbers)


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
