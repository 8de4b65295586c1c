"""Boxes and padding, against bytes of the reference."""

import _ctypes
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_box_easy, crypto_secretbox_easy

from syncline.errors import MalformedMessageError
from syncline.wire.smp import boxes, hsalsa20
from syncline.wire.smp.boxes import SecretBox

KEY = bytes(range(32))
NONCE = bytes(range(0x40, 0x58))
HELLO = bytes.fromhex(
    "1e730cfc296135cbbaf83d5074cd89ee5dcae57f073eafdfbfedb4bcfe38b5df"
    "fc121d426da0104384f9e9b48938dea3"
)
DERIVED_KEY = bytes.fromhex("ac029af8baec1db190a022eda82381add01646efd9eaf863088e189d5b8aa78a")
DERIVED_NONCE = bytes.fromhex("138c1eab03cf736858c0b91975793d32d29f2e270f406178")


def test_a_padded_box_has_the_bytes_of_the_reference() -> None:
    assert boxes.box_padded(KEY, NONCE, b"hello", 32) == HELLO
    assert boxes.open_padded(KEY, NONCE, HELLO) == b"hello"


def test_a_box_has_the_bytes_of_the_reference() -> None:
    boxed = bytes.fromhex("b94a0d2805448b3b3c355369814280931d04517f39")
    assert boxes.box(DERIVED_KEY, DERIVED_NONCE, b"hello") == boxed
    assert boxes.open_box(DERIVED_KEY, DERIVED_NONCE, boxed) == b"hello"


def test_two_private_keys_share_the_secret_of_the_reference() -> None:
    secret = bytes.fromhex("40e47a3f525bdcac491d418978d7db5af623ac7afe7623c6d78a5d4fce9d0f63")
    mine, theirs = b"\x03" * 32, b"\x04" * 32
    assert boxes.shared_secret(mine, boxes.x25519_public(theirs)) == secret
    assert boxes.shared_secret(theirs, boxes.x25519_public(mine)) == secret


def test_with_an_agreed_secret_a_box_is_that_of_nacl() -> None:
    mine, public = b"\x03" * 32, boxes.x25519_public(b"\x04" * 32)
    boxed = boxes.box(boxes.shared_secret(mine, public), NONCE, b"hello")
    assert boxed == crypto_box_easy(b"hello", NONCE, public, mine)


def test_a_box_is_not_the_secretbox_of_its_key() -> None:
    assert boxes.box(KEY, NONCE, b"hello") != crypto_secretbox_easy(b"hello", NONCE, KEY)


def test_libsodium_offers_the_step_here() -> None:
    assert hsalsa20.hsalsa20 is hsalsa20.hsalsa20_of_libsodium


@given(st.binary(min_size=32, max_size=32))
def test_both_ways_to_take_the_step_agree(key: bytes) -> None:
    assert hsalsa20.hsalsa20_of_libsodium is not None
    assert hsalsa20.hsalsa20_in_python(key) == hsalsa20.hsalsa20_of_libsodium(key)


@pytest.mark.parametrize("library", [None, "/no/such/library.so", _ctypes.__file__])
def test_where_a_build_hides_the_step_it_is_not_called(
    monkeypatch: pytest.MonkeyPatch, library: str | None
) -> None:
    monkeypatch.setattr(hsalsa20, "find_spec", lambda _: ModuleSpec("any", None, origin=library))
    assert hsalsa20._of_libsodium() is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("byte_count", [0, 31, 33])
def test_a_key_of_another_length_is_our_mistake(byte_count: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        boxes.box(bytes(byte_count), NONCE, b"")


@pytest.mark.parametrize("at", range(0, 48, 5))
def test_a_damaged_box_does_not_open(at: int) -> None:
    damaged = bytearray(HELLO)
    damaged[at] ^= 1
    with pytest.raises(MalformedMessageError):
        boxes.open_padded(KEY, NONCE, bytes(damaged))


@given(st.binary(max_size=64))
def test_what_is_no_box_does_not_open(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        boxes.open_box(KEY, NONCE, data)


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_that_agrees_with_every_other_is_refused(public: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        boxes.shared_secret(b"\x03" * 32, public)


def test_a_kept_box_is_the_same_as_one_made_each_time() -> None:
    kept = SecretBox(KEY)
    assert kept.box(NONCE, b"hello") == boxes.box(KEY, NONCE, b"hello")
    assert kept.box_padded(NONCE, b"hello", 32) == HELLO
    assert kept.open_padded(NONCE, HELLO) == b"hello"
    assert kept.open_box(NONCE, kept.box(NONCE, b"")) == b""
    with pytest.raises(MalformedMessageError):
        kept.open_box(NONCE, HELLO[:-1])


def test_padding_is_a_length_the_bytes_and_hashes() -> None:
    assert boxes.padded(b"hello", 10) == b"\x00\x05hello###"
    assert boxes.padded(b"", 2) == b"\x00\x00"


def test_a_message_may_fill_its_block_and_no_more() -> None:
    assert boxes.unpadded(boxes.padded(b"x" * 30, 32)) == b"x" * 30
    with pytest.raises(ValueError, match="31 bytes"):
        boxes.padded(b"x" * 31, 32)


def test_padding_of_any_bytes_is_accepted() -> None:
    assert boxes.unpadded(b"\x00\x01ab!?") == b"a"


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x01", b"\x00\x03ab", b"\xff\xff" + b"#" * 99]
)
def test_a_length_beyond_the_end_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        boxes.unpadded(data)


@given(st.binary(max_size=300))
def test_unpadding_gives_a_part_of_its_input_or_raises(data: bytes) -> None:
    try:
        message = boxes.unpadded(data)
    except MalformedMessageError:
        return
    assert boxes.padded(message, len(data))[: 2 + len(message)] == data[: 2 + len(message)]


def test_an_id_as_a_nonce_is_cut_or_filled_with_zeros() -> None:
    assert boxes.nonce_of(NONCE) == NONCE
    assert boxes.nonce_of(NONCE + b"more") == NONCE
    assert boxes.nonce_of(b"ab") == b"ab" + bytes(22)
    assert boxes.reversed_nonce(NONCE) == bytes(range(0x57, 0x3F, -1))
