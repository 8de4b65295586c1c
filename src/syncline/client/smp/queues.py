"""What can be done with a queue over one link, without a store: each function is one command.

All raise FailureError if the router says no, and LinkError if there is no answer. A recipient keeps
what `create` returns; whoever sends needs the sender id alone, and a key once the queue is secured.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from syncline.client.smp.agent_records import NotifierCredentials
from syncline.errors import MalformedMessageError, UnexpectedMessageError
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.links.smp_link import CORR_ID_BYTES, LinkEvent, SmpLink
from syncline.values.queue_records import LinkRecord, QueueMode
from syncline.wire.smp import bodies, versions
from syncline.wire.smp.bodies import Received, ReceivedMessage
from syncline.wire.smp.boxes import SecretBox, shared_secret
from syncline.wire.smp.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    LinkRequest,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    NotifierKeys,
    Off,
    Que,
    QueueRequest,
    Rkey,
    Send,
    Skey,
    Sub,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Ids, Info, Lnk, Msg, Nid, Ok, RouterMessage, Sok

Message = TypeVar("Message", bound=RouterMessage)


class Asking(Protocol):
    """A link, or whatever asks a router on somebody's behalf."""

    @property
    def version(self) -> int: ...

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> RouterMessage: ...


class Readable(Protocol):
    """What reading a queue needs."""

    @property
    def recipient_id(self) -> bytes: ...
    @property
    def key(self) -> PrivateKey: ...
    @property
    def secret(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class NewQueue:
    """All that its recipient knows of a queue. None of it can be had again."""

    recipient_id: bytes
    sender_id: bytes
    mode: QueueMode
    key: PrivateKey
    # Messages are encrypted with it on their way from the router.
    secret: bytes = field(repr=False)
    notifier: NotifierCredentials | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class LinkData:
    """Data behind a short link. A contact address names its id, other queues are given one."""

    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)
    link_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message as it came; `content` is what the sender sent, or that the queue was full."""

    queue: bytes
    message_id: bytes
    content: Received


# -------------------------------------------------------------------------------------- recipients


async def create(
    link: Asking,
    *,
    mode: QueueMode = QueueMode.MESSAGING,
    key_kind: KeyKind = KeyKind.ED25519,
    password: str | None = None,
    subscribes: bool = True,
    has_notifier: bool = False,
    link_data: LinkData | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> NewQueue:
    """A new queue. If the answer is lost the queue exists all the same and is nobody's: asking
    again makes another one."""
    key = PrivateKey.new(key_kind, entropy)
    dh = PrivateKey.new(KeyKind.X25519, entropy)
    # The one sender id that may be chosen follows from the correlation id.
    corr_id = entropy(CORR_ID_BYTES)
    request = QueueRequest(mode)
    if link_data is not None:
        sender_id = bodies.sender_id_of(corr_id)
        data = LinkRequest(link_data.link_id, sender_id, link_data.fixed, link_data.user)
        request = QueueRequest(mode, data)
    notifier_key = PrivateKey.new(KeyKind.ED25519, entropy)
    notifier_dh = PrivateKey.new(KeyKind.X25519, entropy)
    notifier_keys = NotifierKeys(notifier_key.public, notifier_dh.public)
    has_room = link.version >= versions.NOTIFIER_KEYS
    command = New(
        key.public,
        dh.public,
        None if password is None else password.encode(),
        subscribes,
        request,
        notifier_keys if has_notifier and has_room else None,
    )
    answer = _of(Ids, await link.request(command, b"", key, corr_id=corr_id))
    notifier: NotifierCredentials | None = None
    if has_notifier:
        nid = answer.notifier
        if nid is None:
            asked = await link.request(Nkey(notifier_keys), answer.recipient_id, key)
            nid = _of(Nid, asked)
        notifier = _notifier(nid, notifier_key, notifier_dh)
    return NewQueue(
        answer.recipient_id,
        answer.sender_id,
        # Before version 9 nobody but the recipient secures a queue.
        answer.mode or (mode if link.version >= versions.SENDER_KEYS else QueueMode.CONTACT),
        key,
        shared_secret(dh.raw, answer.dh_key.raw),
        notifier,
        answer.link_id,
        answer.service_id,
    )


async def subscribe(link: Asking, queue: Readable) -> QueueMessage | None:
    """Messages come as events of the link from now on. Routers of old versions give the first one
    as their answer."""
    answer = await link.request(Sub(), queue.recipient_id, queue.key)
    if isinstance(answer, Msg):
        return opened(queue, answer)
    if not isinstance(answer, Sok | Ok):
        raise _unexpected(answer)
    return None


async def get(link: Asking, queue: Readable) -> QueueMessage | None:
    """The first message, without subscribing; the same again until it is acknowledged."""
    return _message(queue, await link.request(Get(), queue.recipient_id, queue.key))


async def acknowledge(link: Asking, queue: Readable, message_id: bytes) -> QueueMessage | None:
    """It is deleted. Returns the next one, if there is one and the queue is subscribed."""
    answer = await link.request(Ack(message_id), queue.recipient_id, queue.key)
    return _message(queue, answer)


async def secure(link: Asking, queue: Readable, sender: PublicKey) -> None:
    """Only the holder of this key may send from now on."""
    await _done(link, Key(sender), queue)


async def replace_keys(link: Asking, queue: Readable, keys: tuple[PublicKey, ...]) -> None:
    """Of a contact address: any of these reads it, and no other."""
    await _done(link, Rkey(keys), queue)


async def suspend(link: Asking, queue: Readable) -> None:
    """It takes no more messages; there is no way back."""
    await _done(link, Off(), queue)


async def delete(link: Asking, queue: Readable) -> None:
    await _done(link, Del(), queue)


async def info(link: Asking, queue: Readable) -> bytes:
    """What the router says of the queue, as JSON, for people who look for a fault."""
    return _of(Info, await link.request(Que(), queue.recipient_id, queue.key)).json


async def add_notifier(
    link: Asking, queue: Readable, entropy: Entropy = secrets.token_bytes
) -> NotifierCredentials:
    """New ones: whoever had others is told that they are gone."""
    key = PrivateKey.new(KeyKind.ED25519, entropy)
    dh = PrivateKey.new(KeyKind.X25519, entropy)
    command = Nkey(NotifierKeys(key.public, dh.public))
    answer = _of(Nid, await link.request(command, queue.recipient_id, queue.key))
    return _notifier(answer, key, dh)


async def delete_notifier(link: Asking, queue: Readable) -> None:
    await _done(link, Ndel(), queue)


async def set_link(link: Asking, queue: Readable, data: LinkData) -> None:
    """`data.user` may be another one each time, the rest is set once."""
    if data.link_id is None:
        raise ValueError("which link it is has to be said")
    await _done(link, Lset(data.link_id, data.fixed, data.user), queue)


async def delete_link(link: Asking, queue: Readable) -> None:
    await _done(link, Ldel(), queue)


async def messages(link: SmpLink, queues: Mapping[bytes, Readable]) -> AsyncIterator[QueueMessage]:
    """Messages of these queues as they come over the link, which must have no other reader."""
    while True:
        event: LinkEvent = await link.next_event()
        queue = queues.get(event.entity_id)
        if queue is not None and isinstance(event.message, Msg):
            yield opened(queue, event.message)


def opened(queue: Readable, message: Msg) -> QueueMessage:
    """Raises MalformedMessageError for what was not encrypted for this queue."""
    if len(message.message_id) != bodies.ID_BYTES:
        raise MalformedMessageError("a message has an id of another length")
    box = SecretBox(queue.secret)
    content = bodies.open_received(box, message.message_id, message.body)
    return QueueMessage(queue.recipient_id, message.message_id, content)


# ----------------------------------------------------------------------------------------- senders


async def secure_as_sender(link: Asking, sender_id: bytes, key: PrivateKey) -> None:
    """From now on only this key sends. Doing it again with the same key does no harm."""
    answer = await link.request(Skey(key.public), sender_id, key)
    _of(Ok, answer)


async def send(
    link: Asking,
    sender_id: bytes,
    body: bytes,
    key: PrivateKey | None = None,
    *,
    wants_notification: bool = True,
) -> None:
    """It is stored when this returns. `key` for a queue that is secured, None for one that is not.
    FailureError with QUOTA: the queue is full, and takes more once it has been emptied."""
    flags = b"T" if wants_notification else b"F"
    _of(Ok, await link.request(Send(flags, body), sender_id, key))


async def read_link(link: Asking, link_id: bytes) -> tuple[bytes, LinkRecord]:
    """The sender id and the data of a contact address."""
    answer = _of(Lnk, await link.request(Lget(), link_id))
    return answer.sender_id, LinkRecord(link_id, answer.fixed, answer.user)


async def secure_by_link(link: Asking, link_id: bytes, key: PrivateKey) -> tuple[bytes, LinkRecord]:
    """Secure a queue as its sender by its link. Returns the sender id and the data."""
    answer = _of(Lnk, await link.request(Lkey(key.public), link_id, key))
    return answer.sender_id, LinkRecord(link_id, answer.fixed, answer.user)


# ----------------------------------------------------------------------------------------- helpers


async def _done(
    link: Asking, command: Key | Rkey | Off | Del | Ndel | Lset | Ldel, queue: Readable
) -> None:
    _of(Ok, await link.request(command, queue.recipient_id, queue.key))


def _message(queue: Readable, answer: RouterMessage) -> QueueMessage | None:
    if isinstance(answer, Ok):
        return None
    return opened(queue, _of(Msg, answer))


def _notifier(answer: Nid, key: PrivateKey, dh: PrivateKey) -> NotifierCredentials:
    secret = shared_secret(dh.raw, answer.dh_key.raw)
    return NotifierCredentials(answer.notifier_id, key, secret)


def _of(kind: type[Message], answer: RouterMessage) -> Message:
    if not isinstance(answer, kind):
        raise _unexpected(answer)
    return answer


def _unexpected(answer: RouterMessage) -> UnexpectedMessageError:
    word = type(answer).__name__.upper()
    return UnexpectedMessageError(f"the router answered {word}, which is no answer to that")


def body_of(message: QueueMessage) -> bytes | None:
    """What the sender sent; None if the message says that the queue was full."""
    return message.content.body if isinstance(message.content, ReceivedMessage) else None
