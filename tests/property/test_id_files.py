"""Files of ids: whatever is in them, every id is read, and everything else is told."""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncline.core.reconciliation.sets import Snapshot
from syncline.kernels import id_texts
from syncline.storage.drift import id_files
from syncline.storage.drift.id_files import IdFile, IdForm, read_id_file, write_id_file
from syncline.storage.files import DiskFiles

FILES = DiskFiles()
# The same folder for all examples: each writes its own contents.
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# Few, so that some come twice.
ids = st.one_of(
    st.sampled_from([bytes(24), b"\xff" * 24, bytes(23) + b"\1", b"\1" + bytes(23)]),
    st.binary(min_size=24, max_size=24),
)
blanks = st.text(" \t", max_size=3).map(str.encode)
spelt = st.one_of(
    ids.map(urlsafe_b64encode),
    ids.map(lambda each: each.hex().encode()),
    ids.map(lambda each: each.hex().upper().encode()),
)
decorated = st.builds(
    lambda before, text, after, comment: before + text + after + comment,
    blanks,
    st.one_of(spelt, st.just(b"")),
    blanks,
    st.one_of(st.just(b""), st.just(b"# of somebody"), st.just(b"#")),
)
hostile = st.one_of(
    st.binary(max_size=60).map(lambda each: each.replace(b"\n", b"")),
    st.sampled_from(
        [b"A" * 31, b"A" * 33, b"+" * 32, b"=" * 32, b"g" * 48, b"\r", b"\xef\xbb\xbf"]
    ),
    st.text("AZaz09-_+/=# ", min_size=30, max_size=50).map(str.encode),
    st.integers(40, 200).map(lambda size: b"A" * size),
    # As long as a line may be, or nearly.
    st.integers(15, 60).map(lambda size: bytes(24).hex().encode()[:32] + b" " * size),
)
lines = st.lists(
    st.tuples(st.one_of(spelt, decorated, hostile), st.sampled_from([b"\n", b"\r\n"])), max_size=30
)


def expected(data: bytes, line_bytes_max: int) -> tuple[dict[bytes, list[int]], list[int], int]:
    """In plain Python: ids with their lines, the lines that are none, and how many comments."""
    found: dict[bytes, list[int]] = {}
    malformed: list[int] = []
    comment_count = 0
    rows = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rows[-1] == b"":
        rows.pop()
    for number, row in enumerate(rows, 1):
        # The last line has no end, so what stands there is part of it.
        is_ended = number < len(rows) or data.endswith(b"\n")
        text = row[:-1] if is_ended and row.endswith(b"\r") else row
        content, mark, _ = text[: line_bytes_max + 1].partition(b"#")
        content = content.strip()
        if mark and not content:
            comment_count += 1
        elif len(text) > line_bytes_max or (content and parsed(content) is None):
            malformed.append(number)
        elif (id_ := parsed(content)) is not None:
            found.setdefault(id_, []).append(number)
    return found, malformed, comment_count


def parsed(content: bytes) -> bytes | None:
    try:
        if len(content) == 48:
            return bytes.fromhex(content.decode("ascii")) if content.isalnum() else None
        if len(content) == 32 and not set(content) & set(b"+/="):
            id_ = urlsafe_b64decode(content)
            return id_ if urlsafe_b64encode(id_) == content else None
    except ValueError:
        pass
    return None


def check(found: IdFile, data: bytes, line_bytes_max: int) -> None:
    by_id, malformed, comment_count = expected(data, line_bytes_max)
    assert found.ids.rows.tobytes() == b"".join(sorted(by_id))
    assert found.comment_count == comment_count
    assert found.malformed_count == len(malformed)
    told = id_files.TOLD_COUNT_MAX
    assert [each.line for each in found.malformed] == malformed[:told]
    again = sorted((line, rows[0], id_) for id_, rows in by_id.items() for line in rows[1:])
    assert found.duplicate_count == len(again)
    assert [(each.line, each.first_line, each.id) for each in found.duplicates] == again[:told]
    assert all(each.reason.isprintable() for each in found.malformed)


@SHARED_FOLDER
@given(lines, st.booleans(), st.booleans(), st.integers(1, 200), st.integers(50, 90))
def test_a_text_is_read_as_plain_python_would(
    tmp_path: Path,
    given_lines: list[tuple[bytes, bytes]],
    has_mark: bool,
    ends: bool,
    piece_bytes: int,
    line_bytes_max: int,
) -> None:
    """However it is cut into pieces."""
    data = b"\xef\xbb\xbf" * has_mark + b"".join(text + end for text, end in given_lines)
    data = data if ends else data.removesuffix(b"\n")
    path = tmp_path / "given.ids"
    path.write_bytes(data)
    with (
        # A byte order mark is looked for in the first piece.
        mock.patch.object(id_files, "_PIECE_BYTES", max(3, piece_bytes)),
        mock.patch.object(id_files, "LINE_BYTES_MAX", line_bytes_max),
        mock.patch.object(id_files, "TOLD_COUNT_MAX", 2),
    ):
        check(read_id_file(str(path), FILES), data, line_bytes_max)


@SHARED_FOLDER
@given(st.lists(ids, max_size=30), st.binary(max_size=23), st.integers(24, 200))
def test_a_binary_file_is_read_whole(
    tmp_path: Path, given_ids: list[bytes], rest: bytes, piece_bytes: int
) -> None:
    path = tmp_path / "given.BIN"
    path.write_bytes(b"".join(given_ids) + rest)
    with mock.patch.object(id_files, "_PIECE_BYTES", piece_bytes):
        found = read_id_file(str(path), FILES)
    assert found.form is IdForm.BINARY
    assert found.ids.rows.tobytes() == b"".join(sorted(set(given_ids)))
    assert found.duplicate_count == len(given_ids) - len(set(given_ids))
    for each in found.duplicates:
        assert given_ids[each.line - 1] == given_ids[each.first_line - 1] == each.id
        assert given_ids.index(each.id) == each.first_line - 1
    assert [each.line for each in found.malformed] == ([len(given_ids) + 1] if rest else [])


@SHARED_FOLDER
@given(st.lists(ids, max_size=30), st.sampled_from(IdForm))
def test_what_is_written_is_read_again(
    tmp_path: Path, given_ids: list[bytes], form: IdForm
) -> None:
    path = str(tmp_path / ("written.bin" if form is IdForm.BINARY else "written.ids"))
    with mock.patch.object(id_files, "_WRITTEN_ROWS", 7):
        write_id_file(path, Snapshot(b"".join(given_ids)), form, FILES, secrets.token_bytes)
    found = read_id_file(path, FILES)
    assert found.ids.rows.tobytes() == b"".join(sorted(set(given_ids)))
    assert (found.malformed_count, found.duplicate_count, found.comment_count) == (0, 0, 0)
    # Nothing in it says how it was written.
    assert not given_ids or found.form is form
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".new")] == []


@given(st.lists(ids, max_size=20))
def test_texts_are_those_of_the_library(given_ids: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(given_ids), np.uint8).reshape(-1, 24)
    assert [each.tobytes() for each in id_texts.to_base64(rows)] == [
        urlsafe_b64encode(each) for each in given_ids
    ]
    assert [each.tobytes().decode() for each in id_texts.to_hex(rows)] == [
        each.hex() for each in given_ids
    ]


@pytest.mark.parametrize(("read", "size"), [(id_texts.from_base64, 32), (id_texts.from_hex, 48)])
def test_each_character_is_a_digit_or_none(read: object, size: int) -> None:
    assert callable(read)
    texts = np.full((256, size), ord("A"), np.uint8)
    texts[:, size // 2] = np.arange(256)
    _, are_ids = read(texts)
    alphabet = id_texts._ALPHABET if size == 32 else np.frombuffer(b"0123456789abcdefABCDEF", "u1")
    assert np.flatnonzero(are_ids).tolist() == sorted(alphabet.tolist())
