"""Index rows of a run as a NumPy structure (docs/formats/log.md, "Run")."""

from typing import Final

import numpy as np
import numpy.typing as npt

# The stream as raw bytes: NumPy's text kind would lose zeros at its end.
ROW: Final = np.dtype(
    [
        ("stream", "V24"),
        ("class_seq", ">u8"),
        ("position", "<u8"),
        ("time_ms", "<u8"),
        ("offset", "<u8"),
        ("kind_length", "<u4"),
        ("crc", "<u4"),
    ]
)

_CLASS_BITS: Final = np.uint64(56)
_SEQUENCE_MASK: Final = np.uint64((1 << 56) - 1)
_LENGTH_MASK: Final = np.uint32(0xFF_FFFF)

Rows = npt.NDArray[np.void]


def streams(rows: Rows) -> npt.NDArray[np.uint8]:
    """Of shape (count, 24)."""
    return rows.view(np.uint8).reshape(-1, ROW.itemsize)[:, :24]


def sequences(rows: Rows) -> npt.NDArray[np.uint64]:
    return rows["class_seq"].astype(np.uint64) & _SEQUENCE_MASK


def are_snapshots(rows: Rows) -> npt.NDArray[np.bool_]:
    is_snapshot: npt.NDArray[np.bool_] = (rows["class_seq"].astype(np.uint64) >> _CLASS_BITS) == 1
    return is_snapshot


def lengths(rows: Rows) -> npt.NDArray[np.int64]:
    """Of the payloads."""
    return (rows["kind_length"] & _LENGTH_MASK).astype(np.int64)
