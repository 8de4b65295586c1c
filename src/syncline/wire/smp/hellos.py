"""The hellos: the first blocks of a connection, before any command (docs/formats/smp.md).

    router   = w16 min, w16 max, short session id
             , [ certified key, [ short proof ] ]          if max is at least 7, and 19
    client   = w16 version, short key hash
             , [ key ]                                     from 7; absent if the next byte is not 44
             , flag is-proxy                               from 14
             , maybe ( role, certified key )               from 16
    answer   = `R` short service id | `E` words            only if the client hello named a service

    certified key = non-empty items (large certificate), large signed key

What follows a hello is for later versions, and is ignored. Certificates and signed keys are only
carried here: `syncline.wire.smp.signed_keys` opens the latter.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures, versions
from syncline.wire.smp.keys import X25519_ENCODED_BYTES, PublicKey, read_dh_key, write_key
from syncline.wire.smp.primitives import Reader, flag, items, large, maybe, short, w16

_ROLES: Final = {ord(role.value): role for role in ServiceRole}


@dataclass(frozen=True, slots=True)
class VersionRange:
    min: int
    max: int

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise MalformedMessageError(f"versions from {self.min} to {self.max} are none")

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max

    def common(self, other: "VersionRange") -> int | None:
        """The highest version that both speak."""
        version = min(self.max, other.max)
        return version if version in self and version in other else None


ALL_VERSIONS: Final = VersionRange(versions.VERSION_MIN, versions.VERSION_MAX)


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A key of this session, signed by the first certificate of the chain."""

    chain: tuple[bytes, ...]
    signed_key: bytes


@dataclass(frozen=True, slots=True)
class RouterHello:
    """`proof` answers the challenge of a browser."""

    versions: VersionRange
    session_id: bytes
    key: CertifiedKey | None = None
    proof: bytes | None = None


@dataclass(frozen=True, slots=True)
class ServiceHello:
    role: ServiceRole
    key: CertifiedKey


@dataclass(frozen=True, slots=True)
class ClientHello:
    """Without `client_key` the blocks of the session are not encrypted once more inside TLS."""

    version: int
    key_hash: bytes
    client_key: PublicKey | None = None
    is_proxy: bool = False
    service: ServiceHello | None = None


@dataclass(frozen=True, slots=True)
class ServiceAccepted:
    service_id: bytes


@dataclass(frozen=True, slots=True)
class ServiceRefused:
    """`reason`: words of a transport failure, such as `HANDSHAKE BAD_AUTH`."""

    reason: str


ServiceAnswer: TypeAlias = ServiceAccepted | ServiceRefused


# ------------------------------------------------------------------------------------------ router


def encode_router_hello(hello: RouterHello) -> bytes:
    encoded = write_versions(hello.versions) + short(hello.session_id)
    if hello.versions.max < versions.SESSION_KEYS or hello.key is None:
        return encoded
    encoded += write_certified_key(hello.key)
    if hello.versions.max < versions.WEB_PROOFS or hello.proof is None:
        return encoded
    return encoded + short(hello.proof)


def decode_router_hello(data: bytes) -> RouterHello:
    reader = Reader(data)
    spoken = read_versions(reader)
    session_id = reader.short()
    if spoken.max < versions.SESSION_KEYS or reader.at_end():
        return RouterHello(spoken, session_id)
    key = read_certified_key(reader)
    if spoken.max < versions.WEB_PROOFS or reader.at_end():
        return RouterHello(spoken, session_id, key)
    try:
        proof = reader.short()
    except MalformedMessageError:
        # Something of a later version stands in its place.
        proof = None
    return RouterHello(spoken, session_id, key, proof)


# ------------------------------------------------------------------------------------------ client


def encode_client_hello(hello: ClientHello) -> bytes:
    encoded = w16(hello.version) + short(hello.key_hash)
    if hello.version >= versions.SESSION_KEYS and hello.client_key:
        encoded += write_key(hello.client_key)
    if hello.version >= versions.PROXY_HELLO:
        encoded += flag(hello.is_proxy)
    if hello.version >= versions.SERVICES:
        encoded += maybe(hello.service, _write_service)
    return encoded


def decode_client_hello(data: bytes) -> ClientHello:
    """Reads versions that are not spoken here too: who reads it has to check."""
    reader = Reader(data)
    version = reader.w16()
    key_hash = reader.short()
    client_key: PublicKey | None = None
    if version >= versions.SESSION_KEYS and reader.peek() == X25519_ENCODED_BYTES:
        client_key = read_dh_key(reader)
    is_proxy = version >= versions.PROXY_HELLO and reader.flag()
    service: ServiceHello | None = None
    if version >= versions.SERVICES:
        service = reader.maybe(lambda: _read_service(reader))
    return ClientHello(version, key_hash, client_key, is_proxy, service)


def _read_service(reader: Reader) -> ServiceHello:
    role = _ROLES.get(reader.u8())
    if role is None:
        raise MalformedMessageError("a service has no known role")
    return ServiceHello(role, read_certified_key(reader))


def _write_service(service: ServiceHello) -> bytes:
    return service.role.value.encode() + write_certified_key(service.key)


# ---------------------------------------------------------------------------- answer to a service


def encode_service_answer(answer: ServiceAnswer) -> bytes:
    if isinstance(answer, ServiceAccepted):
        return b"R" + short(answer.service_id)
    return b"E" + answer.reason.encode()


def decode_service_answer(data: bytes) -> ServiceAnswer:
    reader = Reader(data)
    match reader.u8():
        case 0x52:
            return ServiceAccepted(reader.short())
        case 0x45:
            return ServiceRefused(failures.read_transport_failure(reader.tail()))
        case _:
            raise MalformedMessageError("a service is neither accepted nor refused")


# ------------------------------------------------------------------------------------------ shared


def read_versions(reader: Reader) -> VersionRange:
    return VersionRange(reader.w16(), reader.w16())


def write_versions(spoken: VersionRange) -> bytes:
    return w16(spoken.min) + w16(spoken.max)


def read_certified_key(reader: Reader) -> CertifiedKey:
    return CertifiedKey(reader.some(reader.large), reader.large())


def write_certified_key(key: CertifiedKey) -> bytes:
    return items(tuple(map(large, key.chain))) + large(key.signed_key)
