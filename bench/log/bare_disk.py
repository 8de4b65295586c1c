"""The disk alone: as many bytes as our log would write, into a prepared file, and a sync.

No queue, no checksum, nothing to find anything by. What our store takes beyond this is its own;
what this takes, no store that syncs each group of messages can win back.
"""

from collections.abc import Sequence
from pathlib import Path

from bench.support.workload import Message
from syncline.storage.files import DiskFiles, page_memory
from syncline.storage.log.format import BATCH_HEADER_BYTES, RECORD_HEADER_BYTES, align
from syncline.storage.log.preparing import write_zeros

_FILE_BYTES = 64 << 20
_GROUP_BYTES_MAX = 32 << 20


class BareDisk:
    """As much of an embedded store (bench.peers.embedded) as appends need."""

    def __init__(self, folder: Path) -> None:
        files = DiskFiles()
        folder.mkdir(parents=True, exist_ok=True)
        path = str(folder / "bytes")
        write_zeros(files, path, _FILE_BYTES)
        self._file = files.open(path)
        self._memory = memoryview(page_memory(_GROUP_BYTES_MAX))
        self._offset = 0
        self._count = 0

    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        size = align(
            BATCH_HEADER_BYTES + sum(RECORD_HEADER_BYTES + len(body) for _, body in messages)
        )
        if self._offset + size > _FILE_BYTES:
            self._offset = 0
        self._file.write_durably(self._offset, [self._memory[:size]])
        self._offset += size
        self._count += len(messages)

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        raise NotImplementedError("nothing is kept")

    def count(self) -> int:
        return self._count

    def close(self) -> None:
        self._file.close()
