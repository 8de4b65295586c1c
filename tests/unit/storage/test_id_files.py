"""Files of ids: what is told of them, and what happens to them when they are written."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from syncline.core.reconciliation.sets import Snapshot
from syncline.errors import DeviceError, LimitExceededError
from syncline.storage.drift import id_files
from syncline.storage.drift.id_files import (
    Duplicate,
    IdForm,
    Malformed,
    form_of,
    read_id_file,
    write_id_file,
)
from syncline.storage.files import DiskFiles, File
from tests.reconciliation import random_ids

FILES = DiskFiles()
IDS = sorted(random_ids(Random(1), 40))
TEXTS = [urlsafe_b64encode(each).decode() for each in IDS]


def written(folder: Path, text: str, name: str = "some.ids") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def test_ids_are_found_among_comments_and_blanks(tmp_path: Path) -> None:
    text = f"# mine\n\n{TEXTS[1]}\r\n  {IDS[0].hex()}  # the first\n{TEXTS[2]}"
    found = read_id_file(written(tmp_path, text), FILES)
    assert found.ids.rows.tobytes() == b"".join(IDS[:3])
    assert (found.comment_count, found.malformed, found.duplicates) == (1, (), ())
    assert found.form is IdForm.BASE64


def test_what_is_no_id_is_told_with_its_line(tmp_path: Path) -> None:
    long = "A" * (id_files.LINE_BYTES_MAX + 1)
    text = f"{TEXTS[0]}\nhello\n{TEXTS[1][:-1]}\n{TEXTS[1][:-1]}+\n{long}\n\x1b[31m\n"
    found = read_id_file(written(tmp_path, text), FILES)
    assert found.ids.rows.tobytes() == IDS[0]
    told = "is no id, which has 32 characters in base64url or 48 in hex"
    assert found.malformed == (
        Malformed(2, f"hello {told}"),
        Malformed(3, f"{TEXTS[1][:-1]} {told}"),
        Malformed(4, f"{TEXTS[1][:-1]}+ {told}"),
        Malformed(5, "it is longer than 4096 bytes"),
        Malformed(6, rf"\x1b[31m {told}"),
    )


def test_what_is_there_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    # However each is spelt: those that take a closer look are read after the others.
    text = f" {TEXTS[0]}\n{TEXTS[0]}\n{IDS[0].hex()}\n{TEXTS[1]}\n"
    found = read_id_file(written(tmp_path, text), FILES)
    assert found.duplicate_count == 2
    assert found.duplicates == (Duplicate(2, 1, IDS[0]), Duplicate(3, 1, IDS[0]))
    assert found.ids.size() == 2


def test_of_many_mistakes_some_are_told_and_all_are_counted(tmp_path: Path) -> None:
    text = "no id\n" * 1_000 + f"{TEXTS[0]}\n" * 1_000
    found = read_id_file(written(tmp_path, text), FILES)
    assert (found.malformed_count, found.duplicate_count) == (1_000, 999)
    assert [each.line for each in found.malformed] == list(range(1, 11))
    assert [each.line for each in found.duplicates] == list(range(1_002, 1_012))


def test_a_line_may_be_as_long_as_the_limit_wherever_it_is_cut(tmp_path: Path) -> None:
    spaces = " " * (id_files.LINE_BYTES_MAX - len(TEXTS[0]))
    path = written(tmp_path, f"{TEXTS[0]}{spaces}\r\n{TEXTS[1]}{spaces} \r\n")
    for piece_bytes in (id_files.LINE_BYTES_MAX + 1, id_files.LINE_BYTES_MAX, 1_000):
        with mock.patch.object(id_files, "_PIECE_BYTES", piece_bytes):
            found = read_id_file(path, FILES)
        assert found.ids.rows.tobytes() == IDS[0]
        assert [each.line for each in found.malformed] == [2]


def test_more_ids_than_are_read_at_once_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(TEXTS))
    with mock.patch.object(id_files, "ID_COUNT_MAX", 39), pytest.raises(LimitExceededError):
        read_id_file(path, FILES)
    with mock.patch.object(id_files, "ID_COUNT_MAX", 40):
        assert read_id_file(path, FILES).ids.size() == 40


def test_reading_and_writing_tell_how_far_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(TEXTS))
    counted: list[int] = []
    found = read_id_file(path, FILES, counted.append)
    assert sum(counted) == Path(path).stat().st_size
    counted.clear()
    write_id_file(path, found.ids, IdForm.HEX, FILES, secrets.token_bytes, counted.append)
    assert sum(counted) == Path(path).stat().st_size == 40 * 49


def test_a_name_says_how_a_file_is_written() -> None:
    assert form_of("x/ids.Bin", IdForm.HEX) is IdForm.BINARY
    assert form_of("x/ids.txt", IdForm.HEX) is IdForm.HEX
    assert form_of("x/ids.txt", IdForm.BINARY) is IdForm.BASE64


class _FailingFile:
    def __init__(self, file: File) -> None:
        self.file = file

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self.file.write(offset, [b"half of"])
        raise DeviceError("it", "writing", "broken")

    def close(self) -> None:
        self.file.close()


class _FailingFiles(DiskFiles):
    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return _FailingFile(super().open(path, create=create, writable=writable))  # type: ignore[return-value]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path, TEXTS[0])
    with pytest.raises(DeviceError):
        write_id_file(path, Snapshot(IDS[1]), IdForm.BASE64, _FailingFiles(), secrets.token_bytes)
    assert Path(path).read_text() == TEXTS[0]
    assert [each.name for each in tmp_path.iterdir()] == ["some.ids"]
