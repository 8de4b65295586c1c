"""A key of one session, signed by the key of a certificate: how both sides of a hello prove theirs.

    SEQUENCE {
      SEQUENCE { SubjectPublicKeyInfo }   one SEQUENCE more than one would think
      AlgorithmIdentifier                 Ed25519 or Ed448
      BIT STRING                          signature over the inner SEQUENCE with its header
    }

A peer that cannot read the object may go on without a key in silence and fail at its first command,
so the bytes are written out here: for keys of 44 bytes, which session keys are (X25519, Ed25519),
there are two shapes, one for each kind of signer.
"""

from typing import Final

from syncline.errors import MalformedMessageError
from syncline.wire.smp.authorizations import SIGNATURE_BYTES, is_signed, sign
from syncline.wire.smp.keys import KeyKind, PublicKey

_KEY_BYTES: Final = 44
_INNER_HEAD: Final = bytes.fromhex("302c")
_INNER_BYTES: Final = len(_INNER_HEAD) + _KEY_BYTES
# The head of the object; what stands between the key and the signature.
_SHAPES: Final = {
    KeyKind.ED25519: (bytes.fromhex("3078"), bytes.fromhex("300506032b6570034100")),
    KeyKind.ED448: (bytes.fromhex("3081aa"), bytes.fromhex("300506032b6571037300")),
}


def sign_key(public: PublicKey, leaf_private: bytes, kind: KeyKind) -> bytes:
    """`kind` is that of `leaf_private`, the raw private key of the certificate."""
    inner = _INNER_HEAD + public.encoded
    if kind not in _SHAPES or len(inner) != _INNER_BYTES:
        raise ValueError(f"a {public.kind.value} key signed by {kind.value} is not used here")
    head, middle = _SHAPES[kind]
    return head + inner + middle + sign(kind, leaf_private, inner)


def open_signed_key(der: bytes, leaf_public: PublicKey) -> PublicKey:
    """Raises MalformedMessageError unless it is one, signed by the key of `leaf_public`."""
    if leaf_public.kind not in _SHAPES:
        raise MalformedMessageError(f"a key of kind {leaf_public.kind.value} signs no other")
    head, middle = _SHAPES[leaf_public.kind]
    inner, rest = der[len(head) :][:_INNER_BYTES], der[len(head) + _INNER_BYTES :]
    signature = rest[len(middle) :]
    if (
        der[: len(head)] != head
        or inner[: len(_INNER_HEAD)] != _INNER_HEAD
        or rest[: len(middle)] != middle
        or len(signature) != SIGNATURE_BYTES[leaf_public.kind]
    ):
        raise MalformedMessageError("a signed key is not of its one shape")
    if not is_signed(leaf_public, signature, inner):
        raise MalformedMessageError("a signed key has a wrong signature")
    return PublicKey.decode(inner[len(_INNER_HEAD) :])
