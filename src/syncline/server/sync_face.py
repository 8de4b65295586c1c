"""`/sync`: any number of documents over one WebSocket. The protocol is docs/formats/sync.md.

A connection says `hello` and is welcomed; then it subscribes. Whatever a peer does wrong concerns
that peer alone: it gets an `error` or is closed with a code, and the documents do not notice.

The epoch of a subscription is one more than the number of subscriptions that have ended on this
connection. So it grows with every new subscription of a document, nothing has to be remembered of
the old ones, and it is 1 for nearly everybody: readers of the same epoch share their frames.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from syncline.core.document import Joined, Repeated, Subscription
from syncline.errors import (
    LimitExceededError,
    MalformedMessageError,
    NotAuthorizedError,
    ProtocolError,
    RefusedError,
    StorageError,
    StoreBusyError,
    SynclineError,
    UnexpectedMessageError,
    UnknownDocumentError,
)
from syncline.server.documents import Documents
from syncline.server.faces import Accepted, Peer, Rejected, Upgrade
from syncline.server.grants import Grant
from syncline.server.open_document import Member, OpenDocument, Reader
from syncline.server.sessions import Sessions, author_of
from syncline.server.sync_dialect import SyncDialect
from syncline.server.token_expiry import TokenExpiry
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire import sync_bodies
from syncline.wire.sync import (
    SUBPROTOCOLS,
    VERSION,
    decode_client,
    encode_server,
)
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import (
    Acknowledge,
    ClientMessage,
    Evicted,
    Failure,
    Hello,
    Mutate,
    Ping,
    Pong,
    Presence,
    Receipt,
    RenewToken,
    ServerMessage,
    ShowPresence,
    State,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)

MALFORMED = 4400
UNAUTHORIZED = 4401
NO_HELLO = 4408
DISPLACED = 4409
BAD_VERSION = 4426
TOO_MUCH = 4429

SESSION_BYTES = 12


@dataclass(frozen=True, slots=True)
class SyncSettings:
    frame_bytes_max: int = limits.frame_bytes_max
    document_count_max: int = 1_000
    heartbeat_ms: int = 20_000
    hello_seconds_max: float = 10.0


class SyncFace:
    """Accepts connections to `/sync`."""

    def __init__(
        self,
        documents: Documents,
        sessions: Sessions,
        authorize: Callable[[str | None], Grant],
        token_of: Callable[[Upgrade], str | None],
        random_bytes: Callable[[int], bytes],
        clock_ms: Callable[[], int],
        settings: SyncSettings | None = None,
    ) -> None:
        self.documents = documents
        self.sessions = sessions
        self.authorize = authorize
        self.token_of = token_of
        self.random_bytes = random_bytes
        self.clock_ms = clock_ms
        self.settings = settings or SyncSettings()
        self.dialects: dict[Encoding, SyncDialect] = {
            "json": SyncDialect("json"),
            "msgpack": SyncDialect("msgpack"),
        }

    def accept(self, upgrade: Upgrade) -> Accepted | Rejected:
        known = [offered for offered in upgrade.subprotocols if offered in SUBPROTOCOLS]
        subprotocol = known[0] if known else None
        encoding: Encoding = SUBPROTOCOLS[subprotocol] if subprotocol else "json"
        return Accepted(SyncConnection(self, encoding, self.token_of(upgrade)), subprotocol)


class SyncConnection:
    """One connection, from `hello` to its end."""

    def __init__(self, face: SyncFace, encoding: Encoding, token: str | None) -> None:
        self._face = face
        # Of the request; one in `hello` comes first.
        self._request_token = token
        self._documents = face.documents
        self._encoding: Encoding = encoding
        self._is_text = encoding == "json"
        self._peer: Peer
        self._member: Member | None = None
        self._grant: Grant
        self._hello: Hello
        self._ended_count = 0
        # Subscriptions that wait for the disk, each with its ticket.
        self._joining: dict[str, object] = {}
        self._is_over = False
        # A large update is looked at; until it is, the order of what comes rests on not reading on.
        self._is_checking = False
        # Of `hello`, then of the token.
        self._deadline: asyncio.TimerHandle | TokenExpiry | None = None

    # What the socket tells.

    def opened(self, peer: Peer) -> None:
        self._peer = peer
        self._deadline = asyncio.get_running_loop().call_later(
            self._face.settings.hello_seconds_max,
            self._close,
            NO_HELLO,
            "unexpected: no hello came in time",
        )

    def received(self, data: bytes, is_text: bool) -> None:
        if self._is_over:
            return
        try:
            if is_text != self._is_text:
                raise MalformedMessageError(
                    f"{'text' if is_text else 'binary'} frames do not belong into this subprotocol"
                )
            message = decode_client(data, self._encoding, self._face.settings.frame_bytes_max)
            self._take(message)
        except LimitExceededError as error:
            self._close(TOO_MUCH, f"limit: {error}")
        except ProtocolError as error:
            self._close(MALFORMED, f"malformed: {error}")
        if not self._is_over and not self._is_checking and self._documents.is_congested:
            self._peer.pause_reading()
            self._documents.when_relieved(self._peer.resume_reading)

    def drained(self) -> None:
        if self._member is not None:
            # What is stored comes before what is only shown.
            self._documents.drained(self._member)
            for reader in self._member.documents.values():
                self._tell_due_presence(reader)

    def closed(self, code: int, reason: str) -> None:
        self._is_over = True
        self._joining.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        member, self._member = self._member, None
        if member is None:
            return
        names = tuple(member.documents)
        self._documents.leave(member, keeps_places=self._hello.policy == "resume")
        self._face.sessions.release(member.author, self)
        if self._hello.policy != "clean" and names:
            self._face.sessions.keep(member.author, names)

    def displace(self) -> None:
        self._close(DISPLACED, "displaced: another connection came with the same client id")
        # Its places are to be had at once, not when the socket has closed.
        self.closed(DISPLACED, "displaced")

    def _close(self, code: int, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._peer.close(code, reason)

    # What the peer says.

    def _take(self, message: ClientMessage) -> None:
        if self._member is None:
            if not isinstance(message, Hello):
                raise UnexpectedMessageError("the first message must be `hello`")
            self._welcome(message)
            return
        match message:
            case Mutate():
                self._mutate(self._member, message)
            case Acknowledge():
                self._acknowledge(self._member, message)
            case ShowPresence():
                self._show_presence(self._member, message)
            case Subscribe():
                self._subscribe(self._member, message)
            case Unsubscribe():
                self._unsubscribe(self._member, message)
            case Ping():
                self._send(Pong(nonce=message.nonce))
            case RenewToken():
                self._renew(self._member, message)
            case Hello():
                raise UnexpectedMessageError("`hello` comes once, as the first message")
            case _:
                assert_never(message)

    def _welcome(self, hello: Hello) -> None:
        if hello.version != VERSION:
            self._close(BAD_VERSION, f"version: version {VERSION} is spoken here")
            return
        grant = self._authorized(hello.token or self._request_token)
        if grant is None:
            return
        self._hello = hello
        face = self._face
        author = author_of(hello.client, grant.subject)
        kept = face.sessions.claim(author, self)
        member = self._member = self._documents.join(
            author, self._peer, face.dialects[self._encoding], self, acknowledges=True
        )
        restored = [name for name in kept if grant.may_read(name)]
        self._send(
            Welcome(
                session=face.random_bytes(SESSION_BYTES).hex(),
                version=VERSION,
                limits={
                    "frame_bytes": face.settings.frame_bytes_max,
                    "documents": face.settings.document_count_max,
                    "presence_bytes": limits.presence_bytes_max,
                },
                heartbeat_ms=face.settings.heartbeat_ms,
                restored=restored,
            )
        )
        for name in restored:
            self._join_in_time(member, name, None, None)

    def _authorized(self, token: str | None) -> Grant | None:
        """None if the connection was closed: the token does not do."""
        try:
            grant = self._face.authorize(token)
        except NotAuthorizedError as error:
            self._close(UNAUTHORIZED, f"unauthorized: {error}")
            return None
        self._grant = grant
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if grant.expires_ms is not None:
            expired = partial(self._close, UNAUTHORIZED, "unauthorized: the token has expired")
            self._deadline = TokenExpiry(grant.expires_ms, self._face.clock_ms, expired)
        return grant

    def _renew(self, member: Member, message: RenewToken) -> None:
        subject = self._grant.subject
        grant = self._authorized(message.token)
        if grant is None:
            return
        if grant.subject != subject:
            self._close(UNAUTHORIZED, "unauthorized: the new token is somebody else's")
            return
        for name in [name for name in member.documents if not grant.may_read(name)]:
            self._end(member, name, "unauthorized", "the new token does not allow it", False)
        for name in [name for name in self._joining if not grant.may_read(name)]:
            del self._joining[name]
            self._fail("forbidden", "the new token does not allow this document", name)

    def _subscribe(self, member: Member, message: Subscribe) -> None:
        name = message.document
        if not self._grant.may_read(name):
            self._fail("forbidden", "the token does not allow this document", name)
            return
        self._supersede(name)
        if self._documents.unsubscribe(member, name):
            # It lost its way and begins anew.
            self._ended_count += 1
        elif len(member.documents) + len(self._joining) >= self._face.settings.document_count_max:
            self._fail("limit", "too many documents on one connection", name)
            return
        have: tuple[bytes, int] | None = None
        if message.since is not None:
            have = (_incarnation(message.since.incarnation), message.since.seq)
        self._join_in_time(member, name, message, have)

    def _supersede(self, name: str) -> None:
        """Whoever asked for this waits no longer, and asked for something else. Clients count the
        answers to know which is the one to the last they asked, so there is one to each."""
        if self._joining.pop(name, None) is not None:
            self._fail("superseded", "something else was asked for meanwhile", name, retriable=True)

    def _join_in_time(
        self,
        member: Member,
        name: str,
        message: Subscribe | None,
        have: tuple[bytes, int] | None,
    ) -> None:
        """Join once what this client sent before is durable: only then its clock can be told."""
        self._joining.pop(name, None)
        if not self._documents.is_on_its_way(name, member.author):
            self._join(member, name, message, have)
            return
        ticket = self._joining[name] = object()

        def join(failure: StorageError | None) -> None:
            if self._joining.get(name) is ticket:
                self._join_in_time(member, name, message, have)

        self._documents.when_durable(join)

    def _join(
        self,
        member: Member,
        name: str,
        message: Subscribe | None,
        have: tuple[bytes, int] | None,
    ) -> None:
        """Without a message the subscription is one that was kept."""
        ticket = self._joining[name] = object()

        def join() -> None:
            if self._joining.get(name) is not ticket:
                return
            if self._documents.is_on_its_way(name, member.author):
                # While it waited for room, the same client has written to it over another face.
                self._join_in_time(member, name, message, have)
                return
            self._try_to_join(member, name, message, have)
            self._joining.pop(name, None)

        def give_up(error: StoreBusyError) -> None:
            if self._joining.pop(name, None) is ticket:
                self._fail(_storage_code(error), str(error), name, retriable=error.retriable)

        self._documents.patience.run(join, give_up)

    def _try_to_join(
        self,
        member: Member,
        name: str,
        message: Subscribe | None,
        have: tuple[bytes, int] | None,
    ) -> None:
        """Raises StoreBusyError: there is no room for a new document now."""
        try:
            document, joined = self._documents.subscribe(
                member,
                name,
                self._ended_count + 1,
                kind=message.kind if message is not None else None,
                may_create=self._grant.may_write(name),
                have=have,
            )
        except RefusedError as error:
            self._fail(error.code.lower(), str(error), name)
            return
        except StoreBusyError:
            raise
        except StorageError as error:
            self._fail(_storage_code(error), str(error), name, retriable=error.retriable)
            return
        self._tell_joined(member, document, joined)

    def _tell_joined(self, member: Member, document: OpenDocument, joined: Joined) -> None:
        machine, epoch = document.machine, joined.subscription.epoch
        clock, clock_seq = machine.clocks.newest(member.author)
        assert clock_seq <= machine.head, "what is on its way to the disk is not stored yet"
        self._send(
            Subscribed(
                document=document.name,
                kind=document.kind,
                incarnation=document.incarnation.hex(),
                seq=machine.head,
                resumed=joined.resumed,
                may_write=self._grant.may_write(document.name),
                clock=clock,
                epoch=epoch,
            )
        )
        if not joined.resumed:
            state = sync_bodies.write_state(document.folding.shown(), document.kind, self._encoding)
            self._send(State(document=document.name, seq=joined.seq, state=state, epoch=epoch))
        reader = member.documents[document.name]
        # Everybody's is due; behind a large state it has to wait.
        reader.presence_told = set()
        self._tell_due_presence(reader)
        self._documents.feed(member, document.name)

    def _unsubscribe(self, member: Member, message: Unsubscribe) -> None:
        self._supersede(message.document)
        # Whatever epoch it names: a later one was asked for before this, and is not wanted either.
        reader = member.documents.get(message.document)
        epoch = self._ended_count + 1 if reader is None else reader.subscription.epoch
        if self._documents.unsubscribe(member, message.document):
            self._ended_count += 1
        self._send(Unsubscribed(document=message.document, epoch=epoch))

    def _mutate(self, member: Member, message: Mutate) -> None:
        name = message.document
        if self._current(member, name, message.epoch) is None:
            return
        if not self._grant.may_write(name):
            self._refuse(member, "forbidden", "the token does not allow writing", message)
            return
        document = member.documents[name].document

        def store() -> Repeated | None:
            if document.kind is Kind.JSON:
                body, patch = sync_bodies.read_patch(message.mutation, self._encoding)
                return self._documents.mutate(member, name, message.clock, body, patch)
            body = sync_bodies.read_mutation(message.mutation, document.kind, self._encoding)
            if document.kind is Kind.YJS and self._documents.checks.is_large(body):
                self._check_first(member, message, document, body)
                return None
            return self._documents.mutate(member, name, message.clock, body)

        self._attempt(member, message, document, store)

    def _check_first(
        self, member: Member, message: Mutate, document: OpenDocument, body: bytes
    ) -> None:
        """Nothing more is read before it is known whether this is an update."""
        self._is_checking = True
        self._peer.pause_reading()

        def checked(error: ProtocolError | None) -> None:
            self._is_checking = False
            reader = member.documents.get(message.document)
            if reader is not None and reader.subscription.epoch == message.epoch:
                self._attempt(member, message, document, partial(store, error))
            if self._documents.is_congested:
                self._documents.when_relieved(self._peer.resume_reading)
            else:
                self._peer.resume_reading()

        def store(error: ProtocolError | None) -> Repeated | None:
            if error is not None:
                raise error
            return self._documents.mutate(
                member, message.document, message.clock, body, is_checked=True
            )

        self._documents.checks.check(body, checked)

    def _attempt(
        self,
        member: Member,
        message: Mutate,
        document: OpenDocument,
        store: Callable[[], Repeated | None],
    ) -> None:
        name = message.document
        subscription = member.documents[name].subscription
        try:
            known = store()
        except LimitExceededError as error:
            self._refuse(member, "limit", str(error), message)
        except MalformedMessageError as error:
            self._refuse(member, "invalid_mutation", str(error), message)
        except RefusedError as error:
            self._refuse(member, error.code.lower(), str(error), message)
        except StorageError as error:
            self._end(member, name, _storage_code(error), str(error), error.retriable)
        else:
            if known is not None:
                self._receipt(document, subscription, known)

    def _receipt(self, document: OpenDocument, subscription: Subscription, known: Repeated) -> None:
        # Further on it comes at its place in the stream.
        if known.seq <= subscription.sent:
            self._send(
                Receipt(
                    document=document.name,
                    clock=known.clock,
                    seq=known.seq,
                    epoch=subscription.epoch,
                )
            )

    def _acknowledge(self, member: Member, message: Acknowledge) -> None:
        if self._current(member, message.document, message.epoch) is None:
            return
        try:
            self._documents.acknowledge(member, message.document, message.epoch, message.seq)
        except UnexpectedMessageError as error:
            self._fail("unexpected", str(error), message.document)

    def _show_presence(self, member: Member, message: ShowPresence) -> None:
        if self._current(member, message.document, message.epoch) is None:
            return
        try:
            state = sync_bodies.read_presence(message.state, self._encoding)
        except ProtocolError as error:
            self._fail("malformed", str(error), message.document)
            return
        shown = None if state == b"null" else state
        self._documents.show_presence(member, message.document, shown)

    def _current(self, member: Member, name: str, epoch: int) -> Subscription | None:
        """The subscription that is meant. One that has ended meanwhile is not worth a word."""
        reader = member.documents.get(name)
        if reader is not None and reader.subscription.epoch == epoch:
            return reader.subscription
        if epoch > self._ended_count:
            self._fail("unexpected", "there is no such subscription", name)
        return None

    # What the documents tell.

    def evicted(self, document: OpenDocument, subscription: Subscription) -> None:
        self._ended_count += 1
        self._send(
            Evicted(document=document.name, seq=subscription.acked, epoch=subscription.epoch)
        )

    def ended(
        self, document: OpenDocument, subscription: Subscription, error: SynclineError
    ) -> None:
        self._ended_count += 1
        deleted = isinstance(error, UnknownDocumentError)
        self._send(
            Unsubscribed(
                document=document.name,
                code="deleted" if deleted else _storage_code(error),
                message=str(error),
                retriable=error.retriable,
                epoch=subscription.epoch,
            )
        )

    def presence_changed(
        self, document: OpenDocument, subscription: Subscription, states: dict[str, Any]
    ) -> None:
        reader = document.readers[subscription.connection]
        if reader.presence_told is None:
            if self._peer.is_writable:
                self._send_presence(reader, states)
                return
            # Whoever came with this change is counted in: a `null` too many does no harm.
            reader.presence_told = document.presence.keys() | states.keys()
        self._tell_due_presence(reader)

    def _tell_due_presence(self, reader: Reader) -> None:
        """What is true now, once it can be sent: for one who does not read nothing is queued."""
        told = reader.presence_told
        if told is not None and self._peer.is_writable:
            reader.presence_told = None
            present = reader.document.presence
            self._send_presence(reader, present | dict.fromkeys(told - present.keys()))

    # Sending.

    def _send(self, message: ServerMessage) -> None:
        self._peer.send(encode_server(message, self._encoding), is_text=self._is_text)

    def _send_presence(self, reader: Reader, states: dict[str, Any]) -> None:
        subscription = reader.subscription
        written = {
            author: sync_bodies.write_presence(state or b"null", self._encoding)
            for author, state in states.items()
            if author != subscription.author
        }
        if written:
            name = reader.document.name
            self._send(Presence(document=name, states=written, epoch=subscription.epoch))

    def _fail(self, code: str, sentence: str, document: str, *, retriable: bool = False) -> None:
        self._send(Failure(code=code, message=sentence, retriable=retriable, document=document))

    def _refuse(self, member: Member, code: str, sentence: str, message: Mutate) -> None:
        """For good: the client drops the mutation.

        The subscription ends with it. Otherwise a later mutation could be stored, the connection
        drop before the client hears of this, and the stored clock would seem to cover the refused
        one.
        """
        self._documents.counters.refused_count += 1
        self._send(
            Failure(
                code=code,
                message=sentence,
                retriable=False,
                document=message.document,
                clock=message.clock,
            )
        )
        self._end(member, message.document, "refused", "a mutation was refused", True)

    def _end(self, member: Member, name: str, code: str, sentence: str, retriable: bool) -> None:
        epoch = member.documents[name].subscription.epoch
        self._documents.unsubscribe(member, name)
        self._ended_count += 1
        self._send(
            Unsubscribed(
                document=name, code=code, message=sentence, retriable=retriable, epoch=epoch
            )
        )


def _storage_code(error: SynclineError) -> str:
    return "busy" if error.retriable else "damaged"


def _incarnation(text: str) -> bytes:
    """Empty if it is none of ours: then the client's position means nothing."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
