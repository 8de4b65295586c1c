"""What sender and recipient say to one another inside of a message; no router can read it.

    envelope = w16 version, maybe short(key of the sender, X25519), nonce, box
    box      = box_padded(X25519(sender, recipient), nonce, private, n)
               n = 15904 with the key of the sender, 16000 without
    private  = `_` data | `K` short(key that is to be allowed to send) data

All envelopes of a kind are of one length. The recipient's key stands in the address of the queue.
"""

from dataclasses import dataclass, field
from typing import Final

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.links.private_keys import PrivateKey
from syncline.wire.smp.boxes import NONCE_BYTES, box_padded, open_padded, shared_secret
from syncline.wire.smp.keys import PublicKey, read_auth_key, read_dh_key
from syncline.wire.smp.primitives import Reader, maybe, short, w16

VERSION: Final = 4
VERSION_MIN: Final = 1
_PADDED_BYTES_WITH_KEY: Final = 15_904
_PADDED_BYTES: Final = 16_000
# The length before the padding, and the kind.
_OVERHEAD_BYTES: Final = 3
DATA_BYTES_MAX: Final = _PADDED_BYTES_WITH_KEY - _OVERHEAD_BYTES

_PLAIN, _WITH_KEY = b"_K"


@dataclass(frozen=True, slots=True)
class Envelope:
    data: bytes = field(repr=False)
    # With it the recipient opens this envelope and later ones; absent from later ones.
    sender_dh: PublicKey | None = None
    # To be allowed to send to the queue.
    sender_key: PublicKey | None = None


def seal_envelope(envelope: Envelope, own: PrivateKey, recipient: PublicKey, nonce: bytes) -> bytes:
    """`nonce` is random and new. Raises LimitExceededError for more than fits."""
    private = bytes((_PLAIN,))
    if envelope.sender_key is not None:
        private = bytes((_WITH_KEY,)) + short(envelope.sender_key.encoded)
    private += envelope.data
    size = _PADDED_BYTES if envelope.sender_dh is None else _PADDED_BYTES_WITH_KEY
    if len(private) > size - 2:
        raise LimitExceededError("the bytes of a message", len(private), size - 2)
    header = w16(VERSION) + maybe(envelope.sender_dh, lambda key: short(key.encoded)) + nonce
    return header + box_padded(shared_secret(own.raw, recipient.raw), nonce, private, size)


def open_envelope(body: bytes, own: PrivateKey, known: PublicKey | None) -> Envelope:
    """`known` is the sender's key from an earlier envelope. Raises MalformedMessageError."""
    reader = Reader(body)
    if reader.w16() < VERSION_MIN:
        raise MalformedMessageError("an envelope has no version")
    sender_dh = reader.maybe(lambda: read_dh_key(reader))
    nonce = reader.take(NONCE_BYTES)
    key = sender_dh or known
    if key is None:
        raise MalformedMessageError("an envelope has no key, and none came before it")
    private = Reader(open_padded(shared_secret(own.raw, key.raw), nonce, reader.tail()))
    match private.u8():
        case kind if kind == _PLAIN:
            return Envelope(private.tail(), sender_dh)
        case kind if kind == _WITH_KEY:
            sender_key = read_auth_key(private)
            return Envelope(private.tail(), sender_dh, sender_key)
        case _:
            raise MalformedMessageError("an envelope is of no known kind")
