"""docs/formats/documents.md: the bytes on the page are the bytes on the disk."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syncline.errors import CorruptionError
from syncline.storage.documents import (
    DocumentSnapshot,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    stream_of,
)
from syncline.storage.life import Life, decode_lives, encode_lives

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "documents.md"
NEW = DocumentSnapshot(1, "d", "json", bytes(range(1, 9)), [], b"{}")


def bytes_on_the_page() -> list[bytes]:
    blocks = re.findall(r"```\n([0-9a-f \n]+)```", PAGE.read_text(encoding="utf-8"))
    return [bytes.fromhex(block) for block in blocks]


def test_the_page_tells_the_truth() -> None:
    entry, snapshot, life, stream = bytes_on_the_page()
    assert decode_entry(entry) == ("a", 1, b'{"x":1}')
    assert encode_entry("a", 1, b'{"x":1}') == entry
    assert decode_snapshot(snapshot) == NEW
    assert encode_snapshot(NEW) == snapshot
    assert stream_of("d") == stream
    lives = (Life(bytes(range(16)), 65_536, b"\xaa" * 16),)
    assert decode_lives(life, "LIFE") == lives
    assert encode_lives(lives) == life


@given(st.text(max_size=60), st.integers(0, 2**64 - 1), st.binary())
def test_entries_come_back(author: str, clock: int, body: bytes) -> None:
    assert decode_entry(encode_entry(author, clock, body)) == (author, clock, body)


@given(st.binary(max_size=40))
@example(b"\x96\x00\xa1\x80").via("text that is no UTF-8")
def test_hostile_bytes_are_damage_and_nothing_else(payload: bytes) -> None:
    for decode in (decode_entry, decode_snapshot):
        # Anything else that is raised fails the test.
        with suppress(CorruptionError):
            decode(payload)


@pytest.mark.parametrize("cut", range(1, 11))
def test_an_entry_that_is_cut_is_damage(cut: int) -> None:
    with pytest.raises(CorruptionError):
        decode_entry(encode_entry("a", 1, b"")[:-cut])


def test_a_snapshot_of_another_version_is_refused() -> None:
    later = DocumentSnapshot(2, "d", "json", b"", [], b"")
    with pytest.raises(CorruptionError, match="no known version"):
        decode_snapshot(encode_snapshot(later))
