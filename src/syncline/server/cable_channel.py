"""One subscription of `/cable`: one document, one replica (docs/formats/cable.md).

A plain client gets what it gets from Rails. One that sends clocks or numbers is told when its
updates are stored; one that acknowledges is tracked like a client of `/sync`; one that speaks the
extended protocol gets offsets, and what it missed when it comes back with them.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from syncline.core.document import Repeated, Subscription
from syncline.core.kinds.yjs import is_empty
from syncline.errors import (
    NotAuthorizedError,
    ProtocolError,
    RefusedError,
    SynclineError,
    UnexpectedMessageError,
)
from syncline.server.frames import frame
from syncline.server.open_document import Member, OpenDocument
from syncline.server.sessions import author_of
from syncline.server.yjs_steps import answer_step_1, folding_of, has_news
from syncline.values.kinds import Kind
from syncline.values.updates import Update
from syncline.wire import awareness, cable, cable_payloads, yjs

if TYPE_CHECKING:
    from syncline.server.cable_face import CableConnection

AUTHOR_BYTES = 8

# How a client wants to hear that its updates are stored.
Receipts = Literal["none", "clock", "number"]


class CableChannel:
    """One subscription: one document, one replica. It is its own dialect: identifiers differ."""

    def __init__(self, connection: "CableConnection", identifier: str) -> None:
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
        # It was not told of everything in the room, since its connection did not keep up.
        self._is_awareness_due = False

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
            self._is_awareness_due = False

    def _leave_stream(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            self._face.documents.leave(member)

    def drained(self) -> None:
        if self._member is not None:
            self._face.documents.drained(self._member)
        if self._is_awareness_due and self._connection.peer.is_writable:
            self._is_awareness_due = False
            self._face.rooms.tell_missed_to(self._name, self._tell_awareness)

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
                self._connection.is_checking = True
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

        self._connection.is_checking = False
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
        else:
            self._is_awareness_due = True

    def _send_frame(self, inside: yjs.Frame) -> None:
        self._send_payload(cable_payloads.encode(cable_payloads.Frame(yjs.encode(inside))))

    def _send_payload(self, payload: bytes) -> None:
        self._connection.peer.send_framed(self._framed(payload))
