"""Where jobs write to. A place that takes nothing is told before any work is done.

What is asked is not who may write there but whether something can be made there: of a file system
that takes nothing from anybody, modes say nothing.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from syncline.errors import ConfigError, PipelineError


def check_file_place(path: Path, what: str) -> None:
    """Raises ConfigError if no file can be written there, or replaced. `what` is what it is for."""
    folder = path.absolute().parent
    with _refusing(path, what):
        # A file is made beside it and takes its name: of anything but a file nothing would be left.
        if (path.exists() and not path.is_file()) or not folder.is_dir():
            raise ConfigError(
                f"{path} is no place for {what}; name a file in a folder that is there"
            )
        _try(folder)


def check_folder_place(path: Path, what: str) -> None:
    """Raises ConfigError if nothing can be written to a folder, or if it cannot be made."""
    with _refusing(path, what):
        place = path.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise ConfigError(f"{path} is no place for {what}; {place} is no folder")
        _try(place)


def check_tables_place(path: Path) -> None:
    """Raises ConfigError if no tables can be written to a folder."""
    check_tables_path(path)
    check_folder_place(path, "tables")


def check_tables_path(path: Path) -> None:
    """Raises ConfigError for a path that `deltalake` takes for another one.

    It decodes what looks like part of an address, in an address as well.
    """
    text = str(path)
    if "\\" in text or unquote(text) != text:
        raise ConfigError(
            f"{path} is no place for tables: % with two digits, or a backslash, would be taken for "
            "another path; choose a folder without them"
        )


@contextmanager
def writing_to(place: Path) -> Generator[None]:
    """What the file system refuses while the block writes to `place` is a PipelineError."""
    try:
        yield
    except OSError as error:
        raise PipelineError(
            f"{place} cannot be written: {_reason(error)}; give it room, or name another place"
        ) from error


@contextmanager
def _refusing(path: Path, what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({_reason(error)}); name another place for {what}"
        ) from error


def _try(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
