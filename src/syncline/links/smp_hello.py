"""The client's half of the handshake: is this the router, and what do we both speak?

    router -> hello: versions, session id, its chain and a key of this connection, signed
    client -> hello: the version, whom it means to talk to, its key, maybe a service
    router -> only to a service: its id, or why not

A router is who it should be if all of these hold:
- the session id of its hello is that of this TLS connection, so nobody carries it from another;
- the second certificate of its chain has the fingerprint of the address;
- the chain holds, and its leaf is the certificate that TLS was made with;
- its key is signed by that leaf.
"""

from dataclasses import dataclass
from datetime import datetime

from syncline.certificates import (
    ROUTER_CHAIN_COUNT_MIN,
    ServiceCredentials,
    check_chain,
    identity_of_chain,
    key_of_certificate,
)
from syncline.errors import (
    MalformedMessageError,
    NotAuthorizedError,
    ServiceMismatchError,
    UnsupportedVersionError,
)
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.links.smp_session import LinkService, SmpSession
from syncline.links.smp_tls import ALPN_SYNCLINE, TlsFacts
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import versions
from syncline.wire.smp.boxes import shared_secret
from syncline.wire.smp.chains import chain_keys
from syncline.wire.smp.hellos import (
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceHello,
    ServiceRefused,
    VersionRange,
    decode_router_hello,
    decode_service_answer,
    encode_client_hello,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.signed_keys import open_signed_key, sign_key

# What a proxy speaks to a router that cannot tell it from a client.
_PROXY_VERSION_MAX = 10
# A service of this role is offered from this version on.
_SERVICE_VERSIONS = {
    ServiceRole.MESSAGING: versions.SERVICE_DIGESTS,
    ServiceRole.NOTIFIER: versions.SERVICES,
    ServiceRole.PROXY: versions.SERVICES,
}


@dataclass(frozen=True, slots=True)
class ServiceLogin:
    """As whom to log in."""

    credentials: ServiceCredentials
    role: ServiceRole


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whom to talk to, and as what."""

    fingerprint: bytes
    versions: VersionRange
    is_proxy: bool = False
    service: ServiceLogin | None = None


class Greeting:
    """The answer to one router's hello. Raises what is wrong with that, when it is made."""

    def __init__(
        self, content: bytes, tls: TlsFacts, wanted: Wanted, entropy: Entropy, now: datetime
    ) -> None:
        hello = decode_router_hello(content)
        if hello.session_id != tls.session_id:
            raise NotAuthorizedError("the router's hello is of another connection")
        self._router_key = _checked_key(hello, tls, wanted.fingerprint, now)
        self.version = _version(hello.versions, wanted)
        self._session_id = hello.session_id
        self._router_hello = hello
        self._alpn = tls.alpn
        self._wanted = wanted
        self._key = PrivateKey.new(KeyKind.X25519, entropy)
        self._service_key: PrivateKey | None = None
        login = wanted.service
        if login is not None and self.version >= _SERVICE_VERSIONS[login.role]:
            self._service_key = PrivateKey.new(KeyKind.ED25519, entropy)

    @property
    def is_of_service(self) -> bool:
        """A third message follows, which `session` needs."""
        return self._service_key is not None

    @property
    def hello(self) -> bytes:
        """What to send."""
        return encode_client_hello(
            ClientHello(
                self.version,
                self._wanted.fingerprint,
                self._key.public,
                self._wanted.is_proxy,
                self._service_hello(),
            )
        )

    def session(self, answer: bytes | None) -> SmpSession:
        """`answer` is the third message, if there is one. Raises ServiceMismatchError if the router
        does not take the service."""
        secret = shared_secret(self._key.raw, self._router_key.raw)
        is_encrypted = self.version >= versions.BLOCK_ENCRYPTION and not self._wanted.is_proxy
        is_extended = self._alpn == ALPN_SYNCLINE and not self._wanted.is_proxy
        return SmpSession(
            versions.session_version(self.version, is_syncline=is_extended),
            self._session_id,
            self._router_key,
            secret,
            chain_keys(self._session_id, secret) if is_encrypted else None,
            None if answer is None else self._service(answer),
            self._router_hello,
            self._alpn,
        )

    def _service_hello(self) -> ServiceHello | None:
        login = self._wanted.service
        if login is None or self._service_key is None:
            return None
        signer = login.credentials.key
        signed_key = sign_key(self._service_key.public, signer.raw, signer.kind)
        return ServiceHello(login.role, CertifiedKey(login.credentials.chain, signed_key))

    def _service(self, content: bytes) -> LinkService:
        login, key = self._wanted.service, self._service_key
        assert login is not None
        assert key is not None
        answer = decode_service_answer(content)
        if isinstance(answer, ServiceRefused):
            raise ServiceMismatchError(f"the router does not take the service: {answer.reason}")
        certificate_hash = identity_of_chain(login.credentials.chain)
        return LinkService(answer.service_id, login.role, key, certificate_hash)


def _checked_key(hello: RouterHello, tls: TlsFacts, fingerprint: bytes, now: datetime) -> PublicKey:
    if hello.key is None:
        # Without a chain there is no identity. It is left out for clients that offer no protocol
        # in TLS, and by routers that are older than such keys.
        raise UnsupportedVersionError(
            f"the router shows no identity (versions {hello.versions.min} to {hello.versions.max}, "
            f"protocol {tls.alpn}); it is too old, or not a router"
        )
    chain = hello.key.chain
    check_chain(chain, now, count_min=ROUTER_CHAIN_COUNT_MIN)
    if identity_of_chain(chain) != fingerprint:
        raise NotAuthorizedError(
            "another router answers: its fingerprint is not that of the address; check the address"
        )
    if chain[0] != tls.leaf:
        raise NotAuthorizedError("the router's chain is not that of its connection")
    key = open_signed_key(hello.key.signed_key, key_of_certificate(chain[0]))
    if key.kind is not KeyKind.X25519:
        raise MalformedMessageError(f"the router's key is of kind {key.kind.value}")
    return key


def _version(offered: VersionRange, wanted: Wanted) -> int:
    spoken = wanted.versions
    if wanted.is_proxy and offered.max < versions.PROXY_HELLO:
        spoken = VersionRange(
            min(spoken.min, _PROXY_VERSION_MAX), min(spoken.max, _PROXY_VERSION_MAX)
        )
    version = offered.common(spoken)
    if version is None:
        raise UnsupportedVersionError(
            f"the router speaks versions {offered.min} to {offered.max}, "
            f"we speak {spoken.min} to {spoken.max}"
        )
    return version
