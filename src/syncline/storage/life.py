"""Tells a data folder that was restored from the one that its backup was made of.

A restored folder has the ids and sequences of the old one, and soon other updates under them. Who
remembers a position in the old one must not go on from there, so a restore leaves random bytes in
the file `LIFE`, and whatever is told to peers about a position depends on them.
"""

import posixpath
from hashlib import blake2b

from syncline.storage.files import Files

LIFE_NAME = "LIFE"
LIFE_BYTES = 16


def begin_life(files: Files, folder: str, life: bytes) -> None:
    """Durable on return."""
    file = files.open(posixpath.join(folder, LIFE_NAME), create=True)
    try:
        file.truncate(0)
        file.write(0, [life])
        file.sync()
    finally:
        file.close()
    files.sync_folder(folder)


def read_life(files: Files, folder: str) -> bytes:
    """Empty for a folder that was never restored."""
    path = posixpath.join(folder, LIFE_NAME)
    if not files.exists(path):
        return b""
    file = files.open(path, writable=False)
    try:
        return file.read(0, LIFE_BYTES)
    finally:
        file.close()


def in_life(incarnation: bytes, life: bytes) -> bytes:
    """How an incarnation is known to peers, as long as it is."""
    if not life:
        return incarnation
    return blake2b(incarnation, digest_size=len(incarnation), key=life).digest()
