"""A PostgreSQL of our own: on a Unix socket, in a folder that goes away with it."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Where Debian keeps what is not for everybody's path.
_FOLDERS = "/usr/lib/postgresql/*/bin"
_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_SECONDS_MAX = 60


def missing() -> str | None:
    """What to install, or None."""
    found = all((_folder() / program).exists() for program in _PROGRAMS)
    return None if found else "PostgreSQL is missing; install the distribution's postgresql"


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yields what a client needs to connect. Nothing is ever synced to the disk."""
    # Not below pytest's folder: that is closed to others, and a socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="syncline-pg-"))
    owner = _owner()
    try:
        if owner is not None:
            os.chown(folder, owner, -1)
        data = str(folder / "data")
        initdb = ("-A", "trust", "-U", "syncline", "-E", "UTF8", "--locale=C", "--no-sync")
        _run(["initdb", "-D", data, *initdb], folder, owner)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
        log = str(folder / "log")
        _run(["pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start"], folder, owner)
        try:
            yield f"host={folder} user=syncline dbname=postgres"
        finally:
            _run(["pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"], folder, owner)
    finally:
        shutil.rmtree(folder)


def _run(command: Sequence[str], folder: Path, owner: int | None) -> None:
    subprocess.run(
        [str(_folder() / command[0]), *command[1:]],
        cwd=folder,
        user=owner,
        # The server keeps what it inherits; nobody should wait for its output to end.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_SECONDS_MAX,
        check=True,
    )


def _folder() -> Path:
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    newest = sorted(Path("/").glob(_FOLDERS.removeprefix("/")), key=lambda path: path.parent.name)
    return newest[-1] if newest else Path("/nonexistent")


def _owner() -> int | None:
    """Root may not run it, so another does; None: whoever we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return known.get("postgres", known["nobody"])
