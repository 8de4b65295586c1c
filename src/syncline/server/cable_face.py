"""`/cable`: Yjs documents over Action Cable, for unmodified Rails clients (docs/formats/cable.md).

One connection has any number of subscriptions, each named by its identifier and each a replica of
its own. A plain client gets what it gets from Rails. One that sends clocks or numbers is told when
its updates are stored; one that acknowledges is tracked like a client of `/sync`; one that speaks
the extended protocol gets offsets, and what it missed when it comes back with them.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, assert_never

from syncline.core.document import Repeated, Subscription
from syncline.core.kinds.yjs import is_empty
from syncline.errors import (
    NotAuthorizedError,
    ProtocolError,
    RefusedError,
    StorageError,
    StoreBusyError,
    SynclineError,
    UnexpectedMessageError,
)
from syncline.server.documents import Documents
from syncline.server.faces import Accepted, Peer, Rejected, Upgrade
from syncline.server.frames import frame
from syncline.server.open_document import Member, OpenDocument
from syncline.server.sessions import author_of
from syncline.server.sync_face import Grant
from syncline.server.yjs_rooms import YjsRooms
from syncline.server.yjs_steps import answer_step_1, folding_of, has_news
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.values.updates import Update
from syncline.wire import awareness, cable, cable_payloads, yjs

PATH = "/cable"
PING_SECONDS = 3.0
AUTHOR_BYTES = 8
NORMAL = 1000

# How a client wants to hear that its updates are stored.
Receipts = Literal["none", "clock", "number"]


class CableFace:
    """Accepts connections to `/cable`, and pings all of them."""

    def __init__(
        self,
        documents: Documents,
        rooms: YjsRooms,
        authorize: Callable[[str | None], Grant],
        token_of: Callable[[Upgrade], str | None],
        random_bytes: Callable[[int], bytes],
        clock_ms: Callable[[], int],
        frame_bytes_max: int = limits.frame_bytes_max,
        subscription_count_max: int = 1_000,
    ) -> None:
        self.documents = documents
        self.rooms = rooms
        self.authorize = authorize
        self.token_of = token_of
        self.random_bytes = random_bytes
        self.clock_ms = clock_ms
        self.frame_bytes_max = frame_bytes_max
        self.subscription_count_max = subscription_count_max
        self._peers: set[Peer] = set()
        self._timer: asyncio.TimerHandle | None = None
        # All readers of an update get it one after the other: the last one is worth keeping.
        # A document that is made anew counts from 1 again: its incarnation tells them apart.
        self._last: tuple[bytes, int, bytes] = (b"", 0, b"")

    def accept(self, upgrade: Upgrade) -> Accepted | Rejected:
        offered = [each for each in cable.SUBPROTOCOLS if each in upgrade.subprotocols]
        subprotocol = offered[0] if offered else None
        if subprotocol is None and upgrade.subprotocols:
            return Rejected(400, f"offer the subprotocol {cable.JSON}")
        is_extended = subprotocol == cable.EXTENDED
        return Accepted(
            CableConnection(self, self.token_of(upgrade), is_extended=is_extended), subprotocol
        )

    def payload(self, document: OpenDocument, update: Update) -> bytes:
        incarnation, seq, payload = self._last
        if incarnation != document.incarnation or seq != update.seq:
            inside = yjs.encode_update(update.body)
            payload = cable_payloads.encode(cable_payloads.Update(update.seq, inside))
            self._last = (document.incarnation, update.seq, payload)
        return payload

    def keep_pinging(self, peer: Peer) -> None:
        self._peers.add(peer)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._ping)

    def stop_pinging(self, peer: Peer) -> None:
        self._peers.discard(peer)

    def _ping(self) -> None:
        self._timer = None
        ping = frame(cable.encode(cable.Ping(message=self.clock_ms() // 1000)), is_text=True)
        for peer in list(self._peers):
            if peer.is_writable:
                peer.send_framed(ping)
            self.keep_pinging(peer)


class CableConnection:
    """One connection with its subscriptions."""

    def __init__(self, face: CableFace, token: str | None, *, is_extended: bool) -> None:
        self.face = face
        self.is_extended = is_extended
        self.peer: Peer
        self.grant: Grant
        self._token = token
        self._channels: dict[str, CableChannel] = {}
        self._is_over = False
        self._expiry: asyncio.TimerHandle | None = None

    # What the socket tells.

    def opened(self, peer: Peer) -> None:
        self.peer = peer
        try:
            self.grant = self.face.authorize(self._token)
        except NotAuthorizedError:
            self.disconnect("unauthorized", reconnect=False)
            return
        if self.grant.expires_ms is not None:
            seconds = max(0.0, (self.grant.expires_ms - self.face.clock_ms()) / 1000)
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._expired)
        sid = self.face.random_bytes(AUTHOR_BYTES).hex() if self.is_extended else None
        self.send(cable.Welcome(sid=sid))
        self.face.keep_pinging(peer)

    def _expired(self) -> None:
        self.disconnect("unauthorized", reconnect=False)

    def received(self, data: bytes, is_text: bool) -> None:
        if self._is_over:
            return
        try:
            if not is_text:
                raise UnexpectedMessageError("Action Cable speaks text frames")
            self._take(cable.decode_command(data, self.face.frame_bytes_max))
        except ProtocolError:
            self.disconnect("invalid_request", reconnect=False)
        if self.face.documents.is_congested:
            self.peer.pause_reading()
            self.face.documents.when_relieved(self.peer.resume_reading)

    def drained(self) -> None:
        for channel in list(self._channels.values()):
            channel.drained()

    def closed(self, code: int, reason: str) -> None:
        self._is_over = True
        if self._expiry is not None:
            self._expiry.cancel()
        self.face.stop_pinging(self.peer)
        for channel in self._channels.values():
            channel.leave()
        self._channels.clear()

    # What the peer says.

    def _take(self, command: cable.ClientCommand) -> None:
        match command:
            case cable.Perform(identifier=identifier, data=data):
                self._perform(identifier, data)
            case cable.Whisper(identifier=identifier, data=data):
                self._perform(identifier, bytes(data))
            case cable.Subscribe():
                self._subscribe(command)
            case cable.Unsubscribe(identifier=identifier):
                if (channel := self._channels.pop(identifier, None)) is not None:
                    channel.leave()
            case cable.AskHistory(identifier=identifier, history=history):
                self.in_channel(identifier, lambda channel: channel.begin_again(history))
            case cable.Pong() | cable.Join() | cable.Leave() | cable.AskPresence():
                pass
            case _:
                assert_never(command)

    def _subscribe(self, command: cable.Subscribe) -> None:
        identifier = command.identifier
        if identifier in self._channels:
            # Rails ignores a second one; clients repeat it until the first is confirmed.
            return
        try:
            if len(self._channels) >= self.face.subscription_count_max:
                raise UnexpectedMessageError("too many subscriptions on one connection")
            self._channels[identifier] = CableChannel(self, identifier)
        except (ProtocolError, RefusedError):
            self.reject(identifier)
        else:
            self._begin(self._channels[identifier], identifier, command.history)

    def _begin(
        self, channel: "CableChannel", identifier: str, history: cable.HistoryRequest | None
    ) -> None:
        """With no room for a new document it waits; so does a client that is not confirmed."""

        def begin() -> None:
            if self._channels.get(identifier) is channel:
                self.in_channel(identifier, lambda channel: channel.begin(history))

        def give_up(busy: StoreBusyError) -> None:
            if self._channels.get(identifier) is channel:
                self.disconnect("server_restart", reconnect=True)

        self.face.documents.patience.run(begin, give_up)

    def _perform(self, identifier: str, data: str | bytes) -> None:
        self.in_channel(identifier, lambda channel: channel.take(cable_payloads.read_sent(data)))

    def in_channel(self, identifier: str, act: "Callable[[CableChannel], None]") -> None:
        """What goes wrong in a subscription ends that one alone, unless the store is at fault."""
        channel = self._channels.get(identifier)
        if channel is None:
            return
        try:
            act(channel)
        except (ProtocolError, RefusedError):
            self.reject(identifier)
        except StoreBusyError:
            if channel.is_joined:
                self.disconnect("server_restart", reconnect=True)
            else:
                raise
        except StorageError:
            self.disconnect("server_restart", reconnect=True)

    # Sending.

    def send(self, event: cable.ServerEvent) -> None:
        self.peer.send(cable.encode(event), is_text=True)

    def reject(self, identifier: str) -> None:
        """The only way to say no: the client forgets the subscription, the others stay."""
        if (channel := self._channels.pop(identifier, None)) is not None:
            channel.leave()
        self.send(cable.Rejected(identifier=identifier))

    def disconnect(self, reason: cable.Reason, *, reconnect: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self.send(cable.Disconnect(reason=reason, reconnect=reconnect))
            self.peer.close(NORMAL, reason)


class CableChannel:
    """One subscription: one document, one replica. It is its own dialect: identifiers differ."""

    def __init__(self, connection: CableConnection, identifier: str) -> None:
        """Raises MalformedMessageError, NotAuthorizedError."""
        self._connection = connection
        self._face = connection.face
        self._identifier = identifier
        self._head = cable.encode_head(identifier)
        channel = cable.read_identifier(identifier)
        self._name = channel.document
        grant = connection.grant
        if not grant.may_read(self._name):
            raise NotAuthorizedError("the token does not allow this document")
        self._may_write = grant.may_write(self._name)
        if channel.client is None:
            self._author = f"c-{self._face.random_bytes(AUTHOR_BYTES).hex()}"
        else:
            self._author = author_of(channel.client, grant.subject)
        self._receipts: Receipts = "none"
        self._acknowledges = False
        self._member: Member | None = None
        self._document: OpenDocument
        # Its place in the room, which it keeps while it changes its place in the stream.
        self._seat: int | None = None

    # Coming and going.

    def begin(self, history: cable.HistoryRequest | None) -> None:
        """Raises RefusedError, StorageError."""
        member, resumed = self._joined(self._position(history))
        self._connection.send(cable.Confirmed(identifier=self._identifier))
        if history is not None:
            self._answer_history(resumed)
        self._introduce(member)

    def begin_again(self, history: cable.HistoryRequest) -> None:
        """The client asks, within a subscription, for what it missed.

        If that is not known any more it keeps the place that it has.
        """
        have, before = self._position(history), self._member
        if have is None or before is None:
            self._answer_history(False)
            return
        member, resumed = self._joined(have)
        self._face.documents.leave(before if resumed else member)
        self._answer_history(resumed)
        if resumed:
            self._introduce(member)

    def _joined(self, have: tuple[bytes, int] | None) -> tuple[Member, bool]:
        """A new place in the stream, and whether it is the one that was asked for."""
        documents = self._face.documents
        member = documents.join(
            self._author, self._connection.peer, self, self, acknowledges=self._acknowledges
        )
        try:
            self._document, joined = documents.subscribe(
                member, self._name, 1, kind=Kind.YJS, may_create=self._may_write, have=have
            )
        except SynclineError:
            documents.leave(member)
            raise
        return member, joined.resumed

    def _position(self, history: cable.HistoryRequest | None) -> tuple[bytes, int] | None:
        if history is None or (position := history.streams.get(self._name)) is None:
            return None
        try:
            return bytes.fromhex(position.epoch), position.offset
        except ValueError:
            return None

    def _answer_history(self, resumed: bool) -> None:
        answer = cable.HistoryConfirmed if resumed else cable.HistoryRejected
        self._connection.send(answer(identifier=self._identifier))

    def _introduce(self, member: Member) -> None:
        self._member = member
        self._send_frame(yjs.SyncStep1(folding_of(self._document).state_vector()))
        if self._seat is None:
            self._seat = member.connection
            self._face.rooms.enter(self._name, self._seat, self._tell_awareness)
        self._face.documents.feed(member, self._name)

    @property
    def is_joined(self) -> bool:
        return self._member is not None

    def leave(self) -> None:
        self._leave_stream()
        if self._seat is not None:
            self._face.rooms.leave(self._name, self._seat)
            self._seat = None

    def _leave_stream(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            self._face.documents.leave(member)

    def drained(self) -> None:
        if self._member is not None:
            self._face.documents.drained(self._member)

    # What the client says.

    def take(self, payload: cable_payloads.ClientPayload) -> None:
        """Raises ProtocolError, RefusedError, StorageError."""
        member, seat = self._member, self._seat
        if member is None or seat is None:
            return
        if isinstance(payload, cable_payloads.UpdatesApplied):
            self._acknowledges = True
            member.documents[self._name].subscription.acknowledges = True
            self._face.documents.acknowledge(member, self._name, 1, payload.seq)
            return
        message = yjs.decode(payload.frame, self._face.frame_bytes_max)
        match message:
            case yjs.SyncUpdate(update=update) | yjs.SyncStep2(update=update) if (
                self._may_write and self._face.documents.checks.is_large(update)
            ):
                self._connection.peer.pause_reading()
                checked = partial(self._checked, member, message, payload)
                self._face.documents.checks.check(update, checked)
            case yjs.SyncUpdate() | yjs.SyncStep2():
                self._take_update(member, message, payload)
            case yjs.SyncStep1(state_vector=state_vector):
                for answer in answer_step_1(self._document, state_vector):
                    self._send_frame(answer)
            case yjs.AwarenessUpdate(update=update):
                self._face.rooms.show(self._name, seat, awareness.decode(update))
            case yjs.QueryAwareness():
                self._face.rooms.tell_everybody_to(self._name, self._tell_awareness)
            case yjs.AuthDenied():
                raise UnexpectedMessageError("auth frames come from the router alone")

    def _checked(
        self,
        member: Member,
        message: yjs.SyncUpdate | yjs.SyncStep2,
        sent: cable_payloads.FrameSent,
        error: ProtocolError | None,
    ) -> None:
        """A large update was looked at, while nothing else was read from this connection."""

        def take(_channel: "CableChannel") -> None:
            if error is not None:
                raise error
            self._take_update(member, message, sent, is_checked=True)

        if self._member is member and self._name in member.documents:
            self._connection.in_channel(self._identifier, take)
        if self._face.documents.is_congested:
            self._face.documents.when_relieved(self._connection.peer.resume_reading)
        else:
            self._connection.peer.resume_reading()

    def _take_update(
        self,
        member: Member,
        message: yjs.SyncUpdate | yjs.SyncStep2,
        sent: cable_payloads.FrameSent,
        *,
        is_checked: bool = False,
    ) -> None:
        # Of a step 2 only what is news; but who waits for a receipt gets one, whatever is in it.
        is_wanted = (
            isinstance(message, yjs.SyncUpdate)
            or sent.clock is not None
            or sent.number is not None
            or (self._may_write and has_news(self._document, message.update, is_checked=is_checked))
        )
        if is_wanted:
            self._mutate(member, message.update, sent, is_checked=is_checked)

    def _mutate(
        self,
        member: Member,
        update: bytes,
        sent: cable_payloads.FrameSent,
        *,
        is_checked: bool,
    ) -> None:
        if sent.number == 0:
            raise UnexpectedMessageError("the numbers of updates count from 1")
        clock = sent.clock or sent.number or 0
        if sent.clock is not None:
            self._receipts = "clock"
        elif sent.number is not None:
            self._receipts = "number"
        if not self._may_write:
            raise NotAuthorizedError("the token does not allow writing")
        if is_empty(update) and not clock:
            return
        known = self._face.documents.mutate(
            member, self._name, clock, update, is_checked=is_checked
        )
        if isinstance(known, Repeated):
            reader = member.documents[self._name]
            if known.seq <= reader.subscription.sent:
                self._send_payload(self._receipt(known.clock, known.seq))

    # The dialect.

    def update(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        return self._framed(self._face.payload(document, update), update.seq)

    def stored(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        if self._receipts == "none" or not update.clock:
            return b""
        return self._framed(self._receipt(update.clock, update.seq), update.seq)

    def _receipt(self, clock: int, seq: int) -> bytes:
        if self._receipts == "clock":
            return cable_payloads.encode(cable_payloads.Receipt(clock, seq))
        return cable_payloads.encode(cable_payloads.NumberedReceipt(clock))

    def _framed(self, payload: bytes, seq: int | None = None) -> bytes:
        tail = b"}"
        if self._connection.is_extended and seq is not None:
            position = cable.StreamPosition(self._document.incarnation.hex(), seq)
            tail = cable.encode_tail(self._name, position)
        return frame(self._head + payload + tail, is_text=True)

    # What the documents tell.

    def evicted(self, document: OpenDocument, subscription: Subscription) -> None:
        self._leave_stream()
        if not self._acknowledges:
            # It knows nothing of places: only connecting again makes it ask for what it lacks.
            self._connection.disconnect("server_restart", reconnect=True)
            return
        self._acknowledges = False
        self._send_payload(cable_payloads.encode(cable_payloads.Resync(subscription.acked)))
        try:
            member, _ = self._joined(None)
        except SynclineError:
            self._connection.reject(self._identifier)
        else:
            self._introduce(member)

    def ended(
        self, document: OpenDocument, subscription: Subscription, error: SynclineError
    ) -> None:
        self._leave_stream()
        if isinstance(error, RefusedError):
            self._connection.reject(self._identifier)
        else:
            self._connection.disconnect("server_restart", reconnect=True)

    def presence_changed(
        self, document: OpenDocument, subscription: Subscription, states: dict[str, Any]
    ) -> None:
        """Presence of `/sync` is of another make than awareness."""

    def _tell_awareness(self, update: bytes) -> None:
        if self._connection.peer.is_writable:
            self._send_frame(yjs.AwarenessUpdate(update))

    def _send_frame(self, inside: yjs.Frame) -> None:
        self._send_payload(cable_payloads.encode(cable_payloads.Frame(yjs.encode(inside))))

    def _send_payload(self, payload: bytes) -> None:
        self._connection.peer.send_framed(self._framed(payload))
