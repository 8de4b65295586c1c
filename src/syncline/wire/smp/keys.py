"""Public keys as they travel: SubjectPublicKeyInfo in DER, a fixed prefix and the raw key.

A key that authorizes commands is Ed25519, Ed448 or X25519; a key for a shared secret is X25519.
X448 is known, and allowed nowhere.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from syncline.errors import MalformedMessageError
from syncline.wire.smp.primitives import Reader, short

_PREFIX_BYTES = 12


class KeyKind(Enum):
    X25519 = "X25519"
    ED25519 = "Ed25519"
    ED448 = "Ed448"
    X448 = "X448"


AUTH_KINDS: Final = frozenset({KeyKind.ED25519, KeyKind.ED448, KeyKind.X25519})

_PREFIXES: Final = {
    KeyKind.X25519: bytes.fromhex("302a300506032b656e032100"),
    KeyKind.ED25519: bytes.fromhex("302a300506032b6570032100"),
    KeyKind.ED448: bytes.fromhex("3043300506032b6571033a00"),
    KeyKind.X448: bytes.fromhex("3042300506032b656f033900"),
}
_KINDS: Final = {prefix: kind for kind, prefix in _PREFIXES.items()}
_RAW_BYTES: Final = {
    KeyKind.X25519: 32,
    KeyKind.ED25519: 32,
    KeyKind.ED448: 57,
    KeyKind.X448: 56,
}

# The length byte before an X25519 key: how a client hello without a key is told from one with it.
X25519_ENCODED_BYTES: Final = _PREFIX_BYTES + 32


@dataclass(frozen=True, slots=True)
class PublicKey:
    kind: KeyKind
    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != _RAW_BYTES[self.kind]:
            raise ValueError(f"no {self.kind.value} key has {len(self.raw)} bytes")

    @property
    def encoded(self) -> bytes:
        return _PREFIXES[self.kind] + self.raw

    @classmethod
    def decode(cls, der: bytes) -> Self:
        """Raises MalformedMessageError unless it is a key of a known kind, and nothing more."""
        kind = _KINDS.get(der[:_PREFIX_BYTES])
        if kind is None or len(der) != _PREFIX_BYTES + _RAW_BYTES[kind]:
            raise MalformedMessageError("a key is of no known kind")
        return cls(kind, der[_PREFIX_BYTES:])


def read_auth_key(reader: Reader) -> PublicKey:
    key = PublicKey.decode(reader.short())
    if key.kind not in AUTH_KINDS:
        raise MalformedMessageError(f"a key of kind {key.kind.value} authorizes nothing")
    return key


def read_dh_key(reader: Reader) -> PublicKey:
    key = PublicKey.decode(reader.short())
    if key.kind is not KeyKind.X25519:
        raise MalformedMessageError(f"a key of kind {key.kind.value} makes no shared secret here")
    return key


def write_key(key: PublicKey) -> bytes:
    return short(key.encoded)
