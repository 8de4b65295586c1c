"""`/cable`: Yjs documents over Action Cable, for unmodified Rails clients (docs/formats/cable.md).

One connection has any number of subscriptions, each named by its identifier and each a replica of
its own (`syncline.server.cable_channel`). What goes wrong in one of them ends that one alone.
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

from syncline.errors import (
    NotAuthorizedError,
    ProtocolError,
    RefusedError,
    StorageError,
    StoreBusyError,
    UnexpectedMessageError,
)
from syncline.server.cable_channel import AUTHOR_BYTES, CableChannel
from syncline.server.documents import Documents
from syncline.server.faces import Accepted, Peer, Rejected, Upgrade
from syncline.server.frames import frame
from syncline.server.grants import Grant
from syncline.server.open_document import OpenDocument
from syncline.server.token_expiry import TokenExpiry
from syncline.server.yjs_rooms import YjsRooms
from syncline.values import limits
from syncline.values.updates import Update
from syncline.wire import cable, cable_payloads, yjs

PATH = "/cable"
PING_SECONDS = 3.0
NORMAL = 1000


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
        # A large update is looked at; until it is, the order of what comes rests on not reading on.
        self.is_checking = False
        self._expiry: TokenExpiry | None = None

    # What the socket tells.

    def opened(self, peer: Peer) -> None:
        self.peer = peer
        try:
            self.grant = self.face.authorize(self._token)
        except NotAuthorizedError:
            self.disconnect("unauthorized", reconnect=False)
            return
        if self.grant.expires_ms is not None:
            self._expiry = TokenExpiry(self.grant.expires_ms, self.face.clock_ms, self._expired)
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
        if self.face.documents.is_congested and not self.is_checking:
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
        self, channel: CableChannel, identifier: str, history: cable.HistoryRequest | None
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

    def in_channel(self, identifier: str, act: Callable[[CableChannel], None]) -> None:
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
