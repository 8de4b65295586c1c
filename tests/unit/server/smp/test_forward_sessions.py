"""What a session has to offer to forwarding, and answers that fit into no block."""

import asyncio

import pytest

from syncline.errors import MalformedMessageError
from syncline.server.smp.faces import Answer
from syncline.server.smp.handshake import LinkFacts, Offer, make_offer, read_hello
from syncline.wire.smp import failures
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import padded, shared_secret, x25519_public
from syncline.wire.smp.hellos import (
    ALL_VERSIONS,
    CertifiedKey,
    ClientHello,
    ServiceRefused,
    encode_client_hello,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Err, Msg, Ok, Pkey, decode_message
from syncline.wire.smp.transmissions import BLOCK_BYTES, Transmission
from tests.unit.server.smp.test_session import Desk
from tests.unit.server.smp.transport_rig import CLIENT_PRIVATE, IDENTITY, NOW

FACTS = LinkFacts(bytes(32), "192.0.2.1")
CLIENT_KEY = public_key_of(KeyKind.X25519, CLIENT_PRIVATE)


def offer() -> Offer:
    made = make_offer(IDENTITY, FACTS, ALL_VERSIONS, lambda size: b"\x04" * size)
    assert made is not None
    return made


def forward_secret(version: int, key: PublicKey | None = CLIENT_KEY, *, is_proxy: bool) -> object:
    hello = ClientHello(version, IDENTITY.fingerprint, key, is_proxy)
    block = padded(encode_client_hello(hello), BLOCK_BYTES)
    agreed = read_hello(block, offer(), FACTS, IDENTITY.fingerprint, NOW)
    assert not isinstance(agreed, ServiceRefused)
    assert "forward_secret" not in repr(agreed)
    return agreed.forward_secret


@pytest.mark.parametrize(
    ("version", "is_proxy", "has_secret"),
    [
        *((6, False, False), (7, False, True), (10, False, True), (13, False, True)),
        *((14, False, False), (14, True, True), (20, False, False), (20, True, True)),
    ],
)
def test_a_session_that_may_be_a_proxys_has_a_secret(
    version: int, is_proxy: bool, has_secret: bool
) -> None:
    secret = shared_secret(CLIENT_PRIVATE, x25519_public(b"\x04" * 32))
    found = forward_secret(version, is_proxy=is_proxy)
    assert found == (secret if has_secret else None)
    assert forward_secret(version, None, is_proxy=is_proxy) is None


def test_a_proxy_with_a_key_that_is_none_is_turned_away() -> None:
    with pytest.raises(MalformedMessageError):
        forward_secret(20, PublicKey(KeyKind.X25519, bytes(32)), is_proxy=True)


LARGE = [
    (b"c" * 255, b"e" * 24, Msg(b"m" * 24, bytes(16_122))),
    (b"c" * 24, b"", Pkey(bytes(32), ALL_VERSIONS, CertifiedKey((bytes(16_300),), b""))),
]


@pytest.mark.parametrize(("corr_id", "entity_id", "message"), LARGE)
async def test_an_answer_that_fits_into_no_block_is_a_refusal(
    corr_id: bytes, entity_id: bytes, message: Msg | Pkey
) -> None:
    desk = Desk()
    desk.session.send([Answer(corr_id, entity_id, message), Answer(b"next", b"", Ok())])
    await asyncio.sleep(0)
    ((refused, following),) = desk.sent()
    assert isinstance(refused, Transmission)
    assert (refused.corr_id, refused.entity_id) == (corr_id, entity_id)
    assert decode_message(20, refused.body) == Err(failures.LARGE_MSG)
    assert isinstance(following, Transmission)
    assert decode_message(20, following.body) == Ok()
