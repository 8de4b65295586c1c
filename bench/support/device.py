"""A private block device with its own counters: an ext4 image, mounted through a loop device.

The counters of the machine's disk count the neighbours too, and `/proc/<pid>/io` counts a whole
large folio for one small write. The image's own `/sys/block/loopN/stat` counts exactly what reached
it. Needs root and loop devices; without them there is a reason in place of a device.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SECTOR_BYTES = 512
_WRITTEN_SECTORS = 6
_FLUSHES = 15


@dataclass(frozen=True, slots=True)
class Counters:
    flush_count: int
    written_bytes: int

    def since(self, earlier: "Counters") -> "Counters":
        return Counters(
            self.flush_count - earlier.flush_count, self.written_bytes - earlier.written_bytes
        )


def read_counters(device: str) -> Counters:
    """`device` is a name below /sys/block."""
    fields = Path(f"/sys/block/{device}/stat").read_text().split()
    return Counters(int(fields[_FLUSHES]), int(fields[_WRITTEN_SECTORS]) * _SECTOR_BYTES)


def sync_file_system(folder: Path) -> None:
    """Have everything written that is dirty there, and nothing of the neighbours."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)


def forget_cached(folder: Path) -> None:
    """The next read of every file below `folder` comes from the device."""
    sync_file_system(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class PrivateDevice:
    name: str  # below /sys/block
    folder: Path


def why_no_device() -> str | None:
    if os.geteuid() != 0:
        return "mounting an image needs root"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    missing = [tool for tool in ("mkfs.ext4", "losetup", "mount", "umount") if not _which(tool)]
    if missing:
        return f"{', '.join(missing)} not found"
    return None


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(*command: str) -> str:
    tool = _which(command[0]) or command[0]
    done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def private_device(size_bytes: int, parent: Path) -> Iterator[PrivateDevice]:
    """Raises OSError where mounting is refused. Unmounts and removes the image at the end."""
    with tempfile.TemporaryDirectory(prefix="syncline-device-", dir=parent) as text:
        image, folder = Path(text) / "image", Path(text) / "mounted"
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(size_bytes)
        # Without lazy initialisation nothing but the store writes to the device later.
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        loop = _run("losetup", "--find", "--show", str(image))
        try:
            _run("mount", "-o", "noatime", loop, str(folder))
            try:
                yield PrivateDevice(Path(loop).name, folder)
            finally:
                _run("umount", str(folder))
        finally:
            _run("losetup", "--detach", loop)
