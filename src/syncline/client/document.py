"""An open document: its state, the own changes, and what others do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Literal, assert_never
from weakref import WeakSet

from syncline.client import messages
from syncline.client.changes import CHANGE_COUNT_MAX, Change, ChangeReader, Mutated, Replaced
from syncline.client.closing import error_of
from syncline.client.engine import Engine
from syncline.client.latest import Latest
from syncline.client.saving import OwnChange
from syncline.core.folds import Fold
from syncline.core.replica import Replica
from syncline.errors import (
    LinkClosedError,
    NotAuthorizedError,
    ProtocolError,
    RetriesExhaustedError,
)
from syncline.values.json_value import Json
from syncline.values.kinds import Kind
from syncline.values.replica import (
    Body,
    Changed,
    Complaint,
    DocumentStatus,
    Ended,
    GaveUp,
    PresenceChanged,
    Rejected,
    Stalled,
    StateReplaced,
    Stored,
    ToApplication,
    WentLive,
)


class Document:
    """One document of a client, while its `async with` block runs.

    `async for change in document` gives what others change, own changes left out: a `Mutated`, or a
    `Replaced` when the whole state is another one.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        kind: Kind,
        fold: Fold,
        *,
        wait: bool = True,
        save_timeout_s: float = 10.0,
        change_count_max: int = CHANGE_COUNT_MAX,
    ) -> None:
        self.name = name
        self.kind = kind
        self._engine = engine
        self._fold = fold
        self._opened: Replica | None = None
        self._wait = wait
        self._save_timeout_s = save_timeout_s
        self._change_count_max = change_count_max
        self._status: Latest[DocumentStatus] = Latest(DocumentStatus.CONNECTING)
        self._present: Latest[Mapping[str, Json]] = Latest({})
        self._readers: WeakSet[ChangeReader] = WeakSet()
        self._watchers: list[Callable[[Change], None]] = []
        self._own: dict[int, OwnChange] = {}
        # Own changes of this and of an earlier opening.
        self._unsaved: Latest[int] = Latest(0)
        self._applied: Latest[int | None] = Latest(None)
        self._error: Exception | None = None

    async def __aenter__(self) -> "Document":
        """Open it, and wait for the state. Raises RefusedError if the router says no, and
        RetriesExhaustedError if the client is offline."""
        engine = self._engine
        step = engine.machine.open(self.name, self.kind, self._fold, engine.now_ms())
        self._opened = engine.machine.replica(self.name)
        engine.listeners[self.name] = self
        engine.take(step, self.name)
        if self._wait:
            try:
                await self.live()
            except BaseException:
                self._close()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for own changes to be stored, then leave. Raises LinkClosedError if that is not
        known of all of them in time; they are kept, and sent if the document is opened again."""
        is_whole = error is None and self._error is None
        try:
            if is_whole:
                await self._until_saved()
        finally:
            # Whoever stops waiting has left all the same.
            unsaved_count = self._close()
        if is_whole and unsaved_count:
            raise LinkClosedError(
                f"{unsaved_count} changes of {self.name!r} are not known to be stored; "
                "open the document again to send them"
            )

    # -------------------------------------------------------------------------------------- looking

    @property
    def state(self) -> Body:
        """The newest state with own changes on top: a JSON value, or a tuple of updates for kinds
        `yjs` and `bytes`. Not to be changed by hand. None: a JSON state that is not known yet."""
        return self._replica.state

    @property
    def seq(self) -> int | None:
        """Everything up to here is in the state."""
        return self._replica.applied

    @property
    def status(self) -> DocumentStatus:
        return self._status.value

    def statuses(self) -> AsyncIterator[DocumentStatus]:
        """The status now, and whenever it is another one."""
        return self._status.values()

    @property
    def may_write(self) -> bool:
        """Whether the router takes changes, as far as is known."""
        return self._replica.may_write is not False

    @property
    def unsaved_count(self) -> int:
        """Own changes that are not known to be stored."""
        return self._replica.unsaved_count

    @property
    def presence(self) -> Mapping[str, Json]:
        """What the others show, by client id."""
        return self._present.value

    def presences(self) -> AsyncIterator[Mapping[str, Json]]:
        """The presence of the others now, and whenever it is another one."""
        return self._present.values()

    def __aiter__(self) -> ChangeReader:
        reader = ChangeReader(lambda: self._whole("missed"), self._change_count_max)
        self._readers.add(reader)
        if self._error is not None:
            reader.end(self._error)
        return reader

    def watch(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Call `watcher` with each change the moment it is applied, in place of a reader. Returns
        what ends it. The watcher must be quick. What it raises goes to the exception handler of the
        loop."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    async def live(self) -> None:
        """Wait until the state is there and follows the router."""
        settled = {DocumentStatus.LIVE, DocumentStatus.OFFLINE, DocumentStatus.CLOSED}
        status = await self._status.until(lambda s: self._error is not None or s in settled)
        if self._error is not None:
            raise self._error
        code, message = self._engine.trouble
        if status is DocumentStatus.CLOSED:
            raise error_of(code or "closed", message or "the client is closed; go online again")
        if status is DocumentStatus.OFFLINE:
            raise RetriesExhaustedError(
                f"the router cannot be reached for {self.name!r}"
                f"{f' ({message})' if message else ''}; check its address, then go online again"
            )

    async def reached(self, seq: int) -> None:
        """Wait until everything up to `seq` is in the state: what somebody else was told is stored
        as `seq` can be seen here then. Raises what ended the document before that."""

        def is_met(applied: int | None) -> bool:
            return self._error is not None or (applied is not None and applied >= seq)

        await self._applied.until(is_met)
        if self._error is not None:
            raise self._error

    # --------------------------------------------------------------------------------------- acting

    def change(self, mutation: Body) -> OwnChange:
        """Change the document; it shows at once, and waits here while there is no connection.

        A merge patch (RFC 7396) for kind `json`, bytes for the others. Await the result to know
        that it is stored. Raises NotAuthorizedError if only reading is allowed,
        MalformedMessageError for what is no mutation, and LimitExceededError for one too large or
        when too many wait already.
        """
        if self._error is not None:
            raise self._error
        if not self.may_write:
            raise NotAuthorizedError(f"the token does not allow writing to {self.name!r}")
        engine = self._engine
        checked = messages.checked_mutation(mutation, self.kind, engine.frame_bytes_max)
        number, step = engine.machine.change(self.name, checked, engine.now_ms())
        change = self._own[number] = OwnChange(number)
        engine.take(step, self.name)
        return change

    def show_presence(self, state: Json) -> None:
        """Show the others something small, such as a cursor; None takes it away. It is not stored,
        and is gone with the connection. Raises LimitExceededError if it is not small."""
        if self._error is not None:
            raise self._error
        checked = messages.checked_presence(state)
        self._engine.take(self._engine.machine.show_presence(self.name, checked), self.name)

    # ------------------------------------------------------------------------- what the engine says

    def hear(self, event: ToApplication) -> None:
        match event:
            case Changed():
                self._put(Mutated(event.seq, event.client, event.mutation))
            case StateReplaced():
                self._put(Replaced(event.seq, event.state, "state"))
            case Stored():
                if (change := self._own.pop(event.number, None)) is not None:
                    change.saved.resolve(event.seq)
            case Rejected():
                if (change := self._own.pop(event.number, None)) is not None:
                    change.saved.fail(error_of(event.code, event.message))
                self._put(self._whole("rejected"))
            case PresenceChanged():
                self._present.set(event.states)
            case Ended():
                self.fail(error_of(event.code, event.message))
            case WentLive() | GaveUp() | Stalled() | Complaint():
                pass  # The status says it.
            case _:
                assert_never(event)

    def refresh(self) -> None:
        self._unsaved.set(self.unsaved_count if self._error is None else 0)
        self._applied.set(self.seq)
        self._status.set(self._engine.machine.document_status(self.name))

    def fail(self, error: Exception) -> None:
        """Nothing will come any more: whoever waits is told why."""
        if self._error is None:
            self._error = error
        for reader in self._readers:
            reader.end(None if isinstance(error, LinkClosedError) else error)
        for change in self._own.values():
            change.saved.fail(error)
        self._own.clear()
        self._unsaved.set(0)
        self._applied.wake()
        self._status.wake()

    # -------------------------------------------------------------------------------------- helpers

    @property
    def _replica(self) -> Replica:
        assert self._opened is not None, "a document is used within its `async with` block"
        return self._opened

    def _put(self, change: Change) -> None:
        for reader in self._readers:
            reader.put(change)
        for watcher in list(self._watchers):
            try:
                watcher(change)
            except ProtocolError:
                # It could not use what the router sent: that ends the connection.
                raise
            except Exception as error:  # noqa: BLE001 (the application's; it costs nobody else)
                context = {"message": f"a watcher of {self.name!r} raised", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def _whole(self, reason: Literal["missed", "rejected"]) -> Replaced:
        return Replaced(self.seq, self.state, reason)

    async def _until_saved(self) -> None:
        try:
            async with asyncio.timeout(self._save_timeout_s):
                await self._unsaved.until(lambda count: count == 0)
        except TimeoutError:
            pass

    def _close(self) -> int:
        unsaved_count = self.unsaved_count
        engine = self._engine
        del engine.listeners[self.name]
        engine.take(engine.machine.close(self.name))
        self._status.set(DocumentStatus.CLOSED)
        self.fail(LinkClosedError(f"the document {self.name!r} is closed"))
        return unsaved_count
