"""All documents: opening and closing them, and the way of an update from its author to its readers.

Every face that works with documents comes through here, so that all keep the same rules:
- Nothing is relayed or acknowledged before it is durable.
- A subscriber is registered, at the place of the state that it is given, in the step in which that
  state is taken: nothing slips by between the two.
- A connection's documents take turns: one that is far behind does not starve another.
- A document that nobody has open is folded into its snapshot and let go of. A snapshot that could
  not be read again is not stored: then the updates stay.
- What is the matter with one document costs no other its upkeep.

There is no timer while nothing is to be done: `_tick` runs only while some document has something
coming, and looks at those alone whose time it is.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from syncline.core.document import Joined, Repeated
from syncline.core.kinds.yjs import warm_up
from syncline.errors import (
    CorruptionError,
    LimitExceededError,
    StorageError,
    StoreBusyError,
    SynclineError,
    UnexpectedMessageError,
    UnknownDocumentError,
    UnknownQueueError,
    WrongKindError,
)
from syncline.server.checking import Checks
from syncline.server.clocks import Clock
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.server.grouping import Grouping
from syncline.server.listing import page_of
from syncline.server.logs import Log
from syncline.server.open_document import (
    Dialect,
    DocumentOptions,
    Listener,
    Member,
    OpenDocument,
    Reader,
    Way,
    create,
    load,
)
from syncline.server.patience import Patience
from syncline.storage.base import Store, StreamKind
from syncline.storage.documents import stream_of
from syncline.storage.stored_documents import StoredDocument, stored_document
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.kinds import Kind
from syncline.wire.yjs_updates import check_update, is_typed_text

TICK_SECONDS = 1.0
# A document that nobody has open stays this long, for somebody who only reloads a page.
LINGER_MS = 10_000
INCARNATION_BYTES = 8
# Short updates that are put off together.
ARRIVED_COUNT_MAX = 256
CONGESTED_BYTES = limits.waiting_bytes_max // 2


@dataclass(slots=True)
class DocumentCounters:
    """Since the start."""

    mutation_count: int = 0
    repeated_count: int = 0
    refused_count: int = 0
    evicted_count: int = 0
    resent_count: int = 0
    snapshot_count: int = 0
    unreadable_snapshot_count: int = 0


class Documents:
    """See the module. Every method is called in the event loop of the store's owner."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        options: DocumentOptions | None = None,
        press: Callable[[], None] = lambda: None,
        events: Events | None = None,
        log: Log | None = None,
    ) -> None:
        """`press` asks for upkeep at once: the store cannot take more without it."""
        self.counters = DocumentCounters()
        self.options = options or DocumentOptions()
        self._store = store
        self._committer = committer
        self.clock = clock
        self._random_bytes = random_bytes
        self._press = press
        self._events = events
        self._log = log
        # Faces wait here with what the store has no room for yet, such as new documents.
        self.patience = Patience(press)
        # Where they have large updates looked at.
        self.checks = Checks()
        self._loop = asyncio.get_running_loop()
        # Not while somebody waits for an update.
        warm_up()
        self._open: dict[str, OpenDocument] = {}
        self._joined_count = 0
        # One connection may be several members: each subscription of `/cable` is a replica.
        self._member_count_of: dict[Way, int] = {}
        # Staged since the last batch was taken, with the sequence up to which.
        self._dirty: dict[OpenDocument, int] = {}
        self._dirty_count = 0
        self._grouping = Grouping(self.options.group_ms)
        self._group_timer: asyncio.TimerHandle | None = None
        self._has_asked = False
        # When the newest update of the next batch came.
        self._newest_at = 0.0
        # Received and not looked at yet.
        self._arrived: list[tuple[Callable[[bytes], None], bytes]] = []
        # The disk does not keep up: whoever sends mutations should pause.
        self.is_congested = False
        committer.join_batches(self._join_batch)
        # Documents that need upkeep, each with the time from which on to look at it.
        self._due_ms: dict[OpenDocument, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        # To be taken in a turn of its own.
        self._snapshots_due: set[OpenDocument] = set()

    # Connections.

    def join(
        self,
        author: str,
        way: Way,
        dialect: Dialect,
        listener: Listener,
        *,
        acknowledges: bool,
    ) -> Member:
        self._joined_count += 1
        self._member_count_of[way] = self._member_count_of.get(way, 0) + 1
        if self._events is not None:
            self._events.connected(self._joined_count)
        return Member(self._joined_count, author, way, dialect, listener, acknowledges)

    def leave(self, member: Member, *, keeps_places: bool = False) -> None:
        """The connection is gone. What was pending for it is forgotten, or its places are kept."""
        self._member_count_of[member.way] -= 1
        if not self._member_count_of[member.way]:
            del self._member_count_of[member.way]
        parked_ms = self.clock.steady_ms() if keeps_places else None
        for name in list(member.documents):
            document = self._open[name]
            document.leave(member.connection, parked_ms=parked_ms)
            self._look_after(document)
        member.documents.clear()
        member.behind.clear()
        if self._events is not None:
            self._events.disconnected(member.connection)

    # Documents.

    def subscribe(
        self,
        member: Member,
        name: str,
        epoch: int,
        *,
        kind: Kind | None = None,
        may_create: bool = True,
        have: tuple[bytes, int] | None = None,
    ) -> tuple[OpenDocument, Joined]:
        """Register and say from where the subscriber is going to be fed.

        The caller tells it so, sends the state unless it is resumed, then calls `feed`.
        `have` is the incarnation and sequence that the subscriber has already.
        Raises UnknownDocumentError, WrongKindError, UnexpectedMessageError, StorageError.
        """
        if name in member.documents:
            raise UnexpectedMessageError(f"document {name!r} is subscribed already")
        document = self._opened(name, kind, may_create)
        have_seq = have[1] if have is not None and have[0] == document.incarnation else None
        if have is not None and have_seq is None:
            document.machine.unpark(member.author)
        joined = document.machine.subscribe(
            member.connection,
            member.author,
            epoch,
            self.clock.steady_ms(),
            have=have_seq,
            acknowledges=member.acknowledges,
        )
        member.documents[name] = document.add_reader(joined.subscription, member)
        return document, joined

    def feed(self, member: Member, name: str) -> None:
        """Send what a subscriber has missed, now that it was told where it begins."""
        member.behind[name] = None
        self.drained(member)
        # Whatever opening it brought into memory need not stay there.
        self._look_after(self._open[name])

    def unsubscribe(self, member: Member, name: str) -> bool:
        reader = member.documents.pop(name, None)
        member.behind.pop(name, None)
        if reader is None:
            return False
        document = self._open[name]
        document.leave(member.connection)
        self._look_after(document)
        return True

    def _opened(self, name: str, kind: Kind | None, may_create: bool) -> OpenDocument:
        document = self._open.get(name)
        if document is None:
            try:
                document = load(name, self._store, self.options, self._events)
            except UnknownQueueError:
                document = self._created(name, kind, may_create)
            self._open[name] = document
        if kind is not None and document.kind is not kind:
            raise WrongKindError(document.kind, kind)
        return document

    def _created(self, name: str, kind: Kind | None, may_create: bool) -> OpenDocument:
        if kind is None or not may_create or not self.options.create_on_subscribe:
            raise UnknownDocumentError(f"there is no document {name!r}")
        incarnation = self._random_bytes(INCARNATION_BYTES)
        try:
            now_ms = self.clock.wall_ms()
            return create(name, kind, incarnation, self._store, self.options, now_ms, self._events)
        except StoreBusyError:
            self._press()
            raise

    # Updates.

    def mutate(
        self,
        member: Member,
        name: str,
        clock: int,
        body: bytes,
        value: object = None,
        *,
        is_checked: bool = False,
    ) -> Repeated | None:
        """Stage a mutation; its author and its readers hear of it once it is durable.

        `value` is what the body says, if the face has decoded it; it is not used afterwards.
        `is_checked`: `check_update` has been at it.
        Returns what is known of a mutation that was stored before. Raises InvalidMutationError,
        DocumentFullError, ProtocolError: it will never be taken; StorageError: not now.
        """
        reader = member.documents.get(name)
        if reader is None:
            raise UnexpectedMessageError(f"document {name!r} is not subscribed")
        if len(body) > limits.entry_bytes_max - limits.KIB:
            raise LimitExceededError("a mutation", len(body), limits.entry_bytes_max - limits.KIB)
        waiting_bytes = self._store.waiting_bytes
        if waiting_bytes + len(body) > CONGESTED_BYTES:
            self.is_congested = True
            if waiting_bytes > limits.waiting_bytes_max:
                raise StoreBusyError(waiting_bytes, limits.waiting_bytes_max)
        document = reader.document
        if document.kind is Kind.YJS and not is_checked:
            # Whatever passes here is folded later, with nobody left to refuse it.
            if is_typed_text(body):
                value = body
            else:
                check_update(body)
        try:
            result = document.mutate(member.author, clock, body, self.clock.wall_ms(), value)
        except StoreBusyError:
            self._press()
            raise
        if isinstance(result, Repeated):
            self.counters.repeated_count += 1
            if self._events is not None:
                # Of each author only the newest is remembered.
                seq = result.seq if clock == result.clock else 0
                self._events.repeated(document.stream, member.connection, seq)
            return result
        self.counters.mutation_count += 1
        if not self._has_asked:
            self._ask_for_batch()
        self._dirty[document] = result
        self._dirty_count += 1
        self._newest_at = self._loop.time()
        return None

    def take_later(self, take: Callable[[bytes], None], update: bytes) -> None:
        """Call `take`, which is going to mutate, when the next batch is made up.

        That is the same as if the update had come a little later, and then there are several: one
        after the other they cost half of what each costs that wakes the router (bench: documents).
        Whatever else comes from the same connection has to wait for it: see `take_arrived`.
        """
        self._arrived.append((take, update))
        self._newest_at = self._loop.time()
        if len(self._arrived) >= ARRIVED_COUNT_MAX:
            self.take_arrived()
        elif not self._has_asked:
            self._ask_for_batch()

    def take_arrived(self) -> None:
        """Look at what was put off, now."""
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            for take, update in arrived:
                take(update)

    def is_on_its_way(self, name: str, author: str) -> bool:
        """Something that this author sent to the document is staged and not durable."""
        document = self._open.get(name)
        if document is None:
            return False
        return document.machine.clocks.newest(author)[1] > document.machine.head

    def when_durable(self, told: Callable[[StorageError | None], None]) -> None:
        """Call it once everything staged now is durable and has been relayed."""
        # Waiters are told in the order in which they come: ours relays, so it comes first.
        if (relay := self._join_batch()) is not None:
            self._committer.when_durable(relay)
        self._committer.when_durable(told)

    def when_relieved(self, resume: Callable[[], None]) -> None:
        """Call it once what waits now is written."""
        self._committer.when_durable(lambda _: resume())

    def _ask_for_batch(self) -> None:
        self._has_asked = True
        seconds = self._grouping.wait_seconds(self._loop.time())
        if seconds:
            self._group_timer = self._loop.call_later(seconds, self._look_for_company)
        else:
            self._committer.ask()

    def _look_for_company(self) -> None:
        seconds = self._grouping.more_seconds(self._newest_at, self._loop.time())
        if seconds:
            self._group_timer = self._loop.call_later(seconds, self._look_for_company)
        else:
            self._committer.ask()

    def _join_batch(self) -> Callable[[StorageError | None], None] | None:
        """A batch is taken, on whose behalf ever: all that is staged is in it."""
        self.take_arrived()
        self._has_asked = False
        if self._group_timer is not None:
            self._group_timer.cancel()
            self._group_timer = None
        if not self._dirty:
            return None
        self._grouping.taken(self._dirty_count, self._loop.time())
        dirty, self._dirty, self._dirty_count = self._dirty, {}, 0
        return partial(self._durable, dirty)

    def _durable(self, dirty: dict[OpenDocument, int], failure: StorageError | None) -> None:
        now_ms = self.clock.steady_ms()
        self.is_congested = self._store.waiting_bytes > CONGESTED_BYTES
        for document, seq in dirty.items():
            if failure is not None:
                self._give_up(document, failure)
                continue
            if self._open.get(document.name) is not document:
                continue
            if behind := document.release(seq, now_ms):
                for reader in behind:
                    self._pump_in_turn(document, reader, now_ms)
                if not any(document.name in reader.member.behind for reader in behind):
                    document.forget_recent()
            self._settle(document)

    def _pump_in_turn(self, document: OpenDocument, reader: Reader, now_ms: int) -> None:
        member = reader.member
        if member.behind or not reader.way.is_writable:
            # Others wait for their turn before it; or the reader does not keep up.
            member.behind[document.name] = None
            return
        if self._pump(document, reader, now_ms):
            member.behind[document.name] = None
            self._loop.call_soon(self.drained, member)

    def drained(self, member: Member) -> None:
        """The connection takes more: its documents that are behind get a piece each, in turn."""
        now_ms = self.clock.steady_ms()
        while member.behind and member.way.is_writable:
            name = next(iter(member.behind))
            del member.behind[name]
            reader = member.documents.get(name)
            if reader is not None and self._pump(self._open[name], reader, now_ms):
                member.behind[name] = None

    def _pump(self, document: OpenDocument, reader: Reader, now_ms: int) -> bool:
        try:
            return document.pump(reader, now_ms)
        except StorageError:
            # What it needs cannot be read: it has to begin with the state.
            self._evict(document, reader)
            return False

    def acknowledge(self, member: Member, name: str, epoch: int, seq: int) -> None:
        """Raises UnexpectedMessageError for what does not exist. A late one changes nothing."""
        if name not in member.documents:
            return
        document = self._open[name]
        machine = document.machine
        if machine.acknowledge(member.connection, epoch, seq, self.clock.steady_ms()):
            if self._events is not None:
                self._events.acknowledged(document.stream, member.connection, seq)
            reader = member.documents[name]
            if machine.pending(reader.subscription):
                self.feed(member, name)

    def show_presence(self, member: Member, name: str, state: Any) -> None:
        if name not in member.documents:
            raise UnexpectedMessageError(f"document {name!r} is not subscribed")
        self._open[name].show_presence(member.author, state)

    def _give_up(self, document: OpenDocument, failure: SynclineError) -> None:
        """What was staged is not stored. Whoever has the document open begins again."""
        if self._open.get(document.name) is document:
            self._end_all(document, failure)

    def _end_all(self, document: OpenDocument, error: SynclineError) -> None:
        del self._open[document.name]
        self._due_ms.pop(document, None)
        for reader in list(document.readers.values()):
            member = reader.member
            member.documents.pop(document.name, None)
            member.behind.pop(document.name, None)
            if self._events is not None:
                head = document.machine.head
                self._events.unsubscribed(document.stream, member.connection, head)
            reader.member.listener.ended(document, reader.subscription, error)

    # Upkeep.

    def _settle(self, document: OpenDocument) -> None:
        if document.wants_snapshot and document not in self._snapshots_due:
            # Behind what is being sent: flushed in the next turn, and written at the end of it.
            self._snapshots_due.add(document)
            self._loop.call_soon(self._loop.call_soon, self._take_due_snapshot, document)
        if document.machine.is_restless or not document.readers:
            self._look_after(document)

    def _take_due_snapshot(self, document: OpenDocument) -> None:
        self._snapshots_due.remove(document)
        if self._open.get(document.name) is document and document.wants_snapshot:
            self._take_snapshot(document)

    def _take_snapshot(self, document: OpenDocument) -> bool:
        """Whether there can be one; else the updates in the stream have to do."""
        try:
            seq = document.stage_snapshot(self.clock.wall_ms())
        except StorageError:
            # The updates are in the stream; it is tried again with the next ones.
            return True
        if seq is None:
            self._note_unreadable(document)
            return False
        self.counters.snapshot_count += 1
        self._committer.when_durable(partial(self._snapshot_durable, document, seq))
        return True

    def _note_unreadable(self, document: OpenDocument) -> None:
        self.counters.unreadable_snapshot_count += 1
        if self._log is not None and document.unreadable_count == 1:
            self._log.error(
                "a snapshot could not be read again: the updates of its document are kept",
                stream=document.stream.hex(),
                update_count=document.machine.head - document.machine.snapshot_seq,
            )

    def _snapshot_durable(
        self, document: OpenDocument, seq: int, failure: StorageError | None
    ) -> None:
        if failure is None and self._open.get(document.name) is document:
            document.machine.snapshot_taken(seq)
            document.truncate()

    def _wake(self) -> None:
        if self._due_ms and self._timer is None:
            self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.tend_all()
        finally:
            self._wake()

    def tend_all(self) -> None:
        """The upkeep that is due now; a timer calls it while there is any."""
        now_ms = self.clock.steady_ms()
        for document in [each for each, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            try:
                next_ms = self._tend(document, now_ms)
            except Exception as mistake:  # noqa: BLE001 (it costs this document, not the others)
                self._part_with(document, mistake)
                continue
            if next_ms is None:
                self._due_ms.pop(document, None)
            else:
                self._due_ms[document] = next_ms

    def _look_after(self, document: OpenDocument) -> None:
        """Upkeep is coming: every second while somebody owes something, else once it lingered."""
        due_ms = 0 if document.machine.is_restless else document.changed_ms + LINGER_MS
        if self._due_ms.setdefault(document, due_ms) > due_ms:
            self._due_ms[document] = due_ms
        self._wake()

    def _tend(self, document: OpenDocument, now_ms: int) -> int | None:
        """One document's upkeep. From when on it needs more of it, if it does."""
        machine = document.machine
        for subscription in machine.evict(now_ms):
            if (reader := document.readers.get(subscription.connection)) is not None:
                self._evict(document, reader)
        for subscription, sent in machine.send_again(now_ms):
            self.counters.resent_count += 1
            reader = document.readers[subscription.connection]
            reader.resent_to = max(reader.resent_to, sent)
            self.feed(reader.member, document.name)
        machine.unpark_before(now_ms - self.options.resume_ms)
        document.truncate()
        lingers_until_ms = document.changed_ms + LINGER_MS
        if now_ms < lingers_until_ms:
            return now_ms if machine.is_restless else lingers_until_ms
        if document.is_empty:
            return now_ms if self._close(document) else None
        document.folding.rest()
        return now_ms if machine.is_restless else None

    def _part_with(self, document: OpenDocument, mistake: Exception) -> None:
        """It cannot be tended. What is durable of it stays in the store, for whoever opens it."""
        self._due_ms.pop(document, None)
        if self._log is not None:
            self._log.error(
                "a document is ended: it cannot be tended",
                stream=document.stream.hex(),
                mistake=type(mistake).__name__,
            )
        failure = CorruptionError(
            f"document {document.name!r}", document.machine.head, "it cannot be folded"
        )
        self._give_up(document, failure)

    def _close(self, document: OpenDocument) -> bool:
        """Fold it into its snapshot, then let go of it. Whether it takes longer."""
        if document.has_news:
            if self._take_snapshot(document):
                return True
        elif document.machine.snapshot_seq < document.machine.head:
            return True
        document.truncate()
        del self._open[document.name]
        return False

    def _evict(self, document: OpenDocument, reader: Reader) -> None:
        self.counters.evicted_count += 1
        document.evicted_count += 1
        member = reader.member
        if self._events is not None:
            head, acked = document.machine.head, reader.subscription.acked
            self._events.evicted(document.stream, member.connection, head, acked)
        member.documents.pop(document.name, None)
        member.behind.pop(document.name, None)
        document.leave(reader.subscription.connection)
        reader.member.listener.evicted(document, reader.subscription)

    # Looking.

    def opened(self) -> Iterator[OpenDocument]:
        yield from self._open.values()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def connection_count(self) -> int:
        return len(self._member_count_of)

    async def page(
        self, after: StreamId | None, count: int
    ) -> tuple[list[tuple[StoredDocument, OpenDocument | None]], list[StreamId]]:
        """The next `count` documents of the store in the order of their streams, and if open, as
        what; and streams between them that may be documents and cannot be read."""
        page = await page_of(self._store, StreamKind.DOCUMENT, after, count)
        opened = {document.stream: document for document in self._open.values()}
        listed: list[tuple[StoredDocument, OpenDocument | None]] = []
        for stream in page.streams:
            with suppress(UnknownQueueError):
                listed.append((stored_document(self._store, stream), opened.get(stream)))
            # Each has its snapshot read for its name: others have their turn between them.
            await asyncio.sleep(0)
        return listed, page.unreadable

    def find(self, name: str) -> OpenDocument | None:
        """Open it if it exists; it is let go of again unless somebody subscribes."""
        try:
            document = self._opened(name, None, may_create=False)
        except UnknownDocumentError:
            return None
        self._look_after(document)
        return document

    def delete(self, name: str) -> None:
        """Raises UnknownDocumentError. Durable once the committer says so."""
        with suppress(CorruptionError):
            # One that cannot be read may be deleted as well.
            self._opened(name, None, may_create=False)
        self._store.delete(stream_of(name))
        if (document := self._open.get(name)) is not None:
            self._end_all(document, UnknownDocumentError(f"document {name!r} was deleted"))
