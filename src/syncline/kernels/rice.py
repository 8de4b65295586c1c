"""Numbers of about the same size in few bits: Rice codes of whole arrays.

    parameter  1 byte, p: 0 to 63
    quotients  for each number its quotient by 2^p: so many zero bits and a one; then zeros
    remainders p bits of each, the highest first; then zeros up to a whole byte

Gaps between sorted random numbers take 1.5 bits more than the logarithm of their mean. One number
that is far larger than the rest costs little: the parameter follows the mean, so all quotients
together are not many more than the numbers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_PARAMETER_MAX: Final = 63
# Numbers in one piece; a multiple of eight, so that pieces of remainders end with a byte.
_PIECE: Final = 16_384
_WINDOW_BYTES: Final = 65_536


class RiceError(ValueError):
    """Bytes that are no Rice code of so many numbers below 2^64."""


def pack(numbers: Words) -> bytes:
    if not len(numbers):
        return b""
    parameter = _best_parameter(numbers)
    quotients = (numbers >> np.uint64(parameter)).astype(np.int64)
    ends = np.cumsum(quotients + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1, np.uint8)
    bits[ends] = 1
    parts = [bytes([parameter]), np.packbits(bits).tobytes()]
    if parameter:
        parts += (
            _pack_low_bits(numbers[start : start + _PIECE], parameter)
            for start in range(0, len(numbers), _PIECE)
        )
    return b"".join(parts)


def unpack(data: memoryview, count: int) -> tuple[Words, int]:
    """So many numbers from the front of the data, and how many bytes they took."""
    if not count:
        return np.zeros(0, np.uint64), 0
    if not len(data) or data[0] > _PARAMETER_MAX:
        raise RiceError("no parameter below 64")
    parameter = data[0]
    ends = _ones(data[1:], count)
    quotients = np.diff(ends, prepend=-1) - 1
    quotient_bytes = (int(ends[-1]) + 8) // 8
    if int(quotients.max()) > ((1 << 64) - 1) >> parameter:
        raise RiceError("a number of more than 64 bits")
    used = 1 + quotient_bytes
    _check_padding(data[used - 1], int(ends[-1]) + 1)
    numbers = quotients.astype(np.uint64) << np.uint64(parameter)
    if not parameter:
        return numbers, used
    low_bytes = (count * parameter + 7) // 8
    low = data[used : used + low_bytes]
    if len(low) < low_bytes:
        raise RiceError("remainders are cut off")
    _check_padding(low[-1], count * parameter)
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        piece = low[start * parameter // 8 : ((start + size) * parameter + 7) // 8]
        numbers[start : start + size] |= _unpack_low_bits(piece, size, parameter)
    return numbers, used + low_bytes


def _best_parameter(numbers: Words) -> int:
    """The cheapest, near the logarithm of the mean."""
    mean = float(numbers.astype(np.float64).mean())
    near = int(max(mean, 1.0)).bit_length() - 1
    tried = range(max(0, near - 2), min(_PARAMETER_MAX, near + 1) + 1)
    return min(tried, key=lambda bits: len(numbers) * bits + _quotient_sum(numbers, bits))


def _quotient_sum(numbers: Words, bits: int) -> float:
    return float((numbers >> np.uint64(bits)).astype(np.float64).sum())


def _ones(data: memoryview, count: int) -> npt.NDArray[np.int64]:
    """Where the first so many one bits are."""
    found: list[npt.NDArray[np.int64]] = []
    missing = count
    for start in range(0, len(data), _WINDOW_BYTES):
        window = np.frombuffer(data[start : start + _WINDOW_BYTES], np.uint8)
        ones = np.flatnonzero(np.unpackbits(window))[:missing]
        found.append(ones + start * 8)
        missing -= len(ones)
        if not missing:
            return np.concatenate(found)
    raise RiceError(f"{missing} numbers are missing")


def _check_padding(last: int, bit_count: int) -> None:
    if last & (1 << -bit_count % 8) - 1:
        raise RiceError("the last byte is not filled up with zeros")


def _pack_low_bits(numbers: Words, bits: int) -> bytes:
    every = np.unpackbits(numbers.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return np.packbits(every[:, 64 - bits :]).tobytes()


def _unpack_low_bits(data: memoryview, count: int, bits: int) -> Words:
    every = np.zeros((count, 64), np.uint8)
    packed = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits)
    every[:, 64 - bits :] = packed.reshape(count, bits)
    return np.packbits(every, axis=1).view(">u8").reshape(-1).astype(np.uint64)
