"""A document that is open: its place in the store, its state, and the readers it feeds.

    mutate      stage on the store; the hub asks the committer to tell when that is durable
    release     durable: fold it, then hand it to every reader, in the order of the stream
    pump        what a reader that is behind gets, a piece at a time, from memory or the store

Frames are made once for all readers that are told the same thing in the same words; a reader costs
one write (bench: documents). Nothing is queued for a reader: one that does not keep up keeps its
place, and reads on from the store when it can.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from syncline.core.document import Clocks, Document, Repeated, Subscription
from syncline.core.kinds import Folding, folding
from syncline.core.tracker import LagRules
from syncline.errors import CorruptionError, DocumentFullError, SynclineError
from syncline.server.events import Events
from syncline.storage.base import Store, StreamKind
from syncline.storage.documents import (
    SNAPSHOT_VERSION,
    DocumentSnapshot,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    stream_of,
)
from syncline.storage.life import in_life
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.kinds import Kind
from syncline.values.updates import Update

# Handed over in one go to a reader that is behind; then it is another document's turn.
PIECE_UPDATE_COUNT = 64
PIECE_BYTES = 256 * limits.KIB
# Durable updates kept in memory for readers that are a little behind.
RECENT_BYTES_MAX = 1 * limits.MIB
RECENT_COUNT_MAX = 4_096


class Dialect(Protocol):
    """How one protocol says what happened, ready for the socket. One object for all its readers."""

    def update(self, document: "OpenDocument", epoch: int, update: Update) -> bytes:
        """Somebody else's update."""
        ...

    def stored(self, document: "OpenDocument", epoch: int, update: Update) -> bytes:
        """The reader's own update is stored; empty if its protocol does not say so."""
        ...


class Way(Protocol):
    """The way to one connection."""

    @property
    def is_writable(self) -> bool: ...

    def send_framed(self, frames: bytes) -> None: ...

    def offer_framed(self, frames: bytes, *, at_once: bool = False) -> bool:
        """Send if it is writable; whether it is. `at_once`: there is no company to wait for."""
        ...


class Listener(Protocol):
    """What a face wants to be told about its subscriptions, beside the updates."""

    def evicted(self, document: "OpenDocument", subscription: Subscription) -> None: ...

    def ended(
        self, document: "OpenDocument", subscription: Subscription, error: SynclineError
    ) -> None:
        """The router ended it: the document is gone or could not be stored."""
        ...

    def presence_changed(
        self, document: "OpenDocument", subscription: Subscription, states: dict[str, Any]
    ) -> None: ...


@dataclass(slots=True, eq=False)
class Member:
    """One connection, as the documents see it."""

    connection: int
    # Names the replica behind it; survives reconnects where the protocol has such a name.
    author: str
    way: Way
    dialect: Dialect
    listener: Listener
    acknowledges: bool
    documents: dict[str, "Reader"] = field(default_factory=dict["str", "Reader"])
    # Documents with updates that this connection has not been handed, in the order of their turns.
    behind: dict[str, None] = field(default_factory=dict[str, None])


class Reader:
    """One subscription and where its updates go."""

    __slots__ = (
        "dialect",
        "document",
        "member",
        "presence_told",
        "resent_to",
        "subscription",
        "way",
    )

    def __init__(
        self, document: "OpenDocument", subscription: Subscription, member: Member
    ) -> None:
        self.document = document
        self.subscription = subscription
        self.member = member
        # Looked up for each reader of each update.
        self.way = member.way
        self.dialect = member.dialect
        # It was handed everything up to here before it was sent back to what it acknowledged.
        self.resent_to = 0
        # While presence is due to it, since it does not keep up: whom it has been told of.
        self.presence_told: set[str] | None = None


@dataclass(frozen=True, slots=True)
class DocumentOptions:
    """What an operator may set; see docs/configuration.md."""

    create_on_subscribe: bool = True
    snapshot_update_count: int = 256
    snapshot_bytes: int = 1 * limits.MIB
    document_bytes_max: int = 8 * limits.MIB
    relative_lag_ms: int = 30_000
    absolute_lag_ms: int = 1_800_000
    resume_ms: int = 900_000
    presence_count_max: int = 1_000
    group_ms: int = 20
    # Of the data folder, if it was restored.
    life: bytes = b""

    @property
    def lag_rules(self) -> LagRules:
        return LagRules(self.relative_lag_ms, self.absolute_lag_ms)


class OpenDocument:
    """See the module. `load` opens one that exists. Slots: thousands may be open and idle."""

    __slots__ = (
        "_bytes_since_snapshot",
        "_events",
        "_options",
        "_recent",
        "_recent_bytes",
        "_snapshot_staged_seq",
        "_staged",
        "_staged_bytes",
        "_store",
        "_stored_incarnation",
        "_truncated_up_to",
        "changed_ms",
        "evicted_count",
        "folding",
        "incarnation",
        "kind",
        "machine",
        "name",
        "presence",
        "readers",
        "stream",
        "unreadable_count",
    )

    def __init__(
        self,
        name: str,
        kind: Kind,
        incarnation: bytes,
        folding: Folding,
        machine: Document,
        store: Store,
        options: DocumentOptions,
        events: Events | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.stream = stream_of(name)
        self._stored_incarnation = incarnation
        # As peers know it.
        self.incarnation = in_life(incarnation, options.life)
        self.folding = folding
        self.machine = machine
        self.readers: dict[int, Reader] = {}
        # Relayed, never stored: what the people at work show one another.
        self.presence: dict[str, Any] = {}
        self.changed_ms = 0
        self.evicted_count = 0
        # Snapshots that were not stored, since nobody could have read them.
        self.unreadable_count = 0
        self._store = store
        self._options = options
        self._events = events
        # Staged, not durable, with what the folding prepared.
        self._staged: deque[tuple[Update, Any]] = deque()
        self._staged_bytes = 0
        self._recent: deque[Update] = deque()
        self._recent_bytes = 0
        # Since the last snapshot that was staged.
        self._snapshot_staged_seq = machine.snapshot_seq
        self._bytes_since_snapshot = 0
        self._truncated_up_to = machine.first - 1

    def catch_up(self) -> None:
        """Fold in what the stream has above the snapshot; once, after opening."""
        seq = self.machine.snapshot_seq
        while seq < self.machine.head:
            page = read_updates(
                self._store, self.stream, seq + 1, limits.read_count_max, limits.read_bytes_max
            )
            found = False
            for update in page:
                found = True
                self.folding.apply(self.folding.prepare(update.body))
                self._bytes_since_snapshot += len(update.body)
                if update.clock:
                    self.machine.clocks.note(update.author, update.clock, update.seq)
                seq = update.seq
            if not found:
                # The rest is damaged: the store reports it, and what is readable stands.
                return

    # Writing.

    def mutate(
        self, author: str, clock: int, body: bytes, now_ms: int, value: object = None
    ) -> Repeated | int:
        """Stage a mutation and return its sequence, or what is known of one sent again.

        `value` is what the body says, if somebody has decoded it already.

        Raises InvalidMutationError, LimitExceededError, DocumentFullError, StoreFullError,
        StoreBusyError; then nothing has changed.
        """
        machine = self.machine
        if clock and (repeated := machine.repeated(author, clock)) is not None:
            return repeated
        prepared = self.folding.prepare(body, value)
        self._check_size(len(body))
        if value is None:
            self.folding.admit(body)
        seq = self._store.append(self.stream, encode_entry(author, clock, body), now_ms)
        machine.stage(author, clock, seq)
        self._staged.append((Update(seq, now_ms, author, clock, body), prepared))
        self._staged_bytes += len(body)
        return seq

    def _check_size(self, byte_count: int) -> None:
        bytes_max = self._options.document_bytes_max
        if self.folding.byte_count + self._staged_bytes + byte_count > bytes_max:
            # The count is an upper estimate: look before saying no.
            self.folding.state()
            if self.folding.byte_count + self._staged_bytes + byte_count > bytes_max:
                raise DocumentFullError(bytes_max)

    def release(self, up_to_seq: int, now_ms: int) -> list[Reader]:
        """Everything up to `up_to_seq` is durable. Return the readers that are behind now."""
        updates: list[Update] = []
        staged = self._staged
        while staged and staged[0][0].seq <= up_to_seq:
            update, prepared = staged.popleft()
            self.folding.apply(prepared)
            self._staged_bytes -= len(update.body)
            self._bytes_since_snapshot += len(update.body)
            updates.append(update)
        if not updates:
            return []
        self.changed_ms = now_ms
        joined_at = self.machine.head
        self.machine.commit(up_to_seq, now_ms)
        behind = self._hand_to_all(updates, joined_at, now_ms)
        if behind:
            self._remember(updates)
        else:
            self.forget_recent()
        return behind

    def _hand_to_all(self, updates: list[Update], old_head: int, now_ms: int) -> list[Reader]:
        """One pass over all readers, with one call for each delivery (bench: documents)."""
        machine = self.machine
        lowest_acked = machine.lowest_acked
        authors = {update.author for update in updates}
        frames_of: dict[tuple[int, int], bytes] = {}
        dialect: Dialect | None = None
        epoch = 0
        frames = b""
        handed: list[Subscription] = []
        authors_handed: list[Subscription] = []
        behind: list[Reader] = []
        for reader in self.readers.values():
            subscription = reader.subscription
            # Other documents of this batch may have something for the same connection.
            at_once = len(reader.member.documents) == 1
            if subscription.sent != old_head or subscription.acked < lowest_acked:
                behind.append(reader)
                continue
            if subscription.author in authors:
                own = self._frames(reader, updates)
                if not own or reader.way.offer_framed(own, at_once=at_once):
                    authors_handed.append(subscription)
                else:
                    behind.append(reader)
                continue
            if reader.dialect is not dialect or subscription.epoch != epoch:
                # Nearly all are told the same in the same words, one after the other.
                dialect, epoch = reader.dialect, subscription.epoch
                key = (id(dialect), epoch)
                if key not in frames_of:
                    frames_of[key] = self._frames(reader, updates)
                frames = frames_of[key]
            if reader.way.offer_framed(frames, at_once=at_once):
                handed.append(subscription)
            else:
                behind.append(reader)
        machine.handed_to_head(handed, now_ms)
        machine.handed_to_head(authors_handed, now_ms)
        if self._events is not None:
            numbers = [subscription.connection for subscription in handed]
            self._events.delivered_to_all(self.stream, numbers, old_head + 1, machine.head)
            for subscription in authors_handed:
                self._note_delivery(self._events, subscription, updates)
        return behind

    def _note_delivery(
        self, events: Events, subscription: Subscription, updates: list[Update]
    ) -> None:
        own_count = sum(update.author == subscription.author for update in updates)
        first, last = updates[0].seq, updates[-1].seq
        events.delivered(self.stream, subscription.connection, first, last, own_count)

    def _frames(self, reader: Reader, updates: list[Update]) -> bytes:
        dialect, subscription = reader.dialect, reader.subscription
        author, epoch = subscription.author, subscription.epoch
        framed = [
            dialect.stored(self, epoch, update)
            if update.author == author
            else dialect.update(self, epoch, update)
            for update in updates
        ]
        return framed[0] if len(framed) == 1 else b"".join(framed)

    # Reading.

    def pump(self, reader: Reader, now_ms: int) -> bool:
        """Hand the next piece to a reader that is behind. Whether there is more for it.

        Raises CorruptionError if what it needs is damaged on the disk.
        """
        machine, subscription = self.machine, reader.subscription
        wanted = machine.pending(subscription)
        if not wanted:
            return False
        updates = self._take(wanted.start, min(len(wanted), PIECE_UPDATE_COUNT))
        if not updates or updates[0].seq != wanted.start:
            raise CorruptionError(
                f"the stream of document {self.name!r}", wanted.start, "an update is missing"
            )
        if frames := self._frames(reader, updates):
            reader.way.send_framed(frames)
        machine.handed_over(subscription, updates[-1].seq, now_ms)
        if self._events is not None:
            first, last = updates[0].seq, min(updates[-1].seq, reader.resent_to)
            if first <= last:
                self._events.sent_again(self.stream, subscription.connection, first, last)
            self._note_delivery(self._events, subscription, updates)
        return bool(machine.pending(subscription))

    def _take(self, from_seq: int, count: int) -> list[Update]:
        if self._recent and from_seq >= self._recent[0].seq:
            start = from_seq - self._recent[0].seq
            return list(islice(self._recent, start, start + count))
        return list(read_updates(self._store, self.stream, from_seq, count, PIECE_BYTES))

    def _remember(self, updates: list[Update]) -> None:
        self._recent.extend(updates)
        self._recent_bytes += sum(len(update.body) for update in updates)
        while len(self._recent) > RECENT_COUNT_MAX or self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft().body)

    # Coming and going.

    def add_reader(self, subscription: Subscription, member: Member) -> Reader:
        reader = self.readers[member.connection] = Reader(self, subscription, member)
        if self._events is not None:
            first = subscription.sent + 1
            self._events.subscribed(
                self.stream,
                member.connection,
                first,
                subscription.author,
                acknowledges=subscription.acknowledges,
            )
        return reader

    def leave(self, connection: int, *, parked_ms: int | None = None) -> None:
        """The connection is gone or wants no more; with it goes what it shows to others.

        `parked_ms`: now, if its client wants its place kept.
        """
        reader = self.readers.pop(connection, None)
        if reader is None:
            return
        if self._events is not None:
            self._events.unsubscribed(self.stream, connection, self.machine.head)
        if parked_ms is not None:
            self.machine.park(connection, parked_ms)
        else:
            self.machine.unsubscribe(connection)
        author = reader.subscription.author
        if author in self.presence and not self._has_reader_of(author):
            self.show_presence(author, None)

    def _has_reader_of(self, author: str) -> bool:
        return any(each.subscription.author == author for each in self.readers.values())

    def show_presence(self, author: str, state: Any) -> None:
        """Tell everybody else. Beyond the limit newcomers are not shown."""
        if state is None:
            if self.presence.pop(author, None) is None:
                return
        elif author in self.presence or len(self.presence) < self._options.presence_count_max:
            self.presence[author] = state
        else:
            return
        for reader in list(self.readers.values()):
            if reader.subscription.author != author:
                reader.member.listener.presence_changed(self, reader.subscription, {author: state})

    # Upkeep.

    @property
    def wants_snapshot(self) -> bool:
        """Enough has come since the last one to be worth writing the whole state again."""
        update_count = self.machine.head - self._snapshot_staged_seq
        if update_count == 0:
            return False
        return (
            update_count >= self._options.snapshot_update_count
            and self._bytes_since_snapshot * 4 >= self.folding.byte_count
        ) or self._bytes_since_snapshot >= self._options.snapshot_bytes

    @property
    def has_news(self) -> bool:
        """Something durable is in no snapshot yet."""
        return self.machine.head > self._snapshot_staged_seq

    def stage_snapshot(self, now_ms: int) -> int | None:
        """Stage the state up to `head`, which it returns. Raises as the store does.

        None if that state could not be read again: then nothing is staged, the updates stay in the
        stream, and it is wanted again when the document has grown.
        """
        seq = self.machine.head
        payload = self.snapshot_payload()
        if not self.folding.is_folded:
            self.unreadable_count += 1
            self._bytes_since_snapshot = 0
            return None
        self._store.put_snapshot(self.stream, seq, payload, now_ms)
        self._snapshot_staged_seq = seq
        self._bytes_since_snapshot = 0
        return seq

    def snapshot_payload(self) -> bytes:
        clocks = self.machine.clocks.up_to(self.machine.head)
        return encode_snapshot(
            DocumentSnapshot(
                SNAPSHOT_VERSION,
                self.name,
                self.kind,
                self._stored_incarnation,
                clocks,
                self.folding.state(),
            )
        )

    def truncate(self) -> None:
        """Let go of what the snapshot covers and everybody has."""
        floor = self.machine.floor
        if floor > self._truncated_up_to:
            self._store.truncate_before(self.stream, floor + 1)
            self.machine.truncated(floor)
            self._truncated_up_to = floor

    def forget_recent(self) -> None:
        """Nobody is behind; whoever falls behind later reads from the store."""
        self._recent.clear()
        self._recent_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Nobody is here, nobody's place is kept, nothing is on its way."""
        return not (self.readers or self.machine.parked or self._staged)


def read_updates(
    store: Store, stream: StreamId, from_seq: int, count_max: int, bytes_max: int
) -> Iterator[Update]:
    for entry in store.read(stream, from_seq, count_max, bytes_max):
        author, clock, body = decode_entry(entry.payload)
        yield Update(entry.seq, entry.time_ms, author, clock, body)


def load(
    name: str, store: Store, options: DocumentOptions, events: Events | None = None
) -> OpenDocument:
    """Open a document that exists: its snapshot, and what came after.

    Raises UnknownQueueError if it does not, CorruptionError if it cannot be read.
    """
    stream = stream_of(name)
    state = store.state(stream)
    stored = store.snapshot(stream)
    if stored is None:
        raise CorruptionError(f"document {name!r}", 0, "it has no snapshot")
    snapshot = decode_snapshot(stored.payload)
    opened = OpenDocument(
        name,
        Kind(snapshot.kind),
        snapshot.incarnation,
        folding(Kind(snapshot.kind), snapshot.state),
        Document(
            first=state.first,
            head=state.next - 1,
            snapshot_seq=stored.up_to_seq,
            clocks=Clocks(snapshot.clocks),
            rules=options.lag_rules,
        ),
        store,
        options,
        events,
    )
    # Now: later nobody is left to be told so.
    opened.folding.check()
    opened.catch_up()
    return opened


def create(
    name: str,
    kind: Kind,
    incarnation: bytes,
    store: Store,
    options: DocumentOptions,
    now_ms: int,
    events: Events | None = None,
) -> OpenDocument:
    """Stage a new document. Raises as the store does."""
    store.create(stream_of(name), StreamKind.DOCUMENT, 0, now_ms)
    machine = Document(rules=options.lag_rules)
    opened = OpenDocument(name, kind, incarnation, folding(kind), machine, store, options, events)
    opened.stage_snapshot(now_ms)
    return opened
