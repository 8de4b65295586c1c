"""The router's half of the handshake, as values."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.certificates import Identity, SigningKey, make_identity, make_service_credentials
from syncline.errors import (
    MalformedMessageError,
    NotAuthorizedError,
    ProtocolError,
    UnsupportedVersionError,
)
from syncline.server.smp.handshake import (
    Agreed,
    LinkFacts,
    Offer,
    answer_block,
    make_offer,
    read_hello,
)
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.authorizations import is_signed, public_key_of
from syncline.wire.smp.boxes import padded, shared_secret, unpadded
from syncline.wire.smp.chains import chain_keys
from syncline.wire.smp.hellos import (
    ALL_VERSIONS,
    CertifiedKey,
    ClientHello,
    ServiceAccepted,
    ServiceHello,
    ServiceRefused,
    VersionRange,
    decode_router_hello,
    decode_service_answer,
    encode_client_hello,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.signed_keys import open_signed_key
from tests.unit.server.smp.transport_rig import IDENTITY, NOW, service_hello

SESSION_ID = bytes(range(32))
PRIVATE = b"\x04" * 32
CLIENT_KEY = public_key_of(KeyKind.X25519, b"\x05" * 32)
FACTS = LinkFacts(SESSION_ID, "127.0.0.1")
CREDENTIALS = make_service_credentials(NOW)
SERVICE_KEY = public_key_of(KeyKind.ED25519, b"\x02" * 32)
BAD_AUTH = ServiceRefused("HANDSHAKE BAD_AUTH")


def offer(
    facts: LinkFacts = FACTS, spoken: VersionRange = ALL_VERSIONS, identity: Identity = IDENTITY
) -> Offer:
    made = make_offer(identity, facts, spoken, lambda size: PRIVATE[:size])
    assert made is not None
    return made


def agree(
    hello: ClientHello, facts: LinkFacts = FACTS, made: Offer | None = None
) -> Agreed | ServiceRefused:
    block = padded(encode_client_hello(hello), 16_384)
    return read_hello(block, made or offer(facts), facts, IDENTITY.fingerprint, NOW)


def hello(version: int = 20, **fields: object) -> ClientHello:
    return ClientHello(version, IDENTITY.fingerprint, **fields)  # type: ignore[arg-type]


# Our hello.


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
def test_our_hello_has_our_chain_and_a_key_signed_by_the_leaf(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    made = offer(identity=identity)
    found = decode_router_hello(unpadded(made.block))
    assert len(made.block) == 16_384
    assert (found.versions, found.session_id) == (ALL_VERSIONS, SESSION_ID)
    assert found.key is not None
    assert found.key.chain == identity.chain
    key = open_signed_key(found.key.signed_key, identity.key.public)
    assert key == public_key_of(KeyKind.X25519, PRIVATE)
    assert made.private == PRIVATE
    assert found.proof is None


def test_the_key_of_an_offer_is_not_shown() -> None:
    assert repr(PRIVATE) not in repr(offer())
    assert "private" not in repr(offer())


def test_a_client_without_a_protocol_is_offered_the_oldest_version_and_no_key() -> None:
    made = offer(LinkFacts(SESSION_ID, "", has_protocol=False))
    found = decode_router_hello(unpadded(made.block))
    assert found.versions == made.versions == VersionRange(6, 6)
    assert found.key is None
    assert made.private is None


def test_a_router_that_speaks_no_old_version_has_nothing_to_offer_to_it() -> None:
    facts = LinkFacts(SESSION_ID, "", has_protocol=False)
    assert make_offer(IDENTITY, facts, VersionRange(7, 20), bytes) is None


def test_a_router_that_speaks_the_oldest_version_alone_offers_no_key() -> None:
    assert offer(spoken=VersionRange(6, 6)).private is None


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
def test_a_challenge_is_answered_with_a_proof_by_the_leaf(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    made = offer(LinkFacts(SESSION_ID, "", challenge=b"c" * 32), identity=identity)
    found = decode_router_hello(unpadded(made.block))
    assert found.proof is not None
    assert is_signed(identity.key.public, found.proof, b"c" * 32 + SESSION_ID)


# The client's hello.


@pytest.mark.parametrize("version", range(6, 21))
def test_every_offered_version_is_agreed_to(version: int) -> None:
    agreed = agree(hello(version, client_key=CLIENT_KEY))
    assert isinstance(agreed, Agreed)
    secret = shared_secret(PRIVATE, CLIENT_KEY.raw)
    chains = chain_keys(SESSION_ID, secret) if version >= 11 else None
    assert agreed == Agreed(version, chains, False, None)


def test_without_a_client_key_blocks_are_not_encrypted() -> None:
    assert agree(hello()) == Agreed(20, None, False, None)


def test_blocks_of_a_proxy_are_not_encrypted() -> None:
    agreed = agree(hello(client_key=CLIENT_KEY, is_proxy=True))
    assert agreed == Agreed(20, None, True, None)


@pytest.mark.parametrize("version", [0, 5, 21, 65_535])
def test_a_version_that_was_not_offered_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError):
        agree(hello(version))


def test_a_version_above_what_an_old_client_was_offered_is_refused() -> None:
    facts = LinkFacts(SESSION_ID, "", has_protocol=False)
    assert isinstance(agree(hello(6), facts), Agreed)
    with pytest.raises(UnsupportedVersionError):
        agree(hello(7), facts)


@pytest.mark.parametrize(
    "key_hash", [b"", b"x" * 32, IDENTITY.fingerprint[:31]], ids=["none", "other", "cut"]
)
def test_a_client_that_means_another_router_is_refused(key_hash: bytes) -> None:
    with pytest.raises(NotAuthorizedError):
        agree(ClientHello(20, key_hash))


def test_a_client_key_that_agrees_with_every_other_is_refused() -> None:
    with pytest.raises(MalformedMessageError):
        agree(hello(client_key=PublicKey(KeyKind.X25519, bytes(32))))


def test_what_follows_a_hello_is_ignored() -> None:
    block = padded(encode_client_hello(hello()) + b"later", 16_384)
    assert read_hello(block, offer(), FACTS, IDENTITY.fingerprint, NOW) == Agreed(
        20, None, False, None
    )


@given(st.binary(max_size=400))
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    for block in (padded(data, 16_384), data):
        with pytest.raises((ProtocolError, NotAuthorizedError)):
            read_hello(block, offer(), FACTS, IDENTITY.fingerprint, NOW)


@given(st.integers(37, 700), st.integers(0, 255))
def test_a_damaged_hello_of_a_service_is_refused_or_ignored(at: int, byte: int) -> None:
    facts = LinkFacts(SESSION_ID, "", CREDENTIALS.chain)
    good = hello(client_key=CLIENT_KEY, service=service_hello(CREDENTIALS.chain, CREDENTIALS.key))
    block = bytearray(padded(encode_client_hello(good), 16_384))
    before = block[at]
    block[at] = byte
    try:
        found = read_hello(bytes(block), offer(facts), facts, IDENTITY.fingerprint, NOW)
    except ProtocolError:
        return
    if isinstance(found, Agreed) and found.service is not None and byte != before:
        # The key for encryption, the kind of client, the role: nothing that was signed.
        assert found.service.key == SERVICE_KEY
        assert found.service.chain == CREDENTIALS.chain


# Services.


def service_agreed(
    service: ServiceHello, peer_chain: tuple[bytes, ...], version: int = 20
) -> Agreed | ServiceRefused:
    facts = LinkFacts(SESSION_ID, "", peer_chain)
    return agree(hello(version, client_key=CLIENT_KEY, service=service), facts)


@pytest.mark.parametrize("version", range(16, 21))
@pytest.mark.parametrize("role", ServiceRole)
def test_a_service_proves_its_certificate(version: int, role: ServiceRole) -> None:
    service = service_hello(CREDENTIALS.chain, CREDENTIALS.key, role)
    agreed = service_agreed(service, CREDENTIALS.chain, version)
    assert isinstance(agreed, Agreed)
    assert agreed.service is not None
    assert agreed.service.role is role
    assert agreed.service.key == SERVICE_KEY
    assert agreed.service.fingerprint == CREDENTIALS.fingerprint


@pytest.mark.parametrize("kind", [KeyKind.ED25519, KeyKind.ED448])
def test_a_service_may_have_a_chain(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    agreed = service_agreed(service_hello(identity.chain, identity.key), identity.chain)
    assert isinstance(agreed, Agreed)
    assert agreed.service is not None
    assert agreed.service.fingerprint == identity.fingerprint


def test_a_service_without_a_certificate_in_tls_is_refused() -> None:
    assert service_agreed(service_hello(CREDENTIALS.chain, CREDENTIALS.key), ()) == BAD_AUTH


def test_a_service_with_another_chain_than_in_tls_is_refused() -> None:
    other = make_service_credentials(NOW)
    service = service_hello(CREDENTIALS.chain, CREDENTIALS.key)
    assert service_agreed(service, other.chain) == BAD_AUTH
    identity = make_identity(NOW)
    service = service_hello(identity.chain, identity.key)
    assert service_agreed(service, identity.chain[:1]) == BAD_AUTH


def test_a_session_key_signed_by_another_is_refused() -> None:
    service = service_hello(CREDENTIALS.chain, SigningKey.make())
    assert service_agreed(service, CREDENTIALS.chain) == BAD_AUTH


def test_a_session_key_that_cannot_be_read_is_refused() -> None:
    service = ServiceHello(ServiceRole.MESSAGING, CertifiedKey(CREDENTIALS.chain, b"key"))
    assert service_agreed(service, CREDENTIALS.chain) == BAD_AUTH


def test_a_session_key_of_another_kind_is_refused() -> None:
    service = service_hello(CREDENTIALS.chain, CREDENTIALS.key, session_key=CLIENT_KEY)
    assert service_agreed(service, CREDENTIALS.chain) == BAD_AUTH


def test_a_certificate_out_of_date_is_refused() -> None:
    old = make_service_credentials(NOW - timedelta(days=100), days=50)
    assert service_agreed(service_hello(old.chain, old.key), old.chain) == BAD_AUTH


def test_a_chain_that_does_not_hold_is_refused() -> None:
    mixed = (IDENTITY.chain[0], make_identity(NOW).chain[1])
    assert service_agreed(service_hello(mixed, IDENTITY.key), mixed) == BAD_AUTH


def test_a_service_before_its_version_is_not_heard() -> None:
    service = service_hello(CREDENTIALS.chain, CREDENTIALS.key)
    agreed = service_agreed(service, CREDENTIALS.chain, 15)
    assert isinstance(agreed, Agreed)
    assert agreed.service is None


@pytest.mark.parametrize("answer", [ServiceAccepted(b"\xee" * 24), BAD_AUTH])
def test_the_answer_to_a_service_is_a_block(answer: ServiceAccepted | ServiceRefused) -> None:
    block = answer_block(answer)
    assert len(block) == 16_384
    assert decode_service_answer(unpadded(block)) == answer


def test_the_words_of_a_refusal_are_those_of_the_reference() -> None:
    assert unpadded(answer_block(BAD_AUTH)) == b"EHANDSHAKE BAD_AUTH"
