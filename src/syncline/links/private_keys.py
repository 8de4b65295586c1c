"""Private keys of a client: those that authorize its commands, and those that make secrets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.keys import KeyKind, PublicKey

# So many random bytes, as `secrets.token_bytes` gives them.
Entropy = Callable[[int], bytes]

_RAW_BYTES = {KeyKind.ED25519: 32, KeyKind.X25519: 32, KeyKind.ED448: 57}


# Without slots, for the public half that is computed once.
@dataclass(frozen=True)
class PrivateKey:
    """`raw` is the seed of a signing key, the scalar of an X25519 key."""

    kind: KeyKind
    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.raw) != _RAW_BYTES.get(self.kind):
            raise ValueError(f"no private key of kind {self.kind.value} has {len(self.raw)} bytes")

    @classmethod
    def new(cls, kind: KeyKind, entropy: Entropy) -> "PrivateKey":
        return cls(kind, entropy(_RAW_BYTES[kind]))

    @cached_property
    def public(self) -> PublicKey:
        return public_key_of(self.kind, self.raw)
