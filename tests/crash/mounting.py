"""Real file systems that a test may break: images on loop devices, and small ones in memory.

Each is unmounted at the end, and with it the loop device goes. Needs root; `why_no_mounting` says
what is missing.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# XFS makes nothing smaller. The images are sparse: they take what is written.
_IMAGE_BYTES: Final = {"ext4": 96 << 20, "xfs": 320 << 20}
_MAKE: Final = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
# The request of ext4 and XFS to stop at once, and the flag that lets nothing more reach the device.
_SHUTDOWN: Final = 0x8004587D
_WITHOUT_FLUSH: Final = 2
_UNMOUNT_TRY_COUNT: Final = 50
_UNMOUNT_PAUSE_SECONDS: Final = 0.1


def why_no_mounting(*tools: str) -> str | None:
    """The reason why nothing can be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "mounting is not allowed here: it needs root"
    missing = [tool for tool in ("mount", "umount", *tools) if _which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    if not capabilities >> _CAP_SYS_ADMIN & 1:
        return "mounting is not allowed here: this root may not"
    return None


def why_no_image(file_system: str) -> str | None:
    if not Path("/dev/loop-control").exists():
        return "mounting is not allowed here: there are no loop devices"
    return why_no_mounting(_MAKE[file_system][0])


_CAP_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True)
class Image:
    """A file system in a file, mounted at `folder`."""

    file_system: str
    path: Path
    folder: Path

    def cut_power(self) -> None:
        """From now on nothing reaches the device: neither cached pages nor the journal."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(descriptor)

    def mount(self) -> None:
        _run("mount", "-o", "loop,noatime", "-t", self.file_system, str(self.path), self._at)

    def restart(self) -> None:
        """Unmount and mount again: what was not on the device is gone."""
        unmount(self.folder)
        self.mount()

    @property
    def _at(self) -> str:
        return str(self.folder)


@contextmanager
def mounted_image(parent: Path, file_system: str) -> Iterator[Image]:
    image = Image(file_system, parent / f"{file_system}.image", parent / file_system)
    with image.path.open("wb") as file:
        file.truncate(_IMAGE_BYTES[file_system])
    _run(*_MAKE[file_system], str(image.path))
    image.folder.mkdir()
    image.mount()
    try:
        yield image
    finally:
        unmount(image.folder)
        image.path.unlink()


@contextmanager
def mounted_memory(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory with so much room and no more."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "syncline-test", str(folder))
    try:
        yield folder
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount what is mounted there, if anything is; a process that is ending may still hold it."""
    for _ in range(_UNMOUNT_TRY_COUNT):
        if not _is_mounted(folder):
            return
        if subprocess.run([_tool("umount"), str(folder)], capture_output=True).returncode == 0:
            return
        time.sleep(_UNMOUNT_PAUSE_SECONDS)
    # Out of the way at least; it goes when its last file is closed.
    _run("umount", "--lazy", str(folder))
    raise OSError(f"{folder} was in use and could not be unmounted")


def _is_mounted(folder: Path) -> bool:
    """As the system knows it: a file system whose power was cut answers no question itself."""
    table = Path("/proc/self/mounts").read_text(encoding="utf-8")
    # Blanks in a path are written as octal numbers there.
    path = str(folder).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split(" ")[1] == path for line in table.splitlines())


def _run(*command: str) -> None:
    done = subprocess.run(
        [_tool(command[0]), *command[1:]], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _tool(name: str) -> str:
    return _which(name) or name


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
