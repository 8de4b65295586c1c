"""The digest of a set of ids: what two peers compare to see whether their sets differ.

Each part is kept by adding and removing alone, so none depends on order. XOR cannot tell an id
that was added twice from one that was never added; the sum can. `version` counts changes.
Hashes of different kinds are never compared with one another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import md5

from xxhash import xxh3_128_intdigest

HASH_BYTES = 16

_SUM_MASK = (1 << 8 * HASH_BYTES) - 1


@dataclass(frozen=True, slots=True)
class SetDigest:
    count: int
    xor_md5: bytes
    xor_xxh3: bytes
    # Of the XXH3 hashes, modulo 2 ** 128, big-endian.
    sum128: bytes
    version: int = 0


EMPTY_DIGEST = SetDigest(0, bytes(HASH_BYTES), bytes(HASH_BYTES), bytes(HASH_BYTES))


def digest_of(ids: Iterable[bytes], version: int = 0) -> SetDigest:
    """Of ids that are all different."""
    count = xor_md5 = xor_xxh3 = total = 0
    for each in ids:
        hashed = xxh3_128_intdigest(each)
        xor_md5 ^= int.from_bytes(md5(each, usedforsecurity=False).digest(), "big")
        xor_xxh3 ^= hashed
        total += hashed
        count += 1
    return digest_from_numbers(count, xor_md5, xor_xxh3, total, version)


def digest_from_numbers(
    count: int, xor_md5: int, xor_xxh3: int, total: int, version: int
) -> SetDigest:
    """Big-endian bytes of each number; the sum may be of any size and sign."""
    return SetDigest(
        count,
        xor_md5.to_bytes(HASH_BYTES, "big"),
        xor_xxh3.to_bytes(HASH_BYTES, "big"),
        (total & _SUM_MASK).to_bytes(HASH_BYTES, "big"),
        version,
    )
