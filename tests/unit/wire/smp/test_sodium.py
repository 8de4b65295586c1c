"""libsodium called directly, against PyNaCl, which is what is used where that cannot be done."""

import _ctypes
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.wire.smp import sodium
from syncline.wire.smp.authorizations import public_key_of, sign
from syncline.wire.smp.keys import KeyKind

KEY = bytes(range(32))
NONCE = bytes(range(24))
PUBLIC = public_key_of(KeyKind.ED25519, KEY).raw


def test_libsodium_is_called_directly_here() -> None:
    assert (sodium.seal, sodium.open_sealed) == sodium.boxes_of_libsodium
    assert sodium.is_signed is sodium.check_of_libsodium


@given(st.binary(max_size=300))
def test_both_ways_make_the_same_box_and_open_it(message: bytes) -> None:
    boxed = sodium.seal(KEY, NONCE, message)
    assert boxed == sodium.seal_with_pynacl(KEY, NONCE, message)
    assert sodium.open_sealed(KEY, NONCE, boxed) == message
    assert sodium.open_with_pynacl(KEY, NONCE, boxed) == message


@given(st.binary(max_size=300))
def test_what_is_no_box_opens_in_neither_way(boxed: bytes) -> None:
    assert sodium.open_sealed(KEY, NONCE, boxed) is None
    assert sodium.open_with_pynacl(KEY, NONCE, boxed) is None


def test_a_box_that_was_changed_does_not_open() -> None:
    boxed = sodium.seal(KEY, NONCE, b"a message")
    for index in range(len(boxed)):
        changed = bytes(byte ^ (at == index) for at, byte in enumerate(boxed))
        assert sodium.open_sealed(KEY, NONCE, changed) is None


@pytest.mark.parametrize(("key", "nonce"), [(KEY[1:], NONCE), (KEY, NONCE[1:]), (KEY, b"")])
def test_lengths_are_not_trusted(key: bytes, nonce: bytes) -> None:
    with pytest.raises(ValueError, match="a key has 32 bytes, a nonce 24"):
        sodium.seal(key, nonce, b"a message")
    with pytest.raises(ValueError, match="a key has 32 bytes, a nonce 24"):
        sodium.open_sealed(key, nonce, bytes(40))


@given(st.binary(max_size=300), st.integers(0, 63))
def test_both_ways_know_a_signature(data: bytes, index: int) -> None:
    signature = sign(KeyKind.ED25519, KEY, data)
    wrong = bytes(byte ^ (at == index) for at, byte in enumerate(signature))
    for check in (sodium.is_signed, sodium.check_with_pynacl):
        assert check(PUBLIC, signature, data)
        assert not check(PUBLIC, wrong, data)
        assert not check(PUBLIC, signature, data + b"\0")


def test_a_key_or_signature_of_another_length_is_wrong() -> None:
    signature = sign(KeyKind.ED25519, KEY, b"data")
    assert not sodium.is_signed(PUBLIC[1:], signature, b"data")
    assert not sodium.is_signed(PUBLIC, signature[1:], b"data")
    assert not sodium.is_signed(PUBLIC, b"", b"data")


def test_a_build_without_the_functions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sodium, "import_module", ModuleType)
    assert sodium._boxes_of_libsodium() is None  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sodium, "find_spec", lambda _: None)
    assert sodium._check_of_libsodium() is None  # pyright: ignore[reportPrivateUsage]
    library = ModuleSpec("any", None, origin=_ctypes.__file__)
    monkeypatch.setattr(sodium, "find_spec", lambda _: library)
    assert sodium._check_of_libsodium() is None  # pyright: ignore[reportPrivateUsage]
