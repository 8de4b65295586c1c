"""NEW: what a client asks for when it asks for a queue, in the four forms that versions give it.

6-8     key, key, [ `A` short password ], mode
9-14    key, key, maybe short password, mode, flag
15-16   key, key, maybe short password, mode, maybe request
17-     key, key, maybe short password, mode, maybe request, maybe (key, key)

mode    = `S` create and subscribe | `C` create only
request = `M` maybe (short sender id, large fixed, large user)
        | `C` maybe (short link id, short sender id, large fixed, large user)
"""

from dataclasses import dataclass, field
from typing import Final

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import versions
from syncline.wire.smp.keys import PublicKey, read_auth_key, read_dh_key, write_key
from syncline.wire.smp.primitives import Reader, flag, large, maybe, short

_PASSWORD: Final = ord("A")
_SUBSCRIBE, _CREATE = b"SC"
_MESSAGING, _CONTACT = b"MC"


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """Data for a short link. The router makes the link id of a messaging queue."""

    link_id: bytes | None
    sender_id: bytes
    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """`link` has a link id if the queue is a contact address, and has none otherwise."""

    mode: QueueMode
    link: LinkRequest | None = None

    def __post_init__(self) -> None:
        if self.link and (self.link.link_id is None) is (self.mode is QueueMode.CONTACT):
            raise ValueError("the link of a contact address has an id, of other queues it has none")


@dataclass(frozen=True, slots=True)
class NotifierKeys:
    auth_key: PublicKey
    dh_key: PublicKey


@dataclass(frozen=True, slots=True)
class New:
    auth_key: PublicKey
    dh_key: PublicKey
    password: bytes | None = field(default=None, repr=False)
    subscribes: bool = True
    request: QueueRequest | None = None
    notifier: NotifierKeys | None = None


# ----------------------------------------------------------------------------------------- reading


def read_new(version: int, reader: Reader) -> New:
    auth_key = read_auth_key(reader)
    dh_key = read_dh_key(reader)
    password = _read_password(version, reader)
    subscribes = _read_subscribes(reader)
    request: QueueRequest | None = None
    notifier: NotifierKeys | None = None
    if version >= versions.SHORT_LINKS:
        request = reader.maybe(lambda: _read_request(reader))
        if version >= versions.NOTIFIER_KEYS:
            notifier = reader.maybe(lambda: read_notifier_keys(reader))
    elif version >= versions.SENDER_KEYS:
        request = QueueRequest(QueueMode.MESSAGING if reader.flag() else QueueMode.CONTACT)
    return New(auth_key, dh_key, password, subscribes, request, notifier)


def read_notifier_keys(reader: Reader) -> NotifierKeys:
    return NotifierKeys(read_auth_key(reader), read_dh_key(reader))


def _read_password(version: int, reader: Reader) -> bytes | None:
    if version >= versions.SENDER_KEYS:
        return reader.maybe(reader.short)
    if reader.peek() != _PASSWORD:
        return None
    reader.u8()
    return reader.short()


def _read_subscribes(reader: Reader) -> bool:
    mode = reader.u8()
    if mode not in (_SUBSCRIBE, _CREATE):
        raise MalformedMessageError("a queue is created neither with a subscription nor without")
    return mode == _SUBSCRIBE


def _read_request(reader: Reader) -> QueueRequest:
    mode = reader.u8()
    if mode == _MESSAGING:
        return QueueRequest(QueueMode.MESSAGING, reader.maybe(lambda: _read_link(reader, None)))
    if mode == _CONTACT:
        link = reader.maybe(lambda: _read_link(reader, reader.short()))
        return QueueRequest(QueueMode.CONTACT, link)
    raise MalformedMessageError("a queue is of no known mode")


def _read_link(reader: Reader, link_id: bytes | None) -> LinkRequest:
    return LinkRequest(link_id, reader.short(), reader.large(), reader.large())


# ----------------------------------------------------------------------------------------- writing


def write_new(version: int, new: New) -> bytes:
    """What the version has no room for must not be asked for."""
    has_notifier = version >= versions.NOTIFIER_KEYS
    if new.notifier and not has_notifier:
        raise ValueError(f"NEW of version {version} makes no notifier")
    subscribes = b"S" if new.subscribes else b"C"
    return (
        write_key(new.auth_key)
        + write_key(new.dh_key)
        + _write_password(version, new.password)
        + subscribes
        + _write_request(version, new.request)
        + (maybe(new.notifier, write_notifier_keys) if has_notifier else b"")
    )


def write_notifier_keys(notifier: NotifierKeys) -> bytes:
    return write_key(notifier.auth_key) + write_key(notifier.dh_key)


def _write_password(version: int, password: bytes | None) -> bytes:
    if version >= versions.SENDER_KEYS:
        return maybe(password, short)
    return b"" if password is None else b"A" + short(password)


def _write_request(version: int, request: QueueRequest | None) -> bytes:
    if version < versions.SHORT_LINKS:
        if request and request.link:
            raise ValueError(f"NEW of version {version} has no link")
        if version < versions.SENDER_KEYS:
            return b""
        return flag(request is not None and request.mode is QueueMode.MESSAGING)
    return maybe(request, _write_mode)


def _write_mode(request: QueueRequest) -> bytes:
    return request.mode.value.encode() + maybe(request.link, _write_link)


def _write_link(link: LinkRequest) -> bytes:
    link_id = b"" if link.link_id is None else short(link.link_id)
    return link_id + short(link.sender_id) + large(link.fixed) + large(link.user)
