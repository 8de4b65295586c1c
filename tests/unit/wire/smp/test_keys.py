"""Public keys: which there are, how they are written, where each may stand."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp import keys
from syncline.wire.smp.keys import AUTH_KINDS, KeyKind, PublicKey
from syncline.wire.smp.primitives import Reader
from tests.unit.wire.smp.vectors import (
    AUTH_KEY,
    DH_KEY,
    ED25519,
    QUEUE_DH_KEY,
    X25519_03,
    X25519_04,
)

SHAPES = {
    KeyKind.X25519: ("302a300506032b656e032100", 32, 44),
    KeyKind.ED25519: ("302a300506032b6570032100", 32, 44),
    KeyKind.ED448: ("3043300506032b6571033a00", 57, 69),
    KeyKind.X448: ("3042300506032b656f033900", 56, 68),
}


@pytest.mark.parametrize("kind", KeyKind)
def test_a_key_is_a_prefix_and_the_raw_key(kind: KeyKind) -> None:
    prefix, raw_bytes, encoded_bytes = SHAPES[kind]
    key = PublicKey(kind, bytes(range(raw_bytes)))
    assert key.encoded == bytes.fromhex(prefix) + bytes(range(raw_bytes))
    assert len(key.encoded) == encoded_bytes
    assert PublicKey.decode(key.encoded) == key


@pytest.mark.parametrize(
    ("key", "kind", "encoded"),
    [
        (AUTH_KEY, KeyKind.ED25519, ED25519),
        (QUEUE_DH_KEY, KeyKind.X25519, X25519_03),
        (DH_KEY, KeyKind.X25519, X25519_04),
    ],
)
def test_keys_of_the_reference(key: PublicKey, kind: KeyKind, encoded: str) -> None:
    assert key.kind is kind
    assert key.encoded.hex() == encoded
    assert keys.write_key(key).hex() == "2c" + encoded


@pytest.mark.parametrize("kind", KeyKind)
def test_a_key_of_another_length_or_kind_is_refused(kind: KeyKind) -> None:
    encoded = PublicKey(kind, bytes(SHAPES[kind][1])).encoded
    for wrong in (encoded[:-1], encoded + b"\0", b"\x31" + encoded[1:], b""):
        with pytest.raises(MalformedMessageError, match="no known kind"):
            PublicKey.decode(wrong)
    with pytest.raises(ValueError, match="has 31 bytes"):
        PublicKey(kind, bytes(31))


@pytest.mark.parametrize("kind", KeyKind)
def test_which_key_may_stand_where(kind: KeyKind) -> None:
    key = PublicKey(kind, bytes(SHAPES[kind][1]))
    encoded = keys.write_key(key)
    if kind is KeyKind.X448:
        with pytest.raises(MalformedMessageError, match="authorizes nothing"):
            keys.read_auth_key(Reader(encoded))
    else:
        assert keys.read_auth_key(Reader(encoded)) == key
        assert kind in AUTH_KINDS
    if kind is KeyKind.X25519:
        assert keys.read_dh_key(Reader(encoded)) == key
    else:
        with pytest.raises(MalformedMessageError, match="no shared secret"):
            keys.read_dh_key(Reader(encoded))
