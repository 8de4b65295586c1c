"""Commands that go to their router through another one (docs/formats/smp.md, Proxy).

    client -> proxy    PFWD  w16 version, key, body         entity id: session of proxy and relay
    proxy  -> relay    RFWD  box(s, n, short c, w16 version, key, body)
    relay  -> proxy    RRES  box(s, reversed n, short c, body)
    proxy  -> client   PRES  body

    body    = box(e, c, padded content), and of the answer box(e, reversed c, padded content)
    content = that of a block, with one transmission
    c       = correlation id of PFWD, and of the command inside
    n       = correlation id of RFWD
    e       = secret of the key in PFWD, made for this command alone, and the relay's session key
    s       = secret of the keys in the hellos of proxy and relay

So the proxy does not see what is asked of the relay, and the relay does not see who asks.
"""

from dataclasses import dataclass, field
from typing import Final

from syncline.wire.smp.boxes import SecretBox, nonce_of, reversed_nonce
from syncline.wire.smp.hellos import VersionRange
from syncline.wire.smp.keys import PublicKey, read_dh_key, write_key
from syncline.wire.smp.primitives import Reader, short, w16
from syncline.wire.smp.versions import PROXYING, VERSION_MAX

# Of the content when it is padded: RFWD with it just fits into a block.
_PADDED_BYTES: Final = 16_226
CONTENT_BYTES_MAX: Final = _PADDED_BYTES - 2
FORWARDED_VERSIONS: Final = VersionRange(PROXYING, VERSION_MAX)


@dataclass(frozen=True, slots=True)
class Forward:
    """What the proxy tells the relay of one PFWD."""

    corr_id: bytes
    version: int
    key: PublicKey
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ForwardAnswer:
    corr_id: bytes
    body: bytes = field(repr=False)


def encode_forward(forward: Forward) -> bytes:
    return short(forward.corr_id) + w16(forward.version) + write_key(forward.key) + forward.body


def decode_forward(data: bytes) -> Forward:
    """Raises MalformedMessageError."""
    reader = Reader(data)
    return Forward(reader.short(), reader.w16(), read_dh_key(reader), reader.tail())


def encode_forward_answer(answer: ForwardAnswer) -> bytes:
    return short(answer.corr_id) + answer.body


def decode_forward_answer(data: bytes) -> ForwardAnswer:
    """Raises MalformedMessageError."""
    reader = Reader(data)
    return ForwardAnswer(reader.short(), reader.tail())


def seal_command(box: SecretBox, corr_id: bytes, content: bytes) -> bytes:
    """`box` is that of the command's secret. The content has at most CONTENT_BYTES_MAX bytes."""
    return box.box_padded(nonce_of(corr_id), content, _PADDED_BYTES)


def open_command(box: SecretBox, corr_id: bytes, body: bytes) -> bytes:
    """Raises MalformedMessageError."""
    return box.open_padded(nonce_of(corr_id), body)


def seal_answer(box: SecretBox, corr_id: bytes, content: bytes) -> bytes:
    """As `seal_command`."""
    return box.box_padded(reversed_nonce(nonce_of(corr_id)), content, _PADDED_BYTES)


def open_answer(box: SecretBox, corr_id: bytes, body: bytes) -> bytes:
    """Raises MalformedMessageError."""
    return box.open_padded(reversed_nonce(nonce_of(corr_id)), body)
