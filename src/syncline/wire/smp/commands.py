"""What a client says: commands, in every version's form (docs/formats/smp.md).

    command = word, or word SP parameters           NEW: see `syncline.wire.smp.queue_requests`

A word is known from the version on that brought it; before, it is unknown like any other.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

import msgspec

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import DIGEST_BYTES, ID_BYTES, SetHashes
from syncline.wire.smp import failures, versions
from syncline.wire.smp.addresses import RouterAddress, read_address, write_address
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.keys import PublicKey, read_auth_key, read_dh_key, write_key
from syncline.wire.smp.primitives import Reader, i64, items, large, maybe, short, w16
from syncline.wire.smp.queue_requests import LinkRequest as LinkRequest
from syncline.wire.smp.queue_requests import New as New
from syncline.wire.smp.queue_requests import NotifierKeys as NotifierKeys
from syncline.wire.smp.queue_requests import QueueRequest as QueueRequest
from syncline.wire.smp.queue_requests import (
    read_new,
    read_notifier_keys,
    write_new,
    write_notifier_keys,
)
from syncline.wire.smp.words import Bare, Full, UnknownWordError, Vocabulary, rest, whole

FLAGS_BYTES_MAX: Final = 7
# They fit one block.
BUS_ID_COUNT_MAX: Final = 512

# --------------------------------------------------------------------------------------- recipients


@dataclass(frozen=True, slots=True)
class Sub:
    pass


@dataclass(frozen=True, slots=True)
class Subs:
    """All queues of a service. Count and hash are None before version 19, and `hashes` unless the
    session is extended."""

    count: int | None = None
    ids_hash: bytes | None = None
    hashes: SetHashes | None = None


@dataclass(frozen=True, slots=True)
class Key:
    key: PublicKey


@dataclass(frozen=True, slots=True)
class Rkey:
    keys: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class Nkey:
    keys: NotifierKeys


@dataclass(frozen=True, slots=True)
class Ndel:
    pass


@dataclass(frozen=True, slots=True)
class Get:
    pass


class Ack(msgspec.Struct, frozen=True, gc=False):
    """A struct: one is made for each message (bench: queues)."""

    message_id: bytes


@dataclass(frozen=True, slots=True)
class Off:
    pass


@dataclass(frozen=True, slots=True)
class Del:
    pass


@dataclass(frozen=True, slots=True)
class Que:
    pass


@dataclass(frozen=True, slots=True)
class Lset:
    link_id: bytes
    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ldel:
    pass


# ---------------------------------------------------------------------------- senders and others


@dataclass(frozen=True, slots=True)
class Skey:
    key: PublicKey


class Send(msgspec.Struct, frozen=True, gc=False):
    """`flags` is `T` or `F`; what follows it on the wire is for later versions and is skipped.

    A struct: one is made for each message (bench: queues).
    """

    flags: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"Send(flags={self.flags!r})"

    @property
    def wants_notification(self) -> bool:
        return self.flags.startswith(b"T")


@dataclass(frozen=True, slots=True)
class Lkey:
    key: PublicKey


@dataclass(frozen=True, slots=True)
class Lget:
    pass


@dataclass(frozen=True, slots=True)
class Nsub:
    pass


@dataclass(frozen=True, slots=True)
class Nsubs:
    """All notifiers of a service. See `Subs`."""

    count: int | None = None
    ids_hash: bytes | None = None
    hashes: SetHashes | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Prxy:
    address: RouterAddress
    password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Pfwd:
    version: int
    key: PublicKey
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rfwd:
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rslv:
    domain: str


# ---------------------------------------------------------------- services, in extended sessions


@dataclass(frozen=True, slots=True)
class Recq:
    """A part of a question about the ids of the service (docs/formats/reconciliation.md)."""

    part: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bus:
    """These do not belong to the service any more. At most `BUS_ID_COUNT_MAX`."""

    ids: tuple[bytes, ...]


Command: TypeAlias = (
    New
    | Sub
    | Subs
    | Key
    | Rkey
    | Nkey
    | Ndel
    | Get
    | Ack
    | Off
    | Del
    | Que
    | Skey
    | Send
    | Nsub
    | Nsubs
    | Ping
    | Lset
    | Ldel
    | Lkey
    | Lget
    | Prxy
    | Pfwd
    | Rfwd
    | Rslv
    | Recq
    | Bus
)


# ----------------------------------------------------------------------------------------- reading


def _read_send(_version: int, parameters: bytes) -> Send:
    # An empty body is a body, but the space before it must be there.
    end = parameters.find(b" ", 1, FLAGS_BYTES_MAX + 1)
    flags = parameters[:1]
    if end < 0 or flags not in (b"T", b"F"):
        raise MalformedMessageError("a message is sent without flags")
    return Send(flags, parameters[end + 1 :])


def _read_ack(_version: int, parameters: bytes) -> Ack:
    if not parameters or parameters[0] != len(parameters) - 1:
        raise MalformedMessageError("a message id is not as long as it says")
    return Ack(parameters[1:])


def _read_rkey(_version: int, reader: Reader) -> Rkey:
    return Rkey(reader.some(lambda: read_auth_key(reader)))


def _read_subs(version: int, reader: Reader) -> Subs:
    return Subs(reader.i64(), reader.short(), _read_hashes(version, reader))


def _read_nsubs(version: int, reader: Reader) -> Nsubs:
    return Nsubs(reader.i64(), reader.short(), _read_hashes(version, reader))


def _read_hashes(version: int, reader: Reader) -> SetHashes | None:
    if version < versions.EXTENDED:
        return None
    return SetHashes(reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES))


def _read_bus(_version: int, reader: Reader) -> Bus:
    count = reader.w16()
    if not 1 <= count <= BUS_ID_COUNT_MAX:
        raise MalformedMessageError(f"{count} ids at once are not let go of")
    return Bus(tuple(reader.take(ID_BYTES) for _ in range(count)))


def _read_lset(_version: int, reader: Reader) -> Lset:
    return Lset(reader.short(), reader.large(), reader.large())


def _read_prxy(_version: int, reader: Reader) -> Prxy:
    return Prxy(read_address(reader), reader.maybe(reader.short))


def _read_pfwd(_version: int, reader: Reader) -> Pfwd:
    return Pfwd(reader.w16(), read_dh_key(reader), reader.tail())


def _read_rslv(_version: int, parameters: bytes) -> Rslv:
    try:
        return Rslv(parameters.decode())
    except UnicodeDecodeError:
        raise MalformedMessageError("a name to look up is no UTF-8") from None


_WORDS: Final = Vocabulary[Command](
    bare=(
        Bare(b"SUB", Sub()),
        Bare(b"NDEL", Ndel()),
        Bare(b"GET", Get()),
        Bare(b"OFF", Off()),
        Bare(b"DEL", Del()),
        Bare(b"QUE", Que()),
        Bare(b"NSUB", Nsub()),
        Bare(b"PING", Ping()),
        Bare(b"LDEL", Ldel(), versions.SHORT_LINKS),
        Bare(b"LGET", Lget(), versions.SHORT_LINKS),
        Bare(b"SUBS", Subs(), versions.SERVICES, versions.SERVICE_DIGESTS),
        Bare(b"NSUBS", Nsubs(), versions.SERVICES, versions.SERVICE_DIGESTS),
    ),
    full=(
        Full(b"SEND", _read_send),
        Full(b"ACK", _read_ack),
        Full(b"NEW", whole(read_new)),
        Full(b"KEY", whole(lambda _, reader: Key(read_auth_key(reader)))),
        Full(b"RKEY", whole(_read_rkey)),
        Full(b"NKEY", whole(lambda _, reader: Nkey(read_notifier_keys(reader)))),
        Full(b"SKEY", whole(lambda _, reader: Skey(read_auth_key(reader))), versions.SENDER_KEYS),
        Full(b"LSET", whole(_read_lset), versions.SHORT_LINKS),
        Full(b"LKEY", whole(lambda _, reader: Lkey(read_auth_key(reader))), versions.SHORT_LINKS),
        Full(b"SUBS", whole(_read_subs), versions.SERVICE_DIGESTS),
        Full(b"NSUBS", whole(_read_nsubs), versions.SERVICE_DIGESTS),
        Full(b"PRXY", whole(_read_prxy), versions.PROXYING),
        Full(b"PFWD", whole(_read_pfwd), versions.PROXYING),
        Full(b"RFWD", rest(Rfwd), versions.PROXYING),
        Full(b"RSLV", _read_rslv, versions.NAMES),
        Full(b"RECQ", rest(Recq), versions.EXTENDED),
        Full(b"BUS", whole(_read_bus), versions.EXTENDED),
    ),
)


def decode_command(version: int, data: bytes) -> Command:
    """Raises FailureError with what the command is to be answered with, and nothing else."""
    try:
        return _WORDS.read(version, data)
    except UnknownWordError as error:
        raise FailureError(failures.UNKNOWN) from error
    except MalformedMessageError as error:
        raise FailureError(failures.SYNTAX) from error


# ----------------------------------------------------------------------------------------- writing


def encode_command(version: int, command: Command) -> bytes:
    """Raises ValueError for a command that the version does not have."""
    encoded = _encode(version, command)
    if not _WORDS.knows(version, encoded):
        raise ValueError(f"version {version} has no {type(command).__name__.upper()}")
    return encoded


def _encode(version: int, command: Command) -> bytes:
    match command:
        case Send(flags=flags, body=body):
            return b"SEND " + flags + b" " + body
        case Ack(message_id=message_id):
            return b"ACK " + short(message_id)
        case New():
            return b"NEW " + write_new(version, command)
        case Subs() | Nsubs():
            return _word(command) + _write_digest(version, command)
        case Key(key=key) | Skey(key=key) | Lkey(key=key):
            return _word(command) + b" " + write_key(key)
        case Rkey(keys=keys):
            return b"RKEY " + items(tuple(write_key(key) for key in keys))
        case Nkey(keys=notifier):
            return b"NKEY " + write_notifier_keys(notifier)
        case Lset(link_id=link_id, fixed=fixed, user=user):
            return b"LSET " + short(link_id) + large(fixed) + large(user)
        case Prxy(address=address, password=password):
            return b"PRXY " + write_address(address) + maybe(password, short)
        case Pfwd(version=inner, key=key, body=body):
            return b"PFWD " + w16(inner) + write_key(key) + body
        case Rfwd(body=body):
            return b"RFWD " + body
        case Rslv(domain=domain):
            return b"RSLV " + domain.encode()
        case Recq(part=part):
            return b"RECQ " + part
        case Bus(ids=ids):
            return b"BUS " + w16(len(ids)) + b"".join(ids)
        case Sub() | Ndel() | Get() | Off() | Del() | Que() | Nsub() | Ping() | Ldel() | Lget():
            return _word(command)
        case _:
            assert_never(command)


def _word(command: Command) -> bytes:
    return type(command).__name__.upper().encode()


def _write_digest(version: int, command: Subs | Nsubs) -> bytes:
    if version < versions.SERVICE_DIGESTS:
        return b""
    if command.count is None or command.ids_hash is None:
        raise ValueError(f"version {version} wants a count and a hash of the ids")
    digest = b" " + i64(command.count) + short(command.ids_hash)
    if version < versions.EXTENDED:
        return digest
    if command.hashes is None:
        raise ValueError("an extended session wants the XXH3 hashes of the ids")
    return digest + command.hashes.xor128 + command.hashes.sum128


# ------------------------------------------------------------------------------- what they require


def credentials_fault(
    command: Command, has_authorization: bool, has_entity: bool
) -> Failure | None:
    """What a command is refused with that has too much or too little beside it."""
    match command:
        case Send():
            return None if has_entity else failures.NO_ENTITY
        case Ack() | Sub():
            # As most below; they come most often.
            return None if has_authorization and has_entity else failures.NO_AUTH
        case New():
            if not has_authorization:
                return failures.NO_AUTH
            return failures.HAS_AUTH if has_entity else None
        case Lget() | Pfwd():
            if has_authorization:
                return failures.HAS_AUTH
            return None if has_entity else failures.NO_ENTITY
        case Ping() | Prxy() | Rfwd() | Rslv():
            return failures.HAS_AUTH if has_authorization or has_entity else None
        case _:
            return None if has_authorization and has_entity else failures.NO_AUTH


def role_of(command: Command) -> ServiceRole | None:
    """The role that a service's connection needs for it; None: any."""
    match command:
        case Nsub() | Nsubs():
            return ServiceRole.NOTIFIER
        case Rfwd():
            return ServiceRole.PROXY
        case Ping() | Recq() | Bus():
            return None
        case _:
            return ServiceRole.MESSAGING
