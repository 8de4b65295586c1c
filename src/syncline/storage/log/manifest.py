"""The manifest: which files of a data folder count, and from where the log is replayed.

`CURRENT` names the manifest file in force. A manifest file is lines of text, each the whole state:

    <CRC32C of the JSON, 8 hex digits> <JSON object>

Every state is written twice in a row with an empty line behind each, so that one damaged byte never
hides it, not even that of a line's end. The last line that passes its checksum is the state. A file
is only listed once it is durable, and only removed or recycled once a manifest without it is
durable; so an older line, taken because the last one is torn, describes files that still exist.

Files on disk that the manifest does not list are remains of a crash and are removed. A file that it
lists and that is missing is damage.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Annotated, Any, Final, Self

import msgspec

from syncline.errors import (
    CorruptionError,
    DeviceError,
    NewerFormatError,
    StorageError,
    StoreFullError,
)
from syncline.storage.files import File, Files
from syncline.storage.log.format import FORMAT_VERSION, TABLE_KEY_BYTES, crc32c_extend
from syncline.storage.log.run_rows import RunMeta

_ROTATE_BYTES: Final = 1 << 20
_READ_BYTES_MAX: Final = 64 << 20
# A router begins a new manifest once in many hours: whoever looks meanwhile looks again.
_LOOK_COUNT_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class ManifestState:
    format: int
    segment_bytes: int
    # Grows with every opening; records carry it in their checksum.
    epoch: int
    # The oldest segment whose records may exist nowhere else, and the batch before its first one.
    oldest_segment: int
    previous_number: int
    previous_crc: int
    previous_epoch: int
    # Every slot change by records below this position is durable in the table.
    checkpoint: int
    # Decides where in the table a stream is looked for; secret, so that no peer can make ids meet.
    table_key: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * TABLE_KEY_BYTES}}}$")]
    # Newest first; two while the table grows.
    table_generations: list[int] = field(default_factory=list[int])
    runs: list[RunMeta] = field(default_factory=list[RunMeta])
    # Of the store that wrote it: FORMAT has no checksum, and a wrong id there would hide the log.
    store_tag: int = 0


def _encode(state: ManifestState) -> bytes:
    text = msgspec.json.encode(state)
    line = b"%08x %s\n\n" % (crc32c_extend(0, text), text)
    return line + line


def _decode(data: bytes, path: str) -> ManifestState | None:
    """The last line that passes its checksum."""
    for line in reversed(data.split(b"\n")):
        head, _, text = line.partition(b" ")
        if len(head) != 8 or not text:
            continue
        try:
            is_whole = int(head, 16) == crc32c_extend(0, text)
        except ValueError:
            continue
        if not is_whole:
            continue
        found = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if isinstance(found, int) and found > FORMAT_VERSION:
            raise NewerFormatError(path, found, FORMAT_VERSION)
        try:
            return msgspec.json.decode(text, type=ManifestState)
        except msgspec.ValidationError as error:
            raise CorruptionError(path, 0, f"a manifest line is not understood: {error}") from error
    return None


class Manifest:
    """The manifest of an open store. `change` may run on the thread that runs a job."""

    def __init__(
        self, files: Files, folder: str, file: File, number: int, size: int, state: ManifestState
    ) -> None:
        self._files = files
        self._folder = folder
        self._file = file
        self._number = number
        self._size = size
        self._lock = Lock()
        self.state = state

    @classmethod
    def create(cls, files: Files, folder: str, state: ManifestState) -> Self:
        file, size = _start_file(files, folder, 1, state)
        try:
            _point_current(files, folder, 1)
        except BaseException:
            file.close()
            raise
        return cls(files, folder, file, 1, size, state)

    @classmethod
    def open(cls, files: Files, folder: str) -> Self | None:
        """None if the folder has no CURRENT and no whole manifest: its creation was cut off."""
        numbers = _numbers(files, folder)
        current = _read_current(files, f"{folder}/CURRENT")
        # CURRENT first; if it or what it names is damaged, the newest manifest that is whole.
        # Each lists only files that were durable when it was written.
        for number in sorted(numbers, key=lambda n: (n == current, n), reverse=True):
            path = f"{folder}/MANIFEST.{number}"
            file = files.open(path)
            # What is read here is acted upon: files that it does not list are removed. So it must
            # be what the device has, not what a killed process or a failed sync left in memory.
            file.sync()
            size = file.size()
            file.forget_cached(0, size)
            data = file.read(0, min(size, _READ_BYTES_MAX))
            state = _decode(data, path)
            if state is None:
                file.close()
                continue
            if not data.endswith(b"\n"):
                # A torn line: the next one starts on a line of its own.
                file.write(size, [b"\n"])
                size += 1
            if number != current:
                _point_current(files, folder, number)
            files.sync_folder(folder)
            for other in numbers:
                if other != number:
                    files.remove(f"{folder}/MANIFEST.{other}")
            return cls(files, folder, file, number, size, state)
        if current is None and not files.exists(f"{folder}/CURRENT"):
            return None
        raise CorruptionError(f"{folder}/CURRENT", 0, "it names no manifest that can be read")

    def change(self, **changes: Any) -> ManifestState:
        """Replace fields of the state; the new state is durable when this returns.

        After StoreFullError the state before is in force, after DeviceError either may be.
        """
        with self._lock:
            state = replace(self.state, **changes)
            self._write(state)
            self.state = state
            return state

    def close(self) -> None:
        self._file.close()

    def _write(self, state: ManifestState) -> None:
        if self._size > _ROTATE_BYTES:
            self._rotate(state)
            return
        data = _encode(state)
        try:
            self._file.write(self._size, [data])
        except StoreFullError:
            self._take_back()
            raise
        self._file.sync()
        self._size += len(data)

    def _take_back(self) -> None:
        """What was cut off may hold a whole line, which would count after a restart."""
        try:
            self._file.truncate(self._size)
            self._file.sync()
        except StoreFullError as error:
            raise DeviceError(error.path, "truncating", error.reason) from error

    def _rotate(self, state: ManifestState) -> None:
        """Until CURRENT names the next file, the one before is in force: where there is no room for
        the next, nothing has changed."""
        number = self._number + 1
        file, size = _start_file(self._files, self._folder, number, state)
        try:
            _point_current(self._files, self._folder, number)
        except BaseException as error:
            _give_up_file(self._files, file, error)
            raise
        old_file, self._file = self._file, file
        self._number, self._size = number, size
        old_file.close()
        # If that fails, the next start removes it: CURRENT does not name it any more.
        with suppress(StorageError):
            self._files.remove(old_file.path)


def write_manifest(files: Files, folder: str, state: ManifestState) -> None:
    """A manifest of its own for a folder that no store has open: for backups."""
    Manifest.create(files, folder, state).close()


def read_manifest(files: Files, folder: str) -> ManifestState | None:
    """The state in force, for whoever only looks, at the folder of a running router too.

    None if the folder has no manifest yet. Raises CorruptionError, NewerFormatError.
    """
    for _ in range(_LOOK_COUNT_MAX):
        try:
            state = _look(files, folder)
        except FileNotFoundError:
            continue
        if state is not None or not files.exists(f"{folder}/CURRENT"):
            return state
    raise CorruptionError(f"{folder}/CURRENT", 0, "it names no manifest that can be read")


def _look(files: Files, folder: str) -> ManifestState | None:
    current = _read_current(files, f"{folder}/CURRENT")
    numbers = sorted(_numbers(files, folder), key=lambda n: (n == current, n), reverse=True)
    for number in numbers:
        path = f"{folder}/MANIFEST.{number}"
        file = files.open(path, writable=False)
        try:
            state = _decode(file.read(0, min(file.size(), _READ_BYTES_MAX)), path)
        finally:
            file.close()
        if state is not None:
            return state
    return None


def _start_file(files: Files, folder: str, number: int, state: ManifestState) -> tuple[File, int]:
    file = files.open(f"{folder}/MANIFEST.{number}", create=True)
    data = _encode(state)
    try:
        file.truncate(0)
        file.write(0, [data])
        file.sync()
        files.sync_folder(folder)
    except BaseException as error:
        _give_up_file(files, file, error)
        raise
    return file, len(data)


def _give_up_file(files: Files, file: File, error: BaseException) -> None:
    """It is not in force, and takes room. After any other error nobody knows whether it is."""
    file.close()
    if isinstance(error, StoreFullError):
        with suppress(StorageError):
            files.remove(file.path)


def _point_current(files: Files, folder: str, number: int) -> None:
    temporary = f"{folder}/CURRENT.new"
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(0, [b"MANIFEST.%d\n" % number])
        file.sync()
    finally:
        file.close()
    files.rename(temporary, f"{folder}/CURRENT")
    files.sync_folder(folder)


def _numbers(files: Files, folder: str) -> list[int]:
    found: list[int] = []
    for name in files.list(folder):
        head, _, number = name.partition(".")
        if head == "MANIFEST" and number.isdigit():
            found.append(int(number))
    return sorted(found)


def _read_current(files: Files, path: str) -> int | None:
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        text = file.read(0, 64)
    finally:
        file.close()
    name, _, number = text.strip().partition(b".")
    return int(number) if name == b"MANIFEST" and number.isdigit() else None
