"""The digest of a set computed from its ids, all at once or step by step.

What is kept beside a set, and what two peers compare, is held against this. Whoever asks sees to it
that the ids are of one moment.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from syncline.core.reconciliation.sets import END, IdSet
from syncline.kernels.md5 import xor_md5
from syncline.kernels.ranges import BUCKET_COUNT
from syncline.kernels.xxh3 import xor_and_sum, xxh3_128
from syncline.values.digests import SetDigest, digest_from_numbers

_Result = TypeVar("_Result")

# Up to so many ids a set is one step: reading it in pieces would take longer than the ids.
_IDS_AT_ONCE: Final = 16_384
# Beyond, a step reads so many prefixes of two bytes.
_BUCKETS_AT_ONCE: Final = 256


def digest_of_set(ids: IdSet) -> SetDigest:
    """With the version of the set."""
    return run_out(walk(ids, 0))


def walk(ids: IdSet, expected_count: int) -> Generator[int, None, SetDigest]:
    """The same; each step reads one piece and yields how many ids it had.

    `expected_count` decides how large the pieces are, and nothing else.
    """
    count = xor = total = xor_of_md5 = 0
    buckets_at_once = BUCKET_COUNT if expected_count <= _IDS_AT_ONCE else _BUCKETS_AT_ONCE
    for first in range(0, BUCKET_COUNT, buckets_at_once):
        piece_count = 0
        for rows in ids.iterate(*_piece(first, buckets_at_once)):
            piece_count += len(rows)
            piece_xor, piece_sum = xor_and_sum(*xxh3_128(rows))
            xor, total = xor ^ piece_xor, total + piece_sum
            xor_of_md5 ^= int.from_bytes(xor_md5(rows), "big")
        count += piece_count
        yield piece_count
    return digest_from_numbers(count, xor_of_md5, xor, total, ids.version())


def run_out(steps: Generator[int, None, _Result]) -> _Result:
    """Take all steps; what comes at the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def _piece(first: int, bucket_count: int) -> tuple[bytes, bytes]:
    # From the very beginning: what is too short to be an id is met, and told, there.
    start = first.to_bytes(2, "big") if first else b""
    after = first + bucket_count
    return start, END if after == BUCKET_COUNT else after.to_bytes(2, "big")
