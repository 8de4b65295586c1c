"""Signatures and authenticators, against bytes of the reference."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.wire.smp import authorizations
from syncline.wire.smp.authorizations import (
    authenticate,
    is_authorized,
    is_signed,
    kind_of,
    public_key_of,
    refuse_slowly,
    sign,
)
from syncline.wire.smp.keys import KeyKind, PublicKey

SIGNED = (
    bytes.fromhex("20")
    + bytes(range(32))
    + bytes.fromhex(
        "18404142434445464748494a4b4c4d4e4f5051525354555657"
        "18aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa535542"
    )
)
CORR_ID = bytes(range(0x40, 0x58))
QUEUE_SEED, SERVICE_SEED = b"\x01" * 32, b"\x02" * 32
QUEUE_PRIVATE, ROUTER_PRIVATE = b"\x03" * 32, b"\x04" * 32
SIGNATURE = bytes.fromhex(
    "3d466c276f0feac489a5ad7686b54801fd1f07c03696d9852b49ffa79c853447"
    "6649dc9c8df7b3613ab2fe9e1192c7810199f9906aca77cd3936347076784906"
)
AUTHENTICATOR = bytes.fromhex(
    "8225d9087b6767dc02f0c7f397d06a2dbf753370d8d853a5c93b97e79b567a7a"
    "e01b260ee43a74a5fadc00d6f302ad3cbec9f2cdbb5065df9f9e41ddb28d2510"
    "f8893b22756c76cb54208c4790876a59"
)
PRIVATES = {
    KeyKind.ED25519: QUEUE_SEED,
    KeyKind.ED448: b"\x05" * 57,
    KeyKind.X25519: QUEUE_PRIVATE,
}


def authorize(kind: KeyKind, data: bytes = SIGNED) -> bytes:
    if kind is KeyKind.X25519:
        return authenticate(PRIVATES[kind], x25519(ROUTER_PRIVATE).raw, CORR_ID, data)
    return sign(kind, PRIVATES[kind], data)


def x25519(private: bytes) -> PublicKey:
    return public_key_of(KeyKind.X25519, private)


def test_public_keys_are_those_of_the_reference() -> None:
    assert public_key_of(KeyKind.ED25519, QUEUE_SEED).encoded.hex() == (
        "302a300506032b65700321008a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
    )
    assert x25519(QUEUE_PRIVATE).encoded.hex() == (
        "302a300506032b656e0321005dfedd3b6bd47f6fa28ee15d969d5bb0ea53774d488bdaf9df1c6e0124b3ef22"
    )
    assert x25519(ROUTER_PRIVATE).encoded.hex() == (
        "302a300506032b656e032100ac01b2209e86354fb853237b5de0f4fab13c7fcbf433a61c019369617fecf10b"
    )


def test_a_signature_is_that_of_the_reference() -> None:
    assert sign(KeyKind.ED25519, QUEUE_SEED, SIGNED) == SIGNATURE
    key = public_key_of(KeyKind.ED25519, QUEUE_SEED)
    assert is_authorized(key, SIGNATURE, SIGNED, CORR_ID, None)


def test_an_authenticator_is_that_of_the_reference() -> None:
    made = authenticate(QUEUE_PRIVATE, x25519(ROUTER_PRIVATE).raw, CORR_ID, SIGNED)
    assert made == AUTHENTICATOR
    assert is_authorized(x25519(QUEUE_PRIVATE), made, SIGNED, CORR_ID, ROUTER_PRIVATE)


def test_both_signatures_of_a_service_are_those_of_the_reference() -> None:
    certificate_hash = sha256(b"service certificate").digest()
    assert sign(KeyKind.ED25519, QUEUE_SEED, certificate_hash + SIGNED).hex() == (
        "bb86902ec7e30bc3083368208ac15efbbf14a5f6c6872f46271d6ccbe15cac75"
        "28e039ff28c7737e0ec2cae8320e62995c8caf219db05fbc72f79ceebdce3e0f"
    )
    assert sign(KeyKind.ED25519, SERVICE_SEED, SIGNED).hex() == (
        "6e55650856cdbd7d8cffb35d83ec14a016cab6241a74679d2f1c1d29f49d2b1d"
        "ec4004df4fcb0dfaffe4512fa86649ad331e42e9308878b2ef0474b64ea5850f"
    )


@pytest.mark.parametrize("kind", PRIVATES)
def test_the_length_tells_the_kind(kind: KeyKind) -> None:
    assert kind_of(authorize(kind)) is kind


@pytest.mark.parametrize("byte_count", [0, 1, 63, 65, 79, 81, 113, 115])
def test_another_length_is_no_authorization(byte_count: int) -> None:
    assert kind_of(bytes(byte_count)) is None
    key = public_key_of(KeyKind.ED25519, QUEUE_SEED)
    assert not is_authorized(key, bytes(byte_count), SIGNED, CORR_ID, ROUTER_PRIVATE)


@pytest.mark.parametrize("kind", PRIVATES)
def test_only_the_right_authorization_passes(kind: KeyKind) -> None:
    key, right = public_key_of(kind, PRIVATES[kind]), authorize(kind)
    assert is_authorized(key, right, SIGNED, CORR_ID, ROUTER_PRIVATE)
    assert not is_authorized(key, right, SIGNED + b"!", CORR_ID, ROUTER_PRIVATE)
    for at in (0, 20, len(right) - 1):
        wrong = bytearray(right)
        wrong[at] ^= 1
        assert not is_authorized(key, bytes(wrong), SIGNED, CORR_ID, ROUTER_PRIVATE)
    for other in PRIVATES:
        if other is not kind:
            presented = authorize(other)
            assert not is_authorized(key, presented, SIGNED, CORR_ID, ROUTER_PRIVATE)


def test_an_authenticator_holds_for_one_router_key_and_one_correlation_id() -> None:
    key = x25519(QUEUE_PRIVATE)
    assert not is_authorized(key, AUTHENTICATOR, SIGNED, CORR_ID, b"\x06" * 32)
    assert not is_authorized(key, AUTHENTICATOR, SIGNED, CORR_ID[:-1], ROUTER_PRIVATE)
    assert not is_authorized(key, AUTHENTICATOR, SIGNED, CORR_ID, None)


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"\xff" * 32])
def test_a_key_that_is_no_point_authorizes_nothing(public: bytes) -> None:
    for kind in (KeyKind.ED25519, KeyKind.X25519):
        key = PublicKey(kind, public)
        assert not is_authorized(key, authorize(kind), SIGNED, CORR_ID, ROUTER_PRIVATE)
    key = PublicKey(KeyKind.ED448, public.ljust(57, public[-1:]))
    assert not is_authorized(key, authorize(KeyKind.ED448), SIGNED, CORR_ID, ROUTER_PRIVATE)


@given(st.sampled_from([64, 80, 114]), st.data())
def test_random_bytes_authorize_nothing(byte_count: int, data: st.DataObject) -> None:
    presented = data.draw(st.binary(min_size=byte_count, max_size=byte_count))
    for kind, private in PRIVATES.items():
        key = public_key_of(kind, private)
        assert not is_authorized(key, presented, SIGNED, CORR_ID, ROUTER_PRIVATE)


class Spied:
    """Which kinds of key were really used to check, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[str] = []
        for name in ("_is_ed25519", "_is_ed448", "_is_authenticator"):
            self._spy(monkeypatch, name)

    def _spy(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(authorizations, name)

        def spy(*arguments: bytes) -> bool:
            self.checked.append(name)
            return bool(real(*arguments))

        monkeypatch.setattr(authorizations, name, spy)


CHECKS = {
    KeyKind.ED25519: "_is_ed25519",
    KeyKind.ED448: "_is_ed448",
    KeyKind.X25519: "_is_authenticator",
}


@pytest.mark.parametrize("presented", PRIVATES)
def test_the_work_depends_on_what_is_presented_alone(
    monkeypatch: pytest.MonkeyPatch, presented: KeyKind
) -> None:
    spied = Spied(monkeypatch)
    for kind, private in PRIVATES.items():
        key = public_key_of(kind, private)
        is_authorized(key, authorize(presented), SIGNED, CORR_ID, ROUTER_PRIVATE)
    refuse_slowly(authorize(presented), SIGNED, CORR_ID, ROUTER_PRIVATE)
    assert spied.checked == [CHECKS[presented]] * 4


def test_nothing_is_checked_where_nothing_is_presented(monkeypatch: pytest.MonkeyPatch) -> None:
    spied = Spied(monkeypatch)
    refuse_slowly(b"", SIGNED, CORR_ID, ROUTER_PRIVATE)
    refuse_slowly(b"x" * 7, SIGNED, CORR_ID, ROUTER_PRIVATE)
    assert spied.checked == []


@pytest.mark.parametrize("kind", PRIVATES)
def test_nobodys_keys_take_the_whole_way(kind: KeyKind) -> None:
    # A signature that is right for them is found right, so nothing was cut short before the end.
    key = authorizations._NOBODYS[kind]  # pyright: ignore[reportPrivateUsage]
    private = b"\x11" * (57 if kind is KeyKind.ED448 else 32)
    if kind is KeyKind.X25519:
        presented = authenticate(private, x25519(ROUTER_PRIVATE).raw, CORR_ID, SIGNED)
    else:
        presented = sign(kind, private, SIGNED)
    assert is_authorized(key, presented, SIGNED, CORR_ID, ROUTER_PRIVATE)


def test_a_signature_is_told_from_an_authenticator() -> None:
    assert is_signed(public_key_of(KeyKind.ED25519, QUEUE_SEED), SIGNATURE, SIGNED)
    assert not is_signed(public_key_of(KeyKind.ED25519, SERVICE_SEED), SIGNATURE, SIGNED)
    assert not is_signed(x25519(QUEUE_PRIVATE), AUTHENTICATOR, SIGNED)
    assert not is_signed(public_key_of(KeyKind.ED25519, QUEUE_SEED), SIGNATURE[:63], SIGNED)


def test_no_byte_moves_from_the_data_into_the_signature() -> None:
    key = public_key_of(KeyKind.ED25519, QUEUE_SEED)
    assert not is_signed(key, SIGNATURE[:-1], SIGNATURE[-1:] + SIGNED)
    assert not is_authorized(key, SIGNATURE[:-1], SIGNATURE[-1:] + SIGNED, CORR_ID, None)


@pytest.mark.parametrize("kind", [KeyKind.X25519, KeyKind.X448])
def test_keys_that_cannot_sign_say_so(kind: KeyKind) -> None:
    with pytest.raises(ValueError, match="signs nothing"):
        sign(kind, bytes(32), b"")


def test_x448_is_not_used() -> None:
    with pytest.raises(ValueError, match="not used"):
        public_key_of(KeyKind.X448, bytes(56))
    assert not is_authorized(
        PublicKey(KeyKind.X448, bytes(56)), AUTHENTICATOR, SIGNED, CORR_ID, ROUTER_PRIVATE
    )
