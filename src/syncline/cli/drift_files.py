"""`syncline drift` between two files of ids."""

import os
import secrets
from pathlib import Path

from syncline.cli.drift_output import Compared, Repaired, Report
from syncline.cli.output import Output
from syncline.core.reconciliation.initiator import Mode
from syncline.errors import ConfigError, StorageError
from syncline.storage.drift.comparing import Comparison, compare
from syncline.storage.drift.id_files import IdFile, form_of, read_id_file, write_id_file
from syncline.storage.files import DiskFiles
from syncline.values.ids import StreamId


def check(output: Output, first: Path, second: Path, mode: Mode) -> Report:
    mine, theirs = _read(output, first), _read(output, second)
    comparison = _compare(output, mine, theirs, mode)
    advice = None
    if not comparison.is_equal:
        advice = f"`syncline drift repair {first} {second}` makes the second like the first"
    return _report(mine, theirs, mode, Compared("ids", {}, comparison), advice)


def repair(
    output: Output, first: Path, second: Path, mode: Mode, target: Path | None, *, is_dry: bool
) -> Report:
    """Raises ConfigError for a file that holds anything but ids, where that would be lost."""
    mine, theirs = _read(output, first), _read(output, second)
    _check_whole(mine, "its set is not known")
    if target is None:
        _check_whole(theirs, "they would be lost; write elsewhere with --output")
    comparison = _compare(output, mine, theirs, mode)
    written = (target or second).resolve()
    left = comparison if comparison.is_equal else None
    if not is_dry and (target is not None or not comparison.is_equal):
        _write(output, mine, theirs if target is None else mine, written)
        left = _compare(output, mine, _read(output, written), mode)
    done = {"added": comparison.only_first_count, "removed": comparison.only_second_count}
    compared = Compared("ids", {}, comparison, repaired=Repaired(done, is_dry, left))
    advice = f"{written} would be written" if is_dry else f"the set is in {written}"
    return _report(mine, theirs, mode, compared, advice)


def _check_whole(file: IdFile, why: str) -> None:
    if file.malformed_count:
        raise ConfigError(
            f"{file.path} has {file.malformed_count} lines that are no ids ({_places(file)}), and "
            f"{why}; correct them or take them out"
        )


def _places(file: IdFile) -> str:
    lines = ", ".join(str(each.line) for each in file.malformed)
    more = ", …" if file.malformed_count > len(file.malformed) else ""
    return f"line {lines}{more}"


def _read(output: Output, path: Path) -> IdFile:
    try:
        # A pipe has no size, and would pass for an empty file.
        if not path.is_file():
            reason = "it is no file that can be read twice" if path.exists() else "it is not there"
            raise ConfigError(f"{path} cannot be read: {reason}")
        with output.progress(f"reading {path.name}", path.stat().st_size) as bar:
            return read_id_file(str(path), DiskFiles(), bar.advance)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _compare(output: Output, mine: IdFile, theirs: IdFile, mode: Mode) -> Comparison:
    with output.progress("comparing", None) as bar:
        return compare(mine.ids, theirs.ids, secrets.token_bytes, mode, bar.advance)


def _write(output: Output, mine: IdFile, like: IdFile, path: Path) -> None:
    text = str(path)
    try:
        # Whoever may read it now may read it then.
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        with output.progress(f"writing {path.name}", None) as bar:
            form = form_of(text, like.form)
            write_id_file(text, mine.ids, form, DiskFiles(), secrets.token_bytes, bar.advance)
        if mode is not None:
            os.chmod(path, mode)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def _report(
    mine: IdFile, theirs: IdFile, mode: Mode, compared: Compared, advice: str | None
) -> Report:
    flaws = tuple(flaw for file in (mine, theirs) for flaw in _flaws(file))
    notes = tuple(note for file in (mine, theirs) for note in _notes(file))
    if compared.repaired is not None:
        # The second may have some: it is replaced, or was not to be changed.
        notes, flaws = notes + flaws, ()
    details = {"files": [_facts(mine), _facts(theirs)]}
    return Report("files", mine.path, theirs.path, mode, (compared,), notes, flaws, details, advice)


def _flaws(file: IdFile) -> list[str]:
    """What was left out."""
    told = [f"{file.path}, line {each.line}: {each.reason}" for each in file.malformed]
    if file.malformed_count > len(told):
        told.append(f"{file.path}: {file.malformed_count - len(told)} more lines are no ids")
    return told


def _notes(file: IdFile) -> list[str]:
    """What was counted once."""
    told = [
        f"{file.path}, line {each.line}: the same id as in line {each.first_line}"
        for each in file.duplicates
    ]
    if file.duplicate_count > len(told):
        told.append(f"{file.path}: {file.duplicate_count - len(told)} more ids are there already")
    return told


def _facts(file: IdFile) -> dict[str, object]:
    return {
        "path": file.path,
        "form": file.form.value,
        "ids": file.ids.size(),
        "comments": file.comment_count,
        "malformed": file.malformed_count,
        "malformed_lines": [{"line": each.line, "reason": each.reason} for each in file.malformed],
        "duplicates": file.duplicate_count,
        "duplicate_lines": [
            {"line": each.line, "first_line": each.first_line, "id": str(StreamId(each.id))}
            for each in file.duplicates
        ],
    }
