"""Transmissions, and how blocks carry them (docs/formats/smp.md).

    content      = u8 count, from 1; count times: large transmission
    transmission = short authorization               0, 64, 80 or 114 bytes
                 , maybe short(64) service signature from 16, unless the authorization is empty
                 , short session id                  in 6 alone
                 , short correlation id
                 , short entity id
                 , tail command or message
    signed       = short session id and everything from the correlation id on

A content that is no content is one Damaged without ids and nothing of it is done; a damaged
transmission leaves its neighbours alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgspec

from syncline.errors import LimitExceededError
from syncline.wire.smp import failures, versions
from syncline.wire.smp.failures import Failure
from syncline.wire.smp.primitives import large, maybe, short

BLOCK_BYTES: Final = 16_384
# The length before the padding takes 2, the tag of an encrypted block 16. Blocks that are not
# encrypted are filled no further.
CONTENT_BYTES_MAX: Final = BLOCK_BYTES - 2 - 16
TRANSMISSION_COUNT_MAX: Final = 255
# All transmissions of a content, each with its length.
TRANSMISSIONS_BYTES_MAX: Final = CONTENT_BYTES_MAX - 1
TRANSMISSION_BYTES_MAX: Final = TRANSMISSIONS_BYTES_MAX - 2

SIGNATURE_BYTES: Final = 64
AUTHENTICATOR_BYTES: Final = 80
ED448_SIGNATURE_BYTES: Final = 114

# In every version; authenticators come with the keys of a session.
_AUTHORIZATION_BYTES: Final = frozenset({0, SIGNATURE_BYTES, ED448_SIGNATURE_BYTES})

_NOTHING, _SOMETHING = b"01"

# A count and a length.
_pack_one: Final = Struct(">BH").pack
_LENGTHS: Final = tuple(bytes((length,)) for length in range(256))


class Transmission(msgspec.Struct, frozen=True, gc=False):
    """`signed` is what authorization and service signature are made over.

    A struct: one is made for each command (bench: queues).
    """

    authorization: bytes
    service_signature: bytes | None
    corr_id: bytes
    entity_id: bytes
    body: bytes
    signed: bytes

    def __repr__(self) -> str:
        return f"Transmission(corr_id={self.corr_id!r}, entity_id={self.entity_id!r})"


@dataclass(frozen=True, slots=True)
class Damaged:
    """Answered with `failure` and an empty entity id."""

    corr_id: bytes
    failure: Failure


# ----------------------------------------------------------------------------------------- reading


def decode_block(version: int, session_id: bytes, content: bytes) -> list[Transmission | Damaged]:
    """What a block holds, in its order. Never empty."""
    prefix = _LENGTHS[len(session_id)] + session_id
    if content[:1] == b"\x01" and int.from_bytes(content[1:3], "big") == len(content) - 3:
        # Nearly always: one, and all of it is there (bench: queues).
        return [_decode(version, prefix, content[3:])]
    pieces = _split(content)
    if pieces is None:
        return [Damaged(b"", failures.BLOCK)]
    return [_decode(version, prefix, piece) for piece in pieces]


def _split(content: bytes) -> list[bytes] | None:
    """None unless lengths and count agree with what is there, to the byte."""
    size = len(content)
    if not size or not content[0]:
        return None
    pieces: list[bytes] = []
    at = 1
    for _ in range(content[0]):
        start = at + 2
        at = start + int.from_bytes(content[at:start], "big")
        pieces.append(content[start:at])
    # Once past the end, it stays there: no length is below zero.
    return pieces if at == size else None


def _decode(version: int, session: bytes, data: bytes) -> Transmission | Damaged:
    """`session` is the session id with its length."""
    try:
        at = data[0] + 1
        authorization = data[1:at]
        service_signature: bytes | None = None
        if authorization and version >= versions.SERVICES:
            slot = data[at]
            at += 1
            if slot == _SOMETHING:
                service_signature = data[at + 1 : at + 1 + SIGNATURE_BYTES]
                if data[at] != SIGNATURE_BYTES:
                    return Damaged(b"", failures.BLOCK)
                at += 1 + SIGNATURE_BYTES
            elif slot != _NOTHING:
                return Damaged(b"", failures.BLOCK)
        is_session_right = True
        if version < versions.SESSION_KEYS:
            end = at + 1 + data[at]
            is_session_right = data[at:end] == session
            at = end
        signed_from = at
        end = at + 1 + data[at]
        corr_id = data[at + 1 : end]
        at = end
        end = at + 1 + data[at]
        entity_id = data[at + 1 : end]
    except IndexError:
        return Damaged(b"", failures.BLOCK)
    if end > len(data):
        return Damaged(b"", failures.BLOCK)
    if not is_session_right:
        return Damaged(corr_id, failures.SESSION)
    if len(authorization) not in _AUTHORIZATION_BYTES and not (
        len(authorization) == AUTHENTICATOR_BYTES and version >= versions.SESSION_KEYS
    ):
        return Damaged(corr_id, failures.BLOCK)
    return Transmission(
        authorization,
        service_signature,
        corr_id,
        entity_id,
        data[end:],
        session + data[signed_from:],
    )


# ----------------------------------------------------------------------------------------- writing


def signed_bytes(session_id: bytes, corr_id: bytes, entity_id: bytes, body: bytes) -> bytes:
    return short(session_id) + short(corr_id) + short(entity_id) + body


def encode_transmission(
    version: int,
    session_id: bytes,
    authorization: bytes,
    service_signature: bytes | None,
    corr_id: bytes,
    entity_id: bytes,
    body: bytes,
) -> bytes:
    slot = b""
    if authorization and version >= versions.SERVICES:
        slot = maybe(service_signature, short)
    elif service_signature:
        raise ValueError("a service signature stands only beside an authorization, from version 16")
    session = short(session_id) if version < versions.SESSION_KEYS else b""
    return short(authorization) + slot + session + short(corr_id) + short(entity_id) + body


def answer_head(version: int, session_id: bytes) -> bytes:
    """What all that a router says in a session begins with: it is not authorized."""
    return b"\0" + (short(session_id) if version < versions.SESSION_KEYS else b"")


def encode_answer(head: bytes, corr_id: bytes, entity_id: bytes, body: bytes) -> bytes:
    """As `encode_transmission`, for what a router says (bench: queues)."""
    lengths = _LENGTHS
    return b"".join(
        (head, lengths[len(corr_id)], corr_id, lengths[len(entity_id)], entity_id, body)
    )


def pack_one(transmission: bytes) -> bytes:
    """The content of a block with nothing else in it; it must fit."""
    return _pack_one(1, len(transmission)) + transmission


def pack(transmissions: Iterable[bytes]) -> list[bytes]:
    """Contents of blocks, in order. Raises LimitExceededError for what fits into no block."""
    contents: list[bytes] = []
    pieces: list[bytes] = []
    left = TRANSMISSIONS_BYTES_MAX
    for transmission in transmissions:
        piece_bytes = len(transmission) + 2
        if piece_bytes > TRANSMISSIONS_BYTES_MAX:
            raise LimitExceededError(
                "a transmission's bytes", len(transmission), TRANSMISSION_BYTES_MAX
            )
        if piece_bytes > left or len(pieces) == TRANSMISSION_COUNT_MAX:
            contents.append(bytes((len(pieces),)) + b"".join(pieces))
            pieces = []
            left = TRANSMISSIONS_BYTES_MAX
        pieces.append(large(transmission))
        left -= piece_bytes
    if pieces:
        contents.append(bytes((len(pieces),)) + b"".join(pieces))
    return contents
