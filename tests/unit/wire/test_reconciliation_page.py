"""The bytes on docs/formats/reconciliation.md are what both sides really say."""

import re
from typing import get_args

import numpy as np
import pytest

from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import SetView, Snapshot, sketch_hashes
from syncline.kernels.cell_places import CELL_COUNT_MAX, mixed_words, places
from syncline.kernels.xxh3 import salted
from syncline.values.reconciliation import (
    CHANGE_COUNT_MAX,
    HASH_COUNT_MAX,
    PART_COUNT_MAX,
    PLAIN_RANGE_COUNT_MAX,
    Answer,
    Compare,
    Fetched,
    Found,
    Listing,
    Opening,
    Request,
    Restart,
    Sifted,
    TooFew,
)
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.requests import decode_request, encode_request
from syncline.wire.reconciliation.runs import PART_BYTES_MAX, cut
from tests.documents import ROOT, section
from tests.reconciliation import joined

PAGE = (ROOT / "docs" / "formats" / "reconciliation.md").read_text(encoding="utf-8")
BYTES = section(PAGE, "## Bytes")
SALT = b"saltsalt"
IDS = [bytes(range(start, start + 24)) for start in (0, 100, 200)]
RESPONDER = Responder(Snapshot(b"".join(IDS), 9), SALT)
PARTS = [bytes.fromhex(encoded) for encoded in re.findall(r"```hex\n(.*?)\n```", BYTES, re.DOTALL)]
PAIRS = list(zip(PARTS[:16:2], PARTS[1:16:2], strict=True))


def lines(language: str) -> list[str]:
    found = re.search(rf"```{language}\n(.*?)\n```", BYTES, re.DOTALL)
    assert found is not None
    return found.group(1).splitlines()


@pytest.mark.parametrize(("asked", "answered"), PAIRS, ids=lambda part: part[:1].hex())
def test_every_request_has_its_answer(asked: bytes, answered: bytes) -> None:
    request = decode_request(*joined([asked]))
    assert list(encode_request(request)) == [asked]
    assert list(encode_answer(RESPONDER.answer(request))) == [answered]
    assert list(encode_answer(decode_answer(*joined([answered])))) == [answered]


def test_every_message_has_an_example() -> None:
    requests = {type(decode_request(*joined([asked]))) for asked, _ in PAIRS}
    answers = {type(decode_answer(*joined([part]))) for part in PARTS[1:16:2] + PARTS[16:]}
    assert requests == set(get_args(Request))
    assert answers == set(get_args(Answer))


def test_what_the_page_says_of_them() -> None:
    answers = [decode_answer(*joined([part])) for part in PARTS[1:16:2] + PARTS[16:]]
    opening, found, sifted, _, _, fetched, listing, _, too_few, restart = answers
    assert isinstance(opening, Opening)
    assert (opening.state.version, opening.state.count, opening.salt) == (9, 3, SALT)
    assert isinstance(found, Found)
    assert (found.ids, found.hashes) == (IDS[2], b"")
    assert isinstance(sifted, Sifted)
    assert sifted.ids == IDS[2]
    assert isinstance(fetched, Fetched)
    assert fetched.ids == IDS[2]
    assert isinstance(listing, Listing)
    assert listing.ids == IDS[2]
    assert too_few == TooFew(None, 300)
    assert isinstance(restart, Restart)
    assert restart.state.version == 10
    compare = decode_request(*joined([PAIRS[1][0]]))
    assert isinstance(compare, Compare)
    assert compare.cells == SetView(Snapshot(b"".join(IDS[:2]))).cells(SALT, 12).encode()


def test_hashes_and_cells_are_those_of_the_ids() -> None:
    hashes = salted(b"".join(IDS), SALT)
    assert [f"{int(hashed):016x}" for hashed in hashes] == lines("hashes")
    rows = places(40).of_each(mixed_words(sketch_hashes(hashes)))
    found = [" ".join(map(str, np.sort(row[row >= 0]).tolist())) for row in rows]
    assert found == lines("cells")


def test_the_page_has_the_limits() -> None:
    counts = (CELL_COUNT_MAX, PART_COUNT_MAX, PLAIN_RANGE_COUNT_MAX, HASH_COUNT_MAX)
    for limit in (*counts, CHANGE_COUNT_MAX, PART_BYTES_MAX):
        assert f"{limit:,}" in PAGE
    assert len(next(cut(1, bytes(40_000)))) - 3 == 15_991


def test_cells_follow_the_rules_of_the_page() -> None:
    """Written once more, as the page has it."""
    mask = 2**64 - 1

    def mix(number: int) -> int:
        number = (number + 0x9E3779B97F4A7C15) & mask
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
        number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
        return number ^ number >> 31

    def slope(part: int) -> int:
        return part * (45220 + (20316 * part >> 32)) >> 16

    def cells_of(short: int, level_count: int) -> list[int]:
        mixed = mix(short)
        found = []
        start, size = 0, 4
        for level in range(level_count):
            count = 1 if mixed % 16 >= 3 else min(6, size)
            for part in range(count):
                drawn = (mixed * (mix(8 * level + part) | 1) & mask) >> 32
                if mixed % 16 >= 3:
                    bits = (16 * size).bit_length() - 1
                    drawn = drawn >> 32 - bits << 32 - bits
                    found.append(start + ((slope(drawn) if level else drawn) * size >> 32))
                    continue
                cuts = [slope((at << 32) // count) * size + 2**31 >> 32 for at in range(count)]
                if count == size:
                    cuts = list(range(count))
                width = [*cuts[1:], size][part] - cuts[part]
                found.append(start + cuts[part] + (drawn * width >> 32))
            start, size = start + size, start + size
        return sorted(found)

    for short in range(0, 2**48, 2**48 // 200):
        row = places(256).of_each(mixed_words(np.array([short], np.uint64)))[0]
        assert np.sort(row[row >= 0]).tolist() == cells_of(short, 7)
