"""Block encryption, against bytes of the reference."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.wire.smp import boxes
from syncline.wire.smp.chains import (
    BLOCK_BYTES,
    BlockChain,
    chain_keys,
    chain_step,
    hkdf_sha512,
)

SESSION_ID = bytes(range(32))
SECRET = bytes(range(0x20, 0x40))
ROUTER_KEY = bytes.fromhex("2eeb4db327c30880c69f980683d75935dabc90efccd466aa3c891f02849d7012")
CLIENT_KEY = bytes.fromhex("4858d6e48d755f33b6ef8467531bed07c76799e449f7f6bc6004d2fd4ea1b557")


def test_the_keys_of_both_directions_are_those_of_the_reference() -> None:
    keys = chain_keys(SESSION_ID, SECRET)
    assert keys.router_to_client == ROUTER_KEY
    assert keys.client_to_router == CLIENT_KEY


def test_the_keys_are_not_shown() -> None:
    assert "\\x" not in repr(chain_keys(SESSION_ID, SECRET))


def test_the_first_step_is_that_of_the_reference() -> None:
    assert [part.hex() for part in chain_step(ROUTER_KEY)] == [
        "02cb4cbedbe468ec5343a66aa9e2a19c9d0555ddfb4a737ce57c1a68ecb78c18",
        "ac029af8baec1db190a022eda82381add01646efd9eaf863088e189d5b8aa78a",
        "138c1eab03cf736858c0b91975793d32d29f2e270f406178",
    ]


@given(st.binary(min_size=32, max_size=32))
def test_a_step_is_the_derivation_that_others_know(key: bytes) -> None:
    derived = HKDF(SHA512(), 88, None, b"SimpleXSbChain").derive(key)
    assert b"".join(chain_step(key)) == derived == hkdf_sha512(b"", key, b"SimpleXSbChain", 88)


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 300))
def test_a_derivation_is_the_one_that_others_know(salt: bytes, secret: bytes, count: int) -> None:
    made = hkdf_sha512(salt, secret, b"info", count)
    assert made == (HKDF(SHA512(), count, salt, b"info").derive(secret) if count else b"")


def test_a_block_is_a_padded_box_with_the_key_of_its_step() -> None:
    after, key, nonce = chain_step(ROUTER_KEY)
    chain = BlockChain(ROUTER_KEY)
    assert chain.seal(b"one") == boxes.box_padded(key, nonce, b"one", 16_368)
    _, key, nonce = chain_step(after)
    assert chain.seal(b"two") == boxes.box_padded(key, nonce, b"two", 16_368)


def test_blocks_open_in_the_order_in_which_they_were_sealed() -> None:
    ours, theirs = BlockChain(ROUTER_KEY), BlockChain(ROUTER_KEY)
    contents = [b"", b"x", b"y" * 16_366, b"x"]
    blocks = [ours.seal(content) for content in contents]
    assert {len(block) for block in blocks} == {BLOCK_BYTES}
    assert len(set(blocks)) == len(blocks)
    assert [theirs.open(block) for block in blocks] == contents


def test_a_content_that_is_too_long_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="16367 bytes"):
        BlockChain(ROUTER_KEY).seal(bytes(16_367))


def test_a_block_out_of_order_ends_the_chain() -> None:
    ours, theirs = BlockChain(ROUTER_KEY), BlockChain(ROUTER_KEY)
    first, second = ours.seal(b"1"), ours.seal(b"2")
    with pytest.raises(MalformedMessageError):
        theirs.open(second)
    with pytest.raises(MalformedMessageError):
        theirs.open(first)


@pytest.mark.parametrize("at", [0, 15, 16, 17, 8_000, BLOCK_BYTES - 1])
def test_a_block_with_one_changed_bit_does_not_open(at: int) -> None:
    block = bytearray(BlockChain(ROUTER_KEY).seal(b"content"))
    block[at] ^= 0x80
    with pytest.raises(MalformedMessageError):
        BlockChain(ROUTER_KEY).open(bytes(block))


@given(st.binary(max_size=100))
def test_what_is_no_block_does_not_open(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        BlockChain(ROUTER_KEY).open(data)
