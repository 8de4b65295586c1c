"""One document as its log tells of it: updates and snapshots in, the folded state out.

Rows come in the order of the log. An update is folded if it follows on what is folded already; the
router's own code does the folding. Whatever does not follow (an update before it is missing or
cannot be read, or a stretch of the log is) waits for the next snapshot of the router, which says
where things stand. So a state is that of its sequence, or it is not there; it is never a guess.

Each snapshot is also a check: the router folded it from the same updates. What was folded here up
to the same sequence has to be the same. The router may have logged later updates before the
snapshot, so updates are kept apart until a snapshot covers them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from syncline.core.kinds import Folding
from syncline.core.kinds import folding as folding_of
from syncline.core.kinds.yjs import YjsFolding
from syncline.errors import CorruptionError, InvalidMutationError
from syncline.pipeline.yjs_items import holds_same
from syncline.storage.documents import (
    ENTRY_VERSION,
    DocumentSnapshot,
    decode_entry,
    decode_snapshot,
    stream_of,
)
from syncline.values import limits
from syncline.values.kinds import Kind

# A state that is larger is given up: no router stores one.
STATE_BYTES_MAX: Final = 2 * limits.snapshot_bytes_max
# Updates kept apart in case that a snapshot is still to come for the middle of them.
TAIL_BYTES_MAX: Final = 16 * limits.MIB
# Updates that wait for a snapshot; beyond that the oldest are only counted.
WAITING_BYTES_MAX: Final = 16 * limits.MIB

# Without the author: version, its length, clock.
_ENTRY_HEAD_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class DocumentState:
    """A row of `document_states`, without its run; see docs/formats/tables.md."""

    store: bytes
    stream: bytes
    name: str | None = None
    kind: str | None = None
    incarnation: bytes | None = None
    is_deleted: bool = False
    up_to_seq: int | None = None
    position: int = -1
    state: bytes | None = None
    update_count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    checked_count: int = 0
    mismatch_count: int = 0
    waiting_count: int = 0
    gap_count: int = 0
    damaged_count: int = 0
    unfoldable_count: int = 0
    is_too_large: bool = False
    problem: str | None = None


class DocumentFold:
    """See the module. `known` is what an earlier run left, if anything."""

    def __init__(self, store: bytes, stream: bytes, known: DocumentState | None = None) -> None:
        start = known or DocumentState(store, stream)
        self._store = store
        self._stream = stream
        self._name, self._kind, self._incarnation = start.name, start.kind, start.incarnation
        self._is_document = known is not None
        self._is_deleted = start.is_deleted
        self._is_too_large = start.is_too_large
        self.position = start.position
        self._checked_count, self._mismatch_count = start.checked_count, start.mismatch_count
        self._update_count, self._bytes_in = start.update_count, start.bytes_in
        self._gap_count, self._damaged_count = start.gap_count, start.damaged_count
        self._unfoldable_count = start.unfoldable_count
        # Folded up to `_base_seq`; then come those of the tail, one after another.
        self._folding: Folding | None = None
        self._base_seq = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        # Entries by sequence, and how many more there are that nobody has any longer.
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._waiting_unseen_count = start.waiting_count
        self._is_sure = not start.waiting_count
        if start.state is not None and start.up_to_seq is not None:
            self._folding = folding_of(Kind(start.kind or ""), start.state)
            self._base_seq = start.up_to_seq

    @property
    def up_to_seq(self) -> int:
        return self._base_seq + len(self._tail)

    # What the log says, in its order.

    def created(self) -> None:
        """Whatever was known before was another document of this name."""
        self._forget()
        self._is_document, self._is_deleted = True, False
        self._update_count = self._bytes_in = 0

    def deleted(self) -> None:
        if self._is_document:
            self._forget()
            self._is_deleted = True

    def log_is_missing(self) -> None:
        """A stretch of the log could not be read: it may have held anything."""
        if self._is_document and not self._is_deleted:
            self._become_unsure()
        # What waited before it may be of a document that was deleted there.
        self._waiting_unseen_count += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    def updates(self, first_seq: int, entries: Sequence[bytes], *, is_document: bool) -> None:
        """Entries with consecutive sequences. Of some it is not known whose they are: a queue's?"""
        self._is_document = self._is_document or is_document
        # An update is proof enough that the document is there again.
        self._is_deleted = self._is_deleted and not is_document
        follows = self._folding is not None and self._is_sure and first_seq == self.up_to_seq + 1
        # Nearly always; spelled out, as it runs for each update (bench: pipeline).
        if follows and all(
            len(each) >= _ENTRY_HEAD_BYTES
            and each[0] == ENTRY_VERSION
            and len(each) >= each[1] + _ENTRY_HEAD_BYTES
            for each in entries
        ):
            self._bytes_in += sum(map(len, entries))
            bodies = [entry[entry[1] + _ENTRY_HEAD_BYTES :] for entry in entries]
            self._append(bodies)
            return
        for seq, entry in enumerate(entries, first_seq):
            self._update(seq, entry)

    def snapshot(self, seq: int, payload: bytes) -> None:
        self._is_document = True
        found = self._decoded(payload)
        if found is None:
            self._damaged_count += 1
            return
        snapshot, router = found
        self._is_deleted = False
        is_same = self._folding is not None and (
            (snapshot.incarnation, snapshot.kind) == (self._incarnation, self._kind)
        )
        was_sure = self._is_sure
        if is_same:
            # The document is the one that was known; what has waited for that may follow.
            self._take_waiting()
        # Taking it in may have made the state too large.
        begins_anew = not is_same or self._folding is None or seq > self.up_to_seq
        if begins_anew:
            self._begin_at(seq, snapshot, router)
        elif seq >= self._base_seq:
            self._check(seq, snapshot, router)
        self._take_waiting()
        self._waiting_unseen_count = 0
        # Where some still wait, one before them is missing; that may have been counted before.
        self._is_sure = not self._waiting
        self._gap_count += bool(self._waiting) and (begins_anew or was_sure)

    # Inside.

    def _update(self, seq: int, entry: bytes) -> None:
        try:
            _, _, body = decode_entry(entry)
        except CorruptionError:
            self._damaged_count += 1
            self._become_unsure()
            return
        if self._folding is not None and self._is_sure and seq == self.up_to_seq + 1:
            self._bytes_in += len(entry)
            self._append([body])
            return
        if self._folding is not None:
            self._become_unsure()
        self._waiting[seq] = entry
        self._waiting_bytes += len(entry)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            oldest = next(iter(self._waiting))
            self._waiting_bytes -= len(self._waiting.pop(oldest))
            self._waiting_unseen_count += 1

    def _append(self, bodies: list[bytes]) -> None:
        self._tail += bodies
        self._update_count += len(bodies)
        self._tail_bytes += sum(map(len, bodies))
        if self._tail_bytes > TAIL_BYTES_MAX:
            self._fold(len(self._tail))

    def _become_unsure(self) -> None:
        if self._is_sure:
            self._is_sure = False
            self._gap_count += 1

    def _take_waiting(self) -> None:
        """Those that follow; and forget those that are covered."""
        following: list[bytes] = []
        while (seq := self.up_to_seq + len(following) + 1) in self._waiting:
            following.append(self._waiting[seq])
        for done in [each for each in self._waiting if each < seq]:
            self._waiting_bytes -= len(self._waiting.pop(done))
        self._bytes_in += sum(map(len, following))
        self._append([decode_entry(entry)[2] for entry in following])

    def _begin_at(self, seq: int, snapshot: DocumentSnapshot, router: Folding) -> None:
        if self._folding is not None and snapshot.incarnation != self._incarnation:
            self._update_count = self._bytes_in = 0
        self._name, self._kind = snapshot.name, snapshot.kind
        self._incarnation = snapshot.incarnation
        self._go_on_from(seq, router)

    def _go_on_from(self, seq: int, router: Folding) -> None:
        self._folding, self._base_seq = router, seq
        self._tail, self._tail_bytes = [], 0
        self._is_too_large = False

    def _check(self, seq: int, snapshot: DocumentSnapshot, router: Folding) -> None:
        later = self._tail[seq - self._base_seq :]
        self._fold(seq - self._base_seq)
        if self._folding is None:
            self._begin_at(seq, snapshot, router)
            return
        self._checked_count += 1
        if not is_same_state(snapshot.kind, self._folding.state(), snapshot.state):
            # What the router has is what its readers get: that is gone on from.
            self._mismatch_count += 1
            self._go_on_from(seq, router)
            self._tail = later
            self._tail_bytes = sum(map(len, later))

    def _fold(self, count: int) -> None:
        """Fold the first of the tail. Gives up a state that becomes too large."""
        assert self._folding is not None
        taken, self._tail = self._tail[:count], self._tail[count:]
        self._tail_bytes = sum(map(len, self._tail))
        if isinstance(self._folding, YjsFolding):
            # Folding them is their check.
            self._folding.apply_all(taken)
        else:
            for body in taken:
                try:
                    self._folding.apply(self._folding.prepare(body))
                except InvalidMutationError:
                    self._unfoldable_count += 1
        self._base_seq += count
        before = self._folding.unfoldable_count
        self._folding.state()
        self._unfoldable_count += self._folding.unfoldable_count - before
        if self._folding.byte_count > STATE_BYTES_MAX:
            self._is_too_large = True
            self._waiting_unseen_count += len(self._tail)
            self._folding, self._tail, self._tail_bytes = None, [], 0
            self._become_unsure()

    def _decoded(self, payload: bytes) -> tuple[DocumentSnapshot, Folding] | None:
        """A snapshot of this document, and the state in it; None if it is damaged."""
        try:
            found = decode_snapshot(payload)
            if stream_of(found.name) != self._stream:
                return None
            state = folding_of(Kind(found.kind), found.state)
            if found.kind == Kind.YJS:
                for update in msgspec.msgpack.decode(found.state, type=list[bytes]):
                    state.prepare(update)
        except (CorruptionError, InvalidMutationError, msgspec.MsgspecError, ValueError):
            return None
        return found, state

    def _forget(self) -> None:
        self._folding, self._incarnation = None, None
        self._base_seq = 0
        self._tail, self._tail_bytes = [], 0
        self._waiting.clear()
        self._waiting_bytes = self._waiting_unseen_count = 0
        self._is_sure = True
        self._is_too_large = False

    # What has come of it.

    def result(self) -> DocumentState | None:
        """None if there is no sign that it is a document. Nothing may be told to it afterwards."""
        if not self._is_document:
            return None
        state: bytes | None = None
        up_to_seq: int | None = None
        if self._folding is not None:
            self._fold(len(self._tail))
        if self._folding is not None:
            state, up_to_seq = self._folding.state(), self._base_seq
        waiting_count = self._waiting_unseen_count + len(self._waiting)
        return DocumentState(
            self._store,
            self._stream,
            self._name,
            self._kind,
            self._incarnation,
            self._is_deleted,
            up_to_seq,
            self.position,
            state,
            self._update_count,
            self._bytes_in,
            len(state) if state is not None else 0,
            self._checked_count,
            self._mismatch_count,
            waiting_count,
            self._gap_count,
            self._damaged_count,
            self._unfoldable_count,
            self._is_too_large,
            self._problem(waiting_count, has_state=state is not None),
        )

    def _problem(self, waiting_count: int, *, has_state: bool) -> str | None:
        """All that is not as it should be, in words."""
        said = {
            "snapshots of the router hold something else": self._mismatch_count,
            "gaps in what the log has of it": self._gap_count,
            "updates wait for a snapshot": waiting_count,
            "updates or snapshots are damaged": self._damaged_count,
            "updates cannot be folded": self._unfoldable_count,
        }
        words = [f"{what}: {count}" for what, count in said.items() if count]
        if self._is_too_large:
            words.append(f"the state is larger than {STATE_BYTES_MAX} bytes")
        elif not has_state and not self._is_deleted:
            words.append("no snapshot to begin with")
        return "; ".join(words) or None


def is_same_state(kind: str, one: bytes, other: bytes) -> bool:
    """Whether two states as they are stored hold the same."""
    if one == other:
        return True
    try:
        match Kind(kind):
            case Kind.JSON:
                return _sorted_json(one) == _sorted_json(other)
            case Kind.YJS:
                return holds_same(one, other)
            case Kind.BYTES:
                return bool(msgspec.msgpack.decode(one) == msgspec.msgpack.decode(other))
    except ValueError:
        return False


def _sorted_json(state: bytes) -> bytes:
    """As text: to Python, true is 1 and 1 is 1.0."""
    return msgspec.json.encode(msgspec.json.decode(state), order="deterministic")
