"""Signed session keys, against bytes of the reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.signed_keys import open_signed_key, sign_key

SESSION_KEY = public_key_of(KeyKind.X25519, b"\x04" * 32)
SIGNED = bytes.fromhex(
    "3078302c302a300506032b656e032100ac01b2209e86354fb853237b5de0f4fab13c7fcbf433a61c019369617fecf1"
    "0b300506032b657003410069fe6ad4d8611f6f6462879ac784e809fcfd67b954aefe25b8619077efd44305f15e06a5"
    "9dccc5ccd94ecc0720191e7a4c2283040b658535ae61417f5c42460c"
)
LEAVES = {KeyKind.ED25519: b"\x01" * 32, KeyKind.ED448: b"\x01" * 57}


def leaf(kind: KeyKind) -> PublicKey:
    return public_key_of(kind, LEAVES[kind])


def test_a_key_signed_by_ed25519_is_that_of_the_reference() -> None:
    assert sign_key(SESSION_KEY, LEAVES[KeyKind.ED25519], KeyKind.ED25519) == SIGNED
    assert open_signed_key(SIGNED, leaf(KeyKind.ED25519)) == SESSION_KEY


def test_a_key_signed_by_ed448_has_its_own_lengths() -> None:
    signed = sign_key(SESSION_KEY, LEAVES[KeyKind.ED448], KeyKind.ED448)
    assert len(signed) == 173
    assert signed.startswith(bytes.fromhex("3081aa302c302a"))
    assert open_signed_key(signed, leaf(KeyKind.ED448)) == SESSION_KEY


@pytest.mark.parametrize("kind", LEAVES)
def test_a_service_signs_a_signing_key(kind: KeyKind) -> None:
    key = public_key_of(KeyKind.ED25519, b"\x02" * 32)
    assert open_signed_key(sign_key(key, LEAVES[kind], kind), leaf(kind)) == key


@pytest.mark.parametrize("at", range(len(SIGNED)))
def test_every_byte_counts(at: int) -> None:
    changed = bytearray(SIGNED)
    changed[at] ^= 1
    with pytest.raises(MalformedMessageError):
        open_signed_key(bytes(changed), leaf(KeyKind.ED25519))


def test_the_form_without_the_extra_sequence_is_refused() -> None:
    flat = bytes.fromhex("3076") + SESSION_KEY.encoded + SIGNED[48:]
    with pytest.raises(MalformedMessageError):
        open_signed_key(flat, leaf(KeyKind.ED25519))


@pytest.mark.parametrize("signed", [b"", SIGNED[:-1], SIGNED + b"\0", SIGNED[:60]])
def test_a_cut_or_longer_object_is_refused(signed: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        open_signed_key(signed, leaf(KeyKind.ED25519))


def test_the_signature_of_another_certificate_is_refused() -> None:
    with pytest.raises(MalformedMessageError):
        open_signed_key(SIGNED, public_key_of(KeyKind.ED25519, b"\x02" * 32))
    with pytest.raises(MalformedMessageError):
        open_signed_key(SIGNED, leaf(KeyKind.ED448))
    with pytest.raises(MalformedMessageError):
        open_signed_key(SIGNED, SESSION_KEY)


@given(st.binary(max_size=200))
def test_what_is_no_signed_key_is_refused(data: bytes) -> None:
    for kind in LEAVES:
        with pytest.raises(MalformedMessageError):
            open_signed_key(data, leaf(kind))


def test_other_keys_are_our_mistake() -> None:
    with pytest.raises(ValueError, match="not used"):
        sign_key(SESSION_KEY, b"\x01" * 32, KeyKind.X25519)
    with pytest.raises(ValueError, match="not used"):
        sign_key(leaf(KeyKind.ED448), b"\x01" * 32, KeyKind.ED25519)
