"""Authorizations: what makes a command the command of whoever holds a key.

    Ed25519   64 bytes   a signature
    Ed448    114 bytes   a signature
    X25519    80 bytes   an authenticator: box(X25519(queue key, router's session key),
                         nonce = correlation id, SHA-512(data)); only the router can check it, and
                         it could have made it itself, so it proves nothing to others

The kind is told by the length. How long a check takes depends on the kind that was presented, never
on whether the queue exists or which key it has: where there is nothing to check against, the same
work is done with a key that is nobody's (`refuse_slowly`).
"""

from collections.abc import Mapping
from hashlib import sha512
from hmac import compare_digest
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from syncline.errors import MalformedMessageError
from syncline.wire.smp.boxes import box, nonce_of, open_box, shared_secret, x25519_public
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.sodium import is_signed as _is_ed25519

SIGNATURE_BYTES: Final[Mapping[KeyKind, int]] = {KeyKind.ED25519: 64, KeyKind.ED448: 114}
AUTHENTICATOR_BYTES: Final = 80

_KINDS: Final = {64: KeyKind.ED25519, 114: KeyKind.ED448, AUTHENTICATOR_BYTES: KeyKind.X25519}


def kind_of(authorization: bytes) -> KeyKind | None:
    """None for no authorization, and for what is none."""
    return _KINDS.get(len(authorization))


def public_key_of(kind: KeyKind, private: bytes) -> PublicKey:
    """`private` is the raw key: the seed of a signing key, 32 bytes (Ed448: 57)."""
    if kind is KeyKind.ED25519:
        return PublicKey(kind, crypto_sign_seed_keypair(private)[0])
    if kind is KeyKind.ED448:
        public = Ed448PrivateKey.from_private_bytes(private).public_key()
        return PublicKey(kind, public.public_bytes_raw())
    if kind is KeyKind.X25519:
        return PublicKey(kind, x25519_public(private))
    raise ValueError(f"keys of kind {kind.value} are not used here")


def sign(kind: KeyKind, private: bytes, data: bytes) -> bytes:
    if kind is KeyKind.ED25519:
        return crypto_sign(data, crypto_sign_seed_keypair(private)[1])[:64]
    if kind is KeyKind.ED448:
        return Ed448PrivateKey.from_private_bytes(private).sign(data)
    raise ValueError(f"a key of kind {kind.value} signs nothing")


def is_signed(key: PublicKey, signature: bytes, data: bytes) -> bool:
    """By a signing key; False for keys of other kinds and signatures of another length."""
    if len(signature) != SIGNATURE_BYTES.get(key.kind):
        return False
    return _is_right(key, signature, data, b"", None)


def authenticate(private: bytes, router_public: bytes, corr_id: bytes, data: bytes) -> bytes:
    """The correlation id is the nonce: with the same key it must never be used twice."""
    secret = shared_secret(private, router_public)
    return box(secret, nonce_of(corr_id), sha512(data).digest())


def is_authorized(
    key: PublicKey,
    authorization: bytes,
    data: bytes,
    corr_id: bytes,
    router_private: bytes | None,
) -> bool:
    """Without a session key (`router_private`) no authenticator is right."""
    if kind_of(authorization) is not key.kind:
        refuse_slowly(authorization, data, corr_id, router_private)
        return False
    return _is_right(key, authorization, data, corr_id, router_private)


def refuse_slowly(
    authorization: bytes, data: bytes, corr_id: bytes, router_private: bytes | None
) -> None:
    """Spend what checking this authorization would have cost."""
    kind = kind_of(authorization)
    if kind is not None:
        _is_right(_NOBODYS[kind], authorization, data, corr_id, router_private)


def _is_right(
    key: PublicKey,
    authorization: bytes,
    data: bytes,
    corr_id: bytes,
    router_private: bytes | None,
) -> bool:
    if key.kind is KeyKind.ED25519:
        # By libsodium: half the time of OpenSSL (62 µs for 120).
        return _is_ed25519(key.raw, authorization, data)
    if key.kind is KeyKind.ED448:
        return _is_ed448(key.raw, authorization, data)
    if key.kind is KeyKind.X25519 and router_private is not None:
        return _is_authenticator(key.raw, authorization, data, corr_id, router_private)
    return False


def _is_ed448(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed448PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_authenticator(
    public: bytes, authenticator: bytes, data: bytes, corr_id: bytes, router_private: bytes
) -> bool:
    expected = sha512(data).digest()
    try:
        secret = shared_secret(router_private, public)
        found = open_box(secret, nonce_of(corr_id), authenticator)
    except MalformedMessageError:
        return False
    return compare_digest(found, expected)


# Whole keys, so that they take the whole way; nobody presents them, and nothing is accepted if they
# do: the result is thrown away.
_NOBODYS: Final = {
    KeyKind.ED25519: public_key_of(KeyKind.ED25519, b"\x11" * 32),
    KeyKind.ED448: public_key_of(KeyKind.ED448, b"\x11" * 57),
    KeyKind.X25519: public_key_of(KeyKind.X25519, b"\x11" * 32),
}
