"""Sealed segments, kept whole until somebody has read them: the history of the log.

    archive/  = <12 digits>.wal … [CONFIRMED]

A segment whose survivors are in a run is of no use to the router. Whoever checks what the router
did wants all of it, so it is moved here instead of being used again. The reader says up to which
segment it has everything (`CONFIRMED`, one number), and those go. Others go, oldest first, when the
archive is full or old or the disk is. Numbers have no gap, so a reader that misses one knows that
it does, and nobody can take a history with a hole for a whole one.

The router alone moves and removes; the reader alone writes `CONFIRMED`, by renaming. A segment that
did not get here before a crash is moved at the next start. A file that goes may be written over
while it is read: a reader makes sure afterwards that it is still there.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from syncline.errors import StoreFullError
from syncline.storage.files import Files
from syncline.storage.log.format import BATCH_HEADER, BATCH_HEADER_BYTES, BATCH_MAGIC

FOLDER = "archive"
CONFIRMED = "CONFIRMED"
_SUFFIX = ".wal"
_CONFIRMED_BYTES_MAX = 64


class Archive:
    """Of an open store."""

    def __init__(
        self, files: Files, folder: str, segment_bytes: int, bytes_max: int, age_ms_max: int
    ) -> None:
        """`folder` is the data folder. 0 for `age_ms_max`: as old as they get."""
        self._files = files
        self.folder = f"{folder}/{FOLDER}"
        self._segment_bytes = segment_bytes
        self._count_max = bytes_max // segment_bytes
        self._age_ms_max = age_ms_max
        files.make_folder(self.folder)
        files.sync_folder(folder)
        self._numbers = sorted(_numbers(files.list(self.folder)))
        # Went before anybody had confirmed them.
        self.dropped_count = 0

    @property
    def count(self) -> int:
        return len(self._numbers)

    @property
    def numbers(self) -> list[int]:
        """Of its segments, oldest first."""
        return list(self._numbers)

    def move(self, paths: Iterable[str]) -> None:
        """Segments that are sealed. On any thread; the owner hears of it by `add`.

        Where there is no room for another name they stay: that they are sealed is listed already,
        and messages come before their history.
        """
        with suppress(StoreFullError):
            for path in paths:
                self._files.rename(path, f"{self.folder}/{path.rpartition('/')[2]}")
        self._files.sync_folder(self.folder)

    def add(self, paths: Sequence[str]) -> list[str]:
        """They were moved; those for which there was no room are given back.

        They need not come behind all others: a power cut may have undone the move of an older one.
        """
        left = [path for path in paths if self._files.exists(path)]
        names = [path.rpartition("/")[2] for path in paths if path not in left]
        self._numbers = sorted({*self._numbers, *_numbers(names)})
        self.dropped_count += len(left)
        return left

    def let_go(self, now_ms: int) -> list[str]:
        """Paths of those that are not needed, or not kept any longer: the caller's from now on."""
        confirmed = read_confirmed(self._files, self.folder)
        freed = [number for number in self._numbers if number <= confirmed]
        kept = self._numbers[len(freed) :]
        surplus = max(0, len(kept) - self._count_max)
        while surplus < len(kept) and self._is_old(kept[surplus], now_ms):
            surplus += 1
        self.dropped_count += surplus
        self._numbers = kept[surplus:]
        return self._present(freed + kept[:surplus])

    def paths(self) -> list[str]:
        """Oldest first."""
        return self._present(self._numbers)

    def give_up_oldest(self) -> str:
        """The disk is full: messages come before their history. There must be one in `paths`."""
        path = self.paths()[0]
        (number,) = _numbers([path.rpartition("/")[2]])
        self._numbers = [each for each in self._numbers if each > number]
        self.dropped_count += number > read_confirmed(self._files, self.folder)
        return path

    def _present(self, numbers: list[int]) -> list[str]:
        """Paths without those that somebody else has removed: history is no reason to fail."""
        return [path for path in map(self._path, numbers) if self._files.exists(path)]

    def _is_old(self, number: int, now_ms: int) -> bool:
        if not self._age_ms_max:
            return False
        try:
            file = self._files.open(self._path(number), writable=False)
        except FileNotFoundError:
            return True
        try:
            head = file.read(0, BATCH_HEADER_BYTES)
        finally:
            file.close()
        if len(head) < BATCH_HEADER_BYTES:
            return True
        magic, _, _, _, time_ms, *_ = BATCH_HEADER.unpack(head)
        is_old: bool = magic != BATCH_MAGIC or time_ms + self._age_ms_max <= now_ms
        return is_old

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}{_SUFFIX}"


def read_confirmed(files: Files, folder: str) -> int:
    """Up to which segment of this archive its reader has everything; 0: nothing."""
    path = f"{folder}/{CONFIRMED}"
    if not files.exists(path):
        return 0
    file = files.open(path, writable=False)
    try:
        text = file.read(0, min(file.size(), _CONFIRMED_BYTES_MAX)).strip()
    finally:
        file.close()
    return int(text) if text.isdigit() else 0


def confirm(files: Files, folder: str, number: int) -> None:
    """Say, as the reader, that everything up to this segment is safe elsewhere."""
    path = f"{folder}/{CONFIRMED}"
    file = files.open(f"{path}.new", create=True)
    try:
        file.truncate(0)
        file.write(0, [f"{number}\n".encode()])
        file.sync()
    finally:
        file.close()
    files.rename(f"{path}.new", path)
    files.sync_folder(folder)


def _numbers(names: list[str]) -> list[int]:
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return [int(stem) for stem in stems if stem.isdigit()]
