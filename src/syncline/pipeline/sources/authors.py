"""Who wrote the updates of documents, as numbers: `detail` of their rows.

An update stands in the log as its entry (docs/formats/documents.md): a byte for the version, the
author with its length before it, a clock, the body. The number of an author is the one that events
have (`values.events`), so that readers and authors can be compared without reading a body.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from syncline.kernels.log_records import Flags, Integers, RecordColumns, gathered
from syncline.storage.documents import ENTRY_VERSION
from syncline.values.events import author_number

if TYPE_CHECKING:
    Column = pa.Array[Any]

_MESSAGE: Final = 1
_IS_DOCUMENT: Final = 0x80
_HEAD: Final = np.dtype([("version", "u1"), ("size", "u1")])
_CLOCK_BYTES: Final = 8


def details(found: RecordColumns) -> "Column":
    """Of an event its own, of an update the number of its author; null of all others."""
    numbers, has_number = found.details, found.is_event
    updates = np.flatnonzero((found.kinds == _MESSAGE) & ((found.flags & _IS_DOCUMENT) != 0))
    if len(updates):
        numbers, has_number = numbers.copy(), has_number.copy()
        numbers[updates], has_number[updates] = author_numbers(
            found.data, found.body_starts[updates], found.body_lengths[updates]
        )
    return pa.array(numbers, mask=~has_number)


def author_numbers(data: bytes, starts: Integers, lengths: Integers) -> tuple[Integers, Flags]:
    """Those of entries, and which of them are entries as they are known here."""
    numbers = np.zeros(len(starts), np.int64)
    has_author: Flags = lengths >= _HEAD.itemsize + _CLOCK_BYTES
    sizes = np.zeros(len(starts), np.int64)
    heads = gathered(data, starts[has_author], _HEAD)
    sizes[has_author] = heads["size"]
    has_author[has_author] = heads["version"] == ENTRY_VERSION
    has_author &= lengths >= _HEAD.itemsize + sizes + _CLOCK_BYTES
    for size in np.unique(sizes[has_author]).tolist():
        places = np.flatnonzero(has_author & (sizes == size))
        numbers[places], has_author[places] = _of_one_size(data, starts[places], size)
    return numbers, has_author


def _of_one_size(data: bytes, starts: Integers, size: int) -> tuple[Integers, Flags]:
    """Authors repeat: each is looked at once."""
    if size == 0:
        return np.full(len(starts), author_number(b"")), np.ones(len(starts), np.bool_)
    names = gathered(data, starts + _HEAD.itemsize, np.dtype(f"V{size}"))
    buffer = pa.py_buffer(names.view(np.uint8).data)
    column: Any = pa.Array.from_buffers(pa.binary(size), len(names), [None, buffer])
    encoded = column.dictionary_encode()
    authors: list[bytes] = encoded.dictionary.to_pylist()
    which: Integers = encoded.indices.to_numpy()
    numbers = np.array([author_number(author) for author in authors], np.int64)
    return numbers[which], np.array([_is_text(author) for author in authors])[which]


def _is_text(author: bytes) -> bool:
    try:
        author.decode()
    except UnicodeDecodeError:
        return False
    return True
