"""`/yjs/<document>`: what y-websocket clients speak, unchanged. Page: docs/formats/yjs.md

The protocol has no acknowledgements and no names of clients. An update that was relayed or is in a
sync step 2 is durable, as everywhere; a client that reconnects compares state vectors, so whatever
it sent and nobody stored is sent again. Handing over to the socket counts as arrived.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from syncline.core.document import Subscription
from syncline.core.kinds.yjs import is_empty
from syncline.errors import (
    LimitExceededError,
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
from syncline.server.grants import Grant
from syncline.server.open_document import Member, OpenDocument
from syncline.server.token_expiry import TokenExpiry
from syncline.server.tokens import token_subprotocol
from syncline.server.yjs_rooms import YjsRooms
from syncline.server.yjs_steps import answer_step_1, folding_of, has_news
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.values.updates import Update
from syncline.wire import awareness, yjs
from syncline.wire.names import check_document

PREFIX = "/yjs/"

# Clients take every code from 4400 to 4499 as final; after any other they come again.
MALFORMED = 4400
UNAUTHORIZED = 4401
UNKNOWN = 4404
WRONG_KIND = 4409
TOO_MUCH = 4429
TRY_AGAIN = 1013

AUTHOR_BYTES = 8
Taken = TypeVar("Taken")
# For clients that show no awareness, and so hear no echo of it: they wait 30 s for any message, and
# pings of the WebSocket do not count with them.
_NOBODY = frame(yjs.encode(yjs.AwarenessUpdate(awareness.encode([]))), is_text=False)


class YjsDialect:
    """What readers of y-websocket are told of updates."""

    def update(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        return frame(yjs.encode_update(update.body), is_text=False)

    def stored(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        return b""


class YjsFace:
    """Accepts connections to `/yjs/<document>`."""

    def __init__(
        self,
        documents: Documents,
        rooms: YjsRooms,
        authorize: Callable[[str | None], Grant],
        token_of: Callable[[Upgrade], str | None],
        random_bytes: Callable[[int], bytes],
        clock_ms: Callable[[], int],
        frame_bytes_max: int = limits.frame_bytes_max,
    ) -> None:
        self.documents = documents
        self.rooms = rooms
        self.authorize = authorize
        self.token_of = token_of
        self.random_bytes = random_bytes
        self.clock_ms = clock_ms
        self.frame_bytes_max = frame_bytes_max
        self.dialect = YjsDialect()

    def accept(self, upgrade: Upgrade) -> Accepted | Rejected:
        name = upgrade.path.removeprefix(PREFIX)
        try:
            check_document(name)
        except ProtocolError as error:
            return Rejected(400, str(error))
        # y-websocket has no subprotocol of its own. A client that offers one to bring its token
        # gives up unless it is agreed on.
        return Accepted(
            YjsConnection(self, name, self.token_of(upgrade)), token_subprotocol(upgrade)
        )


class YjsConnection:
    """One connection, which is one document."""

    def __init__(self, face: YjsFace, name: str, token: str | None) -> None:
        self._face = face
        self._name = name
        self._token = token
        self._peer: Peer
        self._member: Member | None = None
        self._document: OpenDocument
        self._may_write = False
        self._grant: Grant
        self._has_closed = False
        self._is_checking = False
        # Somebody came or left while it had no room to be told.
        self._is_awareness_due = False
        self._expiry: TokenExpiry | None = None

    # What the socket tells.

    def opened(self, peer: Peer) -> None:
        self._peer = peer
        try:
            self._grant = self._granted()
        except NotAuthorizedError as error:
            self._deny(str(error))
            return
        if not self._face.documents.patience.run(self._join_if_wanted, self._refuse):
            # What it has to say waits with it.
            peer.pause_reading()

    def _join_if_wanted(self) -> None:
        if self._has_closed:
            return
        try:
            self._join(self._grant)
        except StoreBusyError:
            raise
        except (RefusedError, StorageError) as error:
            self._refuse(error)
        self._peer.resume_reading()

    def _refuse(self, error: SynclineError) -> None:
        if isinstance(error, RefusedError):
            self._peer.close(_refused_code(error), f"{error.code.lower()}: {error}")
        else:
            self._peer.close(TRY_AGAIN, f"busy: {error}")

    def _granted(self) -> Grant:
        grant = self._face.authorize(self._token)
        if not grant.may_read(self._name):
            raise NotAuthorizedError("the token does not allow this document")
        if grant.expires_ms is not None:
            expired = partial(self._deny, "the token has expired")
            self._expiry = TokenExpiry(grant.expires_ms, self._face.clock_ms, expired)
        return grant

    def _deny(self, reason: str) -> None:
        self._send(yjs.AuthDenied(reason))
        self._peer.close(UNAUTHORIZED, f"unauthorized: {reason}")

    def _join(self, grant: Grant) -> None:
        face = self._face
        self._may_write = grant.may_write(self._name)
        author = f"y-{face.random_bytes(AUTHOR_BYTES).hex()}"
        member = face.documents.join(author, self._peer, face.dialect, self, acknowledges=False)
        try:
            self._document, _ = face.documents.subscribe(
                member, self._name, 1, kind=Kind.YJS, may_create=self._may_write
            )
        except SynclineError:
            face.documents.leave(member)
            raise
        self._member = member
        self._send(yjs.SyncStep1(folding_of(self._document).state_vector()))
        face.rooms.enter(self._name, member.connection, self.tell_awareness)
        self._peer.keep_warm(_NOBODY)
        face.documents.feed(member, self._name)

    def received(self, data: bytes, is_text: bool) -> None:
        member = self._member
        if member is None:
            return
        if is_text:
            self._peer.close(MALFORMED, "malformed: y-websocket speaks binary frames")
            return
        face = self._face
        if (update := yjs.read_short_update(data, face.frame_bytes_max)) is not None:
            face.documents.take_later(self._take_update, update)
        else:
            # In the order in which they came.
            face.documents.take_arrived()
            self._attempt(self._decode_and_take, member, data)

    def _decode_and_take(self, member: Member, data: bytes) -> None:
        message = yjs.decode(data, self._face.frame_bytes_max)
        checks = self._face.documents.checks
        match message:
            case yjs.SyncUpdate(update=update) | yjs.SyncStep2(update=update) if (
                self._may_write and checks.is_large(update)
            ):
                self._is_checking = True
                self._peer.pause_reading()
                checks.check(update, partial(self._checked, member, message))
            case _:
                self._take(member, message)

    def _checked(self, member: Member, message: yjs.Frame, error: ProtocolError | None) -> None:
        self._is_checking = False

        def take(member: Member, message: yjs.Frame) -> None:
            if error is not None:
                raise error
            self._take(member, message, is_checked=True)

        # Whoever has left meanwhile has said it before; who was sent away need not be heard.
        if self._member is member and self._name in member.documents:
            self._attempt(take, member, message)
        if self._has_closed:
            self._leave()
        elif not self._face.documents.is_congested:
            self._peer.resume_reading()

    def _take_update(self, update: bytes) -> None:
        if (member := self._member) is not None:
            self._attempt(self._mutate, member, update)

    def _attempt(self, act: Callable[[Member, Taken], None], member: Member, what: Taken) -> None:
        try:
            act(member, what)
        except LimitExceededError as error:
            self._peer.close(TOO_MUCH, f"limit: {error}")
        except ProtocolError as error:
            self._peer.close(MALFORMED, f"malformed: {error}")
        except (RefusedError, StorageError) as error:
            self._refuse(error)
        # While an update is looked at nothing is read anyway, and the disk is no reason to go on.
        if self._face.documents.is_congested and not self._is_checking:
            self._peer.pause_reading()
            self._face.documents.when_relieved(self._peer.resume_reading)

    def drained(self) -> None:
        if self._member is None:
            return
        self._face.documents.drained(self._member)
        if self._is_awareness_due and self._peer.is_writable:
            self._is_awareness_due = False
            self._face.rooms.tell_missed_to(self._name, self.tell_awareness)

    def closed(self, code: int, reason: str) -> None:
        self._has_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._face.documents.take_arrived()
        if not self._is_checking:
            self._leave()

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            self._face.rooms.leave(self._name, member.connection)
            self._face.documents.leave(member)

    # What the peer says.

    def _take(self, member: Member, message: yjs.Frame, *, is_checked: bool = False) -> None:
        match message:
            case yjs.SyncUpdate(update=update):
                self._mutate(member, update, is_checked=is_checked)
            case yjs.SyncStep1(state_vector=state_vector):
                for answer in answer_step_1(self._document, state_vector):
                    self._send(answer)
            case yjs.SyncStep2(update=update):
                if self._may_write and has_news(self._document, update, is_checked=is_checked):
                    self._mutate(member, update, is_checked=True)
            case yjs.AwarenessUpdate(update=update):
                self._show(member, awareness.decode(update))
            case yjs.QueryAwareness():
                self._face.rooms.tell_everybody_to(self._name, self.tell_awareness)
            case yjs.AuthDenied():
                raise UnexpectedMessageError("auth frames come from the router alone")

    def _show(self, member: Member, entries: list[awareness.Entry]) -> None:
        self._face.rooms.show(self._name, member.connection, entries)
        # Who shows itself renews its state, and hears the echo of that.
        is_shown = any(entry.state is not None for entry in entries)
        self._peer.keep_warm(b"" if is_shown else _NOBODY)

    def _mutate(self, member: Member, update: bytes, *, is_checked: bool = False) -> None:
        # Who may only read shares a document with those who write: what it types stays with it.
        if self._may_write and not is_empty(update):
            self._face.documents.mutate(member, self._name, 0, update, is_checked=is_checked)

    # What the others tell.

    def tell_awareness(self, update: bytes) -> None:
        if self._peer.is_writable:
            self._send(yjs.AwarenessUpdate(update))
        else:
            self._is_awareness_due = True

    def evicted(self, document: OpenDocument, subscription: Subscription) -> None:
        self._peer.close(TRY_AGAIN, "evicted: connect again for the state")

    def ended(
        self, document: OpenDocument, subscription: Subscription, error: SynclineError
    ) -> None:
        self._refuse(error)

    def presence_changed(
        self, document: OpenDocument, subscription: Subscription, states: dict[str, Any]
    ) -> None:
        """Presence of `/sync` is of another make than awareness."""

    def _send(self, message: yjs.Frame) -> None:
        self._peer.send(yjs.encode(message), is_text=False)


def _refused_code(error: RefusedError) -> int:
    return {"UNKNOWN_DOCUMENT": UNKNOWN, "KIND": WRONG_KIND, "DOCUMENT_FULL": TOO_MUCH}.get(
        error.code, MALFORMED
    )
