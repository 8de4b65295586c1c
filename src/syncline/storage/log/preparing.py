"""Prepares files ahead of their use: the disk has room for every block, or is met as full here.

Blocks that were written before are written over more quickly than those that are only reserved,
but it takes a while to write them all. A file that could not be made whole is removed: its blocks
may be what the disk lacks.
"""

import posixpath
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from syncline.errors import DeviceError, StorageError
from syncline.storage.files import File, Files, page_memory
from syncline.storage.log.format import SLOT_BYTES, TABLE_HEADER_BYTES, encode_table_header

_WRITE_BYTES: Final = 1 << 20


def write_zeros(
    files: Files,
    path: str,
    size: int,
    head: bytes = b"",
    is_given_up: Callable[[], bool] = lambda: False,
) -> None:
    """A durable file of `size` bytes: `head`, then zeros. Raises DeviceError if it is given up."""
    with _new_file(files, path) as file:
        zeros = memoryview(page_memory(min(size, _WRITE_BYTES)))
        # A table is mapped and used at once, a segment is written over later.
        write = file.write if head else file.write_blocks
        for offset in range(0, size, _WRITE_BYTES):
            if is_given_up():
                raise DeviceError(path, "preparing", "the store was closed")
            write(offset, [zeros[: size - offset]])
        if head:
            file.write(0, [head])


def reserve_zeros(files: Files, path: str, size: int) -> None:
    """The same at once: for whoever cannot wait until zeros are written."""
    with _new_file(files, path) as file:
        file.reserve(size)


@contextmanager
def _new_file(files: Files, path: str) -> Generator[File]:
    """An empty file; it is durable with its name when the block ends, or gone if that failed."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        yield file
        file.sync()
        files.sync_folder(posixpath.dirname(path) or ".")
    except BaseException:
        file.close()
        with suppress(StorageError):
            files.remove(path)
        raise
    file.close()


def write_table(files: Files, path: str, capacity: int, generation: int) -> None:
    """An empty table of `capacity` slots."""
    header = encode_table_header(capacity, 0, 0, 0, generation)
    write_zeros(files, path, TABLE_HEADER_BYTES + capacity * SLOT_BYTES, header)
