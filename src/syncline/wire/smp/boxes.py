"""Boxes: how everything symmetric is encrypted here, with agreed secrets and derived keys alike.

    box(key, nonce, m)      tag (16) | ciphertext: XSalsa20-Poly1305 with the key HSalsa20(key, 0)
    padded(m, n)            w16 length | m | '#' up to n bytes
    nonce                   24 bytes

With a secret agreed by X25519 this is NaCl's crypto_box. With a derived key it is *not* NaCl's
secretbox: the HSalsa20 step is taken all the same.

What comes from a peer raises MalformedMessageError; a length that is our own mistake, ValueError.
"""

from typing import Final

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from syncline.errors import MalformedMessageError
from syncline.wire.smp.hsalsa20 import hsalsa20
from syncline.wire.smp.sodium import open_sealed, seal

NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
SECRET_BYTES: Final = 32
_LENGTH_BYTES: Final = 2


def box(key: bytes, nonce: bytes, message: bytes) -> bytes:
    return seal(hsalsa20(key), nonce, message)


def open_box(key: bytes, nonce: bytes, boxed: bytes) -> bytes:
    return _opened(hsalsa20(key), nonce, boxed)


def box_padded(key: bytes, nonce: bytes, message: bytes, byte_count: int) -> bytes:
    """`byte_count` is that of the padded message; the box has 16 more."""
    return seal(hsalsa20(key), nonce, padded(message, byte_count))


def open_padded(key: bytes, nonce: bytes, boxed: bytes) -> bytes:
    return unpadded(_opened(hsalsa20(key), nonce, boxed))


class SecretBox:
    """Boxes with one key that is used again and again: its HSalsa20 step is taken once."""

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        self._key = hsalsa20(secret)

    def box(self, nonce: bytes, message: bytes) -> bytes:
        return seal(self._key, nonce, message)

    def open_box(self, nonce: bytes, boxed: bytes) -> bytes:
        return _opened(self._key, nonce, boxed)

    def box_padded(self, nonce: bytes, message: bytes, byte_count: int) -> bytes:
        return seal(self._key, nonce, padded(message, byte_count))

    def open_padded(self, nonce: bytes, boxed: bytes) -> bytes:
        return unpadded(_opened(self._key, nonce, boxed))


def padded(message: bytes, byte_count: int) -> bytes:
    if len(message) > byte_count - _LENGTH_BYTES:
        raise ValueError(f"{len(message)} bytes do not fit when padded to {byte_count}")
    return (len(message).to_bytes(_LENGTH_BYTES) + message).ljust(byte_count, b"#")


def unpadded(data: bytes) -> bytes:
    """The padding itself is not looked at: peers may fill with what they like."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
    if len(data) < _LENGTH_BYTES or end > len(data):
        raise MalformedMessageError(f"the padding of {len(data)} bytes announces more than it has")
    return data[_LENGTH_BYTES:end]


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Raw X25519, no hash. Raises MalformedMessageError for a key that leads to no secret."""
    try:
        return crypto_scalarmult(private, public)
    except CryptoError:
        raise MalformedMessageError(
            "the peer's key is no key: it agrees with every other"
        ) from None


def x25519_public(private: bytes) -> bytes:
    return crypto_scalarmult_base(private)


def nonce_of(identifier: bytes) -> bytes:
    """An id or a correlation id as a nonce: cut, or filled with zeros."""
    return identifier[:NONCE_BYTES].ljust(NONCE_BYTES, b"\0")


def reversed_nonce(nonce: bytes) -> bytes:
    """For the answer to what was boxed with `nonce`."""
    return nonce[::-1]


def _opened(key: bytes, nonce: bytes, boxed: bytes) -> bytes:
    opened = open_sealed(key, nonce, boxed)
    if opened is None:
        raise MalformedMessageError("a box does not open: another key, or damaged")
    return opened
