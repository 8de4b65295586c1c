"""Block encryption: a key for each block, made from the one before it.

    init    HKDF-SHA512(salt = session id, ikm = secret, info = "SimpleXSbChainInit"), 64 bytes:
            router to client (32) | client to router (32)
    step    HKDF-SHA512(salt = none, ikm = chain key, info = "SimpleXSbChain"), 88 bytes:
            next chain key (32) | box key (32) | nonce (24)
    block   box(box key, nonce, padded(content, 16368)), 16384 bytes

A key is used for one block and forgotten, so a stolen one opens nothing that was sent before. There
is no way back into step: after a block that does not open, the connection has to end.
"""

import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha512
from importlib import import_module
from typing import Final, Protocol

from syncline.errors import MalformedMessageError
from syncline.wire.smp.boxes import SECRET_BYTES, TAG_BYTES, padded, unpadded
from syncline.wire.smp.hsalsa20 import hsalsa20
from syncline.wire.smp.sodium import open_sealed, seal

BLOCK_BYTES: Final = 16_384
_PADDED_BYTES: Final = BLOCK_BYTES - TAG_BYTES

_INIT_INFO: Final = b"SimpleXSbChainInit"
_STEP_INFO: Final = b"SimpleXSbChain"
_HASH_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class ChainKeys:
    router_to_client: bytes = field(repr=False)
    client_to_router: bytes = field(repr=False)


def chain_keys(session_id: bytes, secret: bytes) -> ChainKeys:
    keys = hkdf_sha512(session_id, secret, _INIT_INFO, 2 * SECRET_BYTES)
    return ChainKeys(keys[:SECRET_BYTES], keys[SECRET_BYTES:])


class BlockChain:
    """One direction of one connection. What one side seals, in order, the other opens, in order.

    Each block is a padded box (`boxes`), written out here (bench: queues).
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, content: bytes) -> bytes:
        self._key, key, nonce = chain_step(self._key)
        return seal(hsalsa20(key), nonce, padded(content, _PADDED_BYTES))

    def open(self, block: bytes) -> bytes:
        """Raises MalformedMessageError; nothing that follows will open either."""
        self._key, key, nonce = chain_step(self._key)
        content = open_sealed(hsalsa20(key), nonce, block)
        if content is None:
            raise MalformedMessageError("a block does not open: out of step, or damaged")
        return unpadded(content)


def hkdf_sha512(salt: bytes, secret: bytes, info: bytes, byte_count: int) -> bytes:
    pseudorandom = hmac.digest(salt, secret, "sha512")
    made = last = b""
    for number in range(1, -(-byte_count // _HASH_BYTES) + 1):
        last = hmac.digest(pseudorandom, last + info + bytes((number,)), "sha512")
        made += last
    return made[:byte_count]


# HMAC is hash(outer | hash(inner | message)), outer and inner being the key, with zeros up to 128
# bytes, XORed with 0x5c and 0x36. Written out for the one form that every block needs, with the
# states after what comes again and again, it takes a third of `hmac.digest` (4 µs for 12).
_TO_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_TO_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_INNER_REST: Final = b"\x36" * 64
_OUTER_REST: Final = b"\x5c" * 64
_FIRST: Final = _STEP_INFO + b"\x01"
_SECOND: Final = _STEP_INFO + b"\x02"


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


def _sha512_for_little() -> Callable[[bytes], _Hash]:
    """Python's own: OpenSSL's is quicker for much, but takes longer to begin."""
    for name in ("_sha512", "_sha2"):
        with suppress(ImportError, AttributeError):
            own: Callable[[bytes], _Hash] = import_module(name).sha512
            return own
    return sha512


_sha512: Final = _sha512_for_little()
_inner_of_nothing: Final = _sha512(b"\x36" * 128).copy
_outer_of_nothing: Final = _sha512(b"\x5c" * 128).copy


def chain_step(chain_key: bytes) -> tuple[bytes, bytes, bytes]:
    """The next chain key, and the box key and the nonce of this block."""
    extracting = _inner_of_nothing()
    extracting.update(chain_key)
    extracted = _outer_of_nothing()
    extracted.update(extracting.digest())
    pseudorandom = extracted.digest()
    inner = _sha512(pseudorandom.translate(_TO_INNER) + _INNER_REST)
    outer = _sha512(pseudorandom.translate(_TO_OUTER) + _OUTER_REST)
    first_inner, first_outer = inner.copy(), outer.copy()
    first_inner.update(_FIRST)
    first_outer.update(first_inner.digest())
    first = first_outer.digest()
    inner.update(first + _SECOND)
    outer.update(inner.digest())
    return first[:32], first[32:], outer.digest()[:24]
