"""CRC32C of each row of an array."""

from collections.abc import Callable
from typing import cast

import google_crc32c
import numpy as np
import numpy.typing as npt

# The library has no types of its own.
_extend = cast(
    Callable[[int, bytes], int],
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]
)


def crc32c_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The CRC32C of each row of an array of shape (count, bytes a row)."""
    if rows.ndim != 2:
        raise ValueError(f"rows have two dimensions, not {rows.ndim}")
    count, size = rows.shape
    data = rows.tobytes()
    # A call for each row: a table lookup for each byte column takes longer, however many there are.
    crcs = [_extend(0, data[at : at + size]) for at in range(0, count * size, size or 1)]
    return np.array(crcs or [0] * count, np.uint32)
