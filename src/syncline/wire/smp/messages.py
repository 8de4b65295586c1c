"""What the router says: answers and events, in every version's form (docs/formats/smp.md).

    message = word, or word SP parameters

    IDS     6-8     short recipient id, short sender id, key
            9-14    … flag
            15      … maybe mode, maybe short link id
            16      … maybe short service id
            17-     … maybe (short notifier id, key)

What an older version does not have is told in its words: SOK is OK before 16, DELD END before 10.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

import msgspec

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import QueueMode
from syncline.values.reconciliation import DIGEST_BYTES, SetState
from syncline.wire.smp import versions
from syncline.wire.smp.failures import Failure, decode_failure, encode_failure
from syncline.wire.smp.hellos import (
    CertifiedKey,
    VersionRange,
    read_certified_key,
    read_versions,
    write_certified_key,
    write_versions,
)
from syncline.wire.smp.keys import PublicKey, read_dh_key, write_key
from syncline.wire.smp.primitives import Reader, flag, i64, large, maybe, short
from syncline.wire.smp.words import Bare, Full, Vocabulary, rest, whole

NONCE_BYTES: Final = 24
_MODES: Final = {ord(mode.value): mode for mode in QueueMode}


@dataclass(frozen=True, slots=True)
class Nid:
    notifier_id: bytes
    dh_key: PublicKey


@dataclass(frozen=True, slots=True)
class Ids:
    """`mode` is None before version 9, and where the client did not ask for one."""

    recipient_id: bytes
    sender_id: bytes
    dh_key: PublicKey
    mode: QueueMode | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None
    notifier: Nid | None = None


@dataclass(frozen=True, slots=True)
class Sok:
    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Soks:
    """`ids_hash` is None before version 19. `state` stands in extended sessions alone; there an
    `opening` may follow, one whole part, if the client told another set."""

    count: int
    ids_hash: bytes | None = None
    state: SetState | None = None
    opening: bytes = field(default=b"", repr=False)


class Msg(msgspec.Struct, frozen=True, gc=False):
    """A struct: one is made for each message (bench: queues)."""

    message_id: bytes
    body: bytes

    def __repr__(self) -> str:
        return f"Msg(message_id={self.message_id!r})"


@dataclass(frozen=True, slots=True)
class Alls:
    pass


@dataclass(frozen=True, slots=True)
class Nmsg:
    nonce: bytes
    metadata: bytes


@dataclass(frozen=True, slots=True)
class End:
    pass


@dataclass(frozen=True, slots=True)
class Ends:
    """`ids_hash` is None before version 19."""

    count: int
    ids_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Deld:
    pass


@dataclass(frozen=True, slots=True)
class Info:
    json: bytes


@dataclass(frozen=True, slots=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True)
class Err:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class Lnk:
    sender_id: bytes
    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pkey:
    session_id: bytes
    versions: VersionRange
    key: CertifiedKey


@dataclass(frozen=True, slots=True)
class Pres:
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rres:
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rname:
    json: bytes


@dataclass(frozen=True, slots=True)
class Reca:
    """A part of the answer to a question. All parts have the correlation id of its last part."""

    part: bytes = field(repr=False)


RouterMessage: TypeAlias = (
    Ids
    | Sok
    | Soks
    | Msg
    | Alls
    | Nid
    | Nmsg
    | End
    | Ends
    | Deld
    | Info
    | Ok
    | Err
    | Pong
    | Lnk
    | Pkey
    | Pres
    | Rres
    | Rname
    | Reca
)


# ----------------------------------------------------------------------------------------- writing


def encode_message(version: int, message: RouterMessage) -> bytes:
    """As a session of this version may read it."""
    match message:
        case Ok():
            return b"OK"
        case Msg(message_id=message_id, body=body):
            return b"MSG " + short(message_id) + body
        case Sok(service_id=service_id):
            return b"SOK " + maybe(service_id, short) if version >= versions.SERVICES else b"OK"
        case Err(failure=failure):
            return b"ERR " + encode_failure(version, failure)
        case Nmsg(nonce=nonce, metadata=metadata):
            assert len(nonce) == NONCE_BYTES
            return b"NMSG " + nonce + short(metadata)
        case End():
            return b"END"
        case Deld():
            return b"DELD" if version >= versions.DELETION_EVENTS else b"END"
        case Soks(count=count, ids_hash=ids_hash):
            digest = b"SOKS " + _write_digest(version, count, ids_hash)
            return digest if version < versions.EXTENDED else digest + _write_state(message)
        case Ends(count=count, ids_hash=ids_hash):
            return b"ENDS " + _write_digest(version, count, ids_hash)
        case Alls():
            return b"ALLS"
        case Ids():
            return b"IDS " + _write_ids(version, message)
        case Nid():
            return b"NID " + _write_nid(message)
        case Info(json=json):
            return b"INFO " + json
        case Pong():
            return b"PONG"
        case Lnk(sender_id=sender_id, fixed=fixed, user=user):
            return b"LNK " + short(sender_id) + large(fixed) + large(user)
        case Pkey(session_id=session_id, versions=spoken, key=key):
            return b"PKEY " + short(session_id) + write_versions(spoken) + write_certified_key(key)
        case Pres(body=body):
            return b"PRES " + body
        case Rres(body=body):
            return b"RRES " + body
        case Rname(json=json):
            return b"RNAME " + json
        case Reca(part=part):
            return b"RECA " + part
        case _:
            assert_never(message)


def _write_digest(version: int, count: int, ids_hash: bytes | None) -> bytes:
    if version < versions.SERVICE_DIGESTS:
        return i64(count)
    if ids_hash is None:
        raise ValueError(f"version {version} wants a hash of the ids")
    return i64(count) + short(ids_hash)


def _write_state(soks: Soks) -> bytes:
    state = soks.state
    if state is None or state.count != soks.count:
        raise ValueError("an extended session wants the state of the set")
    return i64(state.version) + state.xor128 + state.sum128 + soks.opening


def _write_ids(version: int, ids: Ids) -> bytes:
    encoded = short(ids.recipient_id) + short(ids.sender_id) + write_key(ids.dh_key)
    if version < versions.SHORT_LINKS:
        has_flag = version >= versions.SENDER_KEYS
        return encoded + flag(ids.mode is QueueMode.MESSAGING) if has_flag else encoded
    encoded += maybe(ids.mode, _write_mode) + maybe(ids.link_id, short)
    if version >= versions.SERVICES:
        encoded += maybe(ids.service_id, short)
    if version >= versions.NOTIFIER_KEYS:
        encoded += maybe(ids.notifier, _write_nid)
    return encoded


def _write_mode(mode: QueueMode) -> bytes:
    return mode.value.encode()


def _write_nid(nid: Nid) -> bytes:
    return short(nid.notifier_id) + write_key(nid.dh_key)


# ----------------------------------------------------------------------------------------- reading


def _read_ids(version: int, reader: Reader) -> Ids:
    recipient_id, sender_id, dh_key = reader.short(), reader.short(), read_dh_key(reader)
    mode: QueueMode | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None
    notifier: Nid | None = None
    if version >= versions.SHORT_LINKS:
        mode = reader.maybe(lambda: _read_mode(reader))
        link_id = reader.maybe(reader.short)
        if version >= versions.SERVICES:
            service_id = reader.maybe(reader.short)
        if version >= versions.NOTIFIER_KEYS:
            notifier = reader.maybe(lambda: _read_nid(version, reader))
    elif version >= versions.SENDER_KEYS:
        mode = QueueMode.MESSAGING if reader.flag() else QueueMode.CONTACT
    return Ids(recipient_id, sender_id, dh_key, mode, link_id, service_id, notifier)


def _read_mode(reader: Reader) -> QueueMode:
    mode = _MODES.get(reader.u8())
    if mode is None:
        raise MalformedMessageError("a queue is of no known mode")
    return mode


def _read_nid(_version: int, reader: Reader) -> Nid:
    return Nid(reader.short(), read_dh_key(reader))


def _read_sok(_version: int, reader: Reader) -> Sok:
    return Sok(reader.maybe(reader.short))


def _read_soks(version: int, reader: Reader) -> Soks:
    count, ids_hash = reader.i64(), _read_hash(version, reader)
    if version < versions.EXTENDED:
        return Soks(count, ids_hash)
    state = SetState(reader.i64(), count, reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES))
    if count < 0 or state.version < 0:
        raise MalformedMessageError("the state of a set has a negative number")
    return Soks(count, ids_hash, state, reader.tail())


def _read_ends(version: int, reader: Reader) -> Ends:
    return Ends(reader.i64(), _read_hash(version, reader))


def _read_hash(version: int, reader: Reader) -> bytes | None:
    return reader.short() if version >= versions.SERVICE_DIGESTS else None


def _read_lnk(_version: int, reader: Reader) -> Lnk:
    return Lnk(reader.short(), reader.large(), reader.large())


def _read_pkey(_version: int, reader: Reader) -> Pkey:
    return Pkey(reader.short(), read_versions(reader), read_certified_key(reader))


_WORDS: Final = Vocabulary[RouterMessage](
    bare=(
        Bare(b"OK", Ok()),
        Bare(b"END", End()),
        Bare(b"PONG", Pong()),
        Bare(b"DELD", Deld(), versions.DELETION_EVENTS),
        Bare(b"ALLS", Alls(), versions.SERVICES),
    ),
    full=(
        Full(b"MSG", whole(lambda _, reader: Msg(reader.short(), reader.tail()))),
        Full(b"ERR", rest(lambda data: Err(decode_failure(data)))),
        Full(b"IDS", whole(_read_ids)),
        Full(b"NID", whole(_read_nid)),
        Full(b"NMSG", whole(lambda _, reader: Nmsg(reader.take(NONCE_BYTES), reader.short()))),
        Full(b"INFO", rest(Info)),
        Full(b"SOK", whole(_read_sok), versions.SERVICES),
        Full(b"SOKS", whole(_read_soks), versions.SERVICES),
        Full(b"ENDS", whole(_read_ends), versions.SERVICES),
        Full(b"LNK", whole(_read_lnk), versions.SHORT_LINKS),
        Full(b"PKEY", whole(_read_pkey), versions.PROXYING),
        Full(b"PRES", rest(Pres), versions.PROXYING),
        Full(b"RRES", rest(Rres), versions.PROXYING),
        Full(b"RNAME", rest(Rname), versions.NAMES),
        Full(b"RECA", rest(Reca), versions.EXTENDED),
    ),
)


def decode_message(version: int, data: bytes) -> RouterMessage:
    """Raises MalformedMessageError for what is no message of this version."""
    return _WORDS.read(version, data)
