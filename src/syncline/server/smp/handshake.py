"""The router's half of the handshake, as values: what is offered, and what a client's hello gets.

    router -> hello: versions, session id, our chain and a key of this connection, signed by it
    client -> hello: the version, whom it means to talk to, maybe a key, maybe a service
    router -> only to a service: its id, or why not

- A client that offered no protocol in TLS is an old one: it is offered the oldest version, no key.
- A client that means another router, or speaks a version that was not offered, hears nothing: the
  connection ends.
- A service shows the chain of its TLS connection once more, byte for byte, and a key for this
  session signed by the leaf of that chain. Whatever is wrong with that is `HANDSHAKE BAD_AUTH`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from syncline.certificates import Identity, check_chain, identity_of_chain, key_of_certificate
from syncline.errors import MalformedMessageError, NotAuthorizedError, UnsupportedVersionError
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import versions
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import SECRET_BYTES, padded, shared_secret, unpadded
from syncline.wire.smp.chains import ChainKeys, chain_keys
from syncline.wire.smp.hellos import (
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceAnswer,
    ServiceHello,
    ServiceRefused,
    VersionRange,
    decode_client_hello,
    encode_router_hello,
    encode_service_answer,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.signed_keys import open_signed_key, sign_key
from syncline.wire.smp.transmissions import BLOCK_BYTES

BAD_AUTH: Final = ServiceRefused("HANDSHAKE BAD_AUTH")


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What is known of a connection before its hello, whatever carries it."""

    session_id: bytes
    # Where it comes from, without a port.
    remote: str
    # Of the client's TLS certificate; empty without one, and where no certificates are asked for.
    peer_chain: tuple[bytes, ...] = ()
    # A protocol was agreed on in TLS.
    has_protocol: bool = True
    # And it was our own: the session is an extended one.
    is_syncline: bool = False
    # Of a browser, which cannot see our certificates: 32 bytes to be signed.
    challenge: bytes | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Our hello, and what has to be remembered of it. Without a key `private` is None."""

    block: bytes = field(repr=False)
    versions: VersionRange
    private: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class OfferedService:
    """Proved to have its certificate; whether it may be a service here is the router's to say."""

    role: ServiceRole
    chain: tuple[bytes, ...]
    key: PublicKey
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Agreed:
    """Without `chains` blocks are not encrypted inside TLS."""

    version: int
    chains: ChainKeys | None
    is_proxy: bool
    service: OfferedService | None
    # What a proxy boxes forwarded commands with; only of sessions that may be a proxy's.
    forward_secret: bytes | None = field(default=None, repr=False, compare=False)


def make_offer(
    identity: Identity,
    facts: LinkFacts,
    spoken: VersionRange,
    random_bytes: Callable[[int], bytes],
) -> Offer | None:
    """None: there is nothing that could be offered."""
    if not facts.has_protocol:
        if versions.VERSION_MIN not in spoken:
            return None
        spoken = VersionRange(versions.VERSION_MIN, versions.VERSION_MIN)
    if spoken.max < versions.SESSION_KEYS:
        return _offer(RouterHello(spoken, facts.session_id), None)
    private = random_bytes(SECRET_BYTES)
    public = public_key_of(KeyKind.X25519, private)
    signed_key = sign_key(public, identity.key.raw, identity.key.kind)
    proof: bytes | None = None
    if facts.challenge is not None:
        proof = identity.key.sign(facts.challenge + facts.session_id)
    key = CertifiedKey(identity.chain, signed_key)
    return _offer(RouterHello(spoken, facts.session_id, key, proof), private)


def _offer(hello: RouterHello, private: bytes | None) -> Offer:
    return Offer(padded(encode_router_hello(hello), BLOCK_BYTES), hello.versions, private)


def read_hello(
    block: bytes, offer: Offer, facts: LinkFacts, fingerprint: bytes, now: datetime
) -> Agreed | ServiceRefused:
    """`fingerprint` is our own. Raises ProtocolError or NotAuthorizedError: then end in silence."""
    hello = decode_client_hello(unpadded(block))
    if hello.key_hash != fingerprint:
        raise NotAuthorizedError("the client means another router")
    if hello.version not in offer.versions:
        raise UnsupportedVersionError(f"version {hello.version} was not offered")
    chains = _chains(hello, offer, facts.session_id)
    secret = _forward_secret(hello, offer)
    # A proxy speaks for others, who have not agreed to anything beyond the public protocol.
    is_extended = facts.is_syncline and not hello.is_proxy
    version = versions.session_version(hello.version, is_syncline=is_extended)
    if hello.service is None:
        return Agreed(version, chains, hello.is_proxy, None, secret)
    try:
        service = _service(hello.service, facts.peer_chain, now)
    except MalformedMessageError:
        return BAD_AUTH
    return Agreed(version, chains, hello.is_proxy, service, secret)


def answer_block(answer: ServiceAnswer) -> bytes:
    """The third block of a service's handshake; it is not encrypted yet."""
    return padded(encode_service_answer(answer), BLOCK_BYTES)


def _chains(hello: ClientHello, offer: Offer, session_id: bytes) -> ChainKeys | None:
    # A proxy's blocks carry what is encrypted already, for somebody else.
    if hello.version < versions.BLOCK_ENCRYPTION or hello.is_proxy or hello.client_key is None:
        return None
    assert offer.private is not None, "every offer of this version has a key"
    return chain_keys(session_id, shared_secret(offer.private, hello.client_key.raw))


def _forward_secret(hello: ClientHello, offer: Offer) -> bytes | None:
    # Before that version a proxy does not say that it is one.
    may_be_proxy = hello.is_proxy or hello.version < versions.PROXY_HELLO
    if not may_be_proxy or hello.client_key is None or offer.private is None:
        return None
    return shared_secret(offer.private, hello.client_key.raw)


def _service(hello: ServiceHello, peer_chain: tuple[bytes, ...], now: datetime) -> OfferedService:
    """Raises MalformedMessageError for one that does not prove what it says."""
    chain = hello.key.chain
    if chain != peer_chain:
        raise MalformedMessageError("a service shows another chain than in TLS")
    check_chain(chain, now)
    key = open_signed_key(hello.key.signed_key, key_of_certificate(chain[0]))
    if key.kind is not KeyKind.ED25519:
        raise MalformedMessageError(f"the key of a service is of kind {key.kind.value}")
    return OfferedService(hello.role, chain, key, identity_of_chain(chain))
