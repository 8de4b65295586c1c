"""Kernels over 24-byte ids give what the plain libraries and plain Python give, in both forms."""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from syncline.kernels import (
    cell_places,
    cells,
    compiled,
    md5,
    prefix_digests,
    ranges,
    rice,
    segments,
    xxh3,
)
from syncline.kernels.cell_places import CELL_COUNT_MAX, PlacesOfOne, densities, mix, places
from syncline.values.digests import digest_of

ids = st.binary(min_size=24, max_size=24)
many_ids = st.lists(ids, max_size=60)
seeds = st.integers(0, 2**64 - 1)
hashes = st.integers(0, 2**48 - 1)
words = st.integers(0, 2**64 - 1)


def as_words(numbers: list[int]) -> xxh3.Words:
    return np.array(numbers, np.uint64)


# Once for the module, as hypothesis wants it: every test here runs with each.
@pytest.fixture(scope="module", params=["NumPy", "compiled"], autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which form of the kernels a test meets."""
    if request.param == "NumPy":
        with compiled.switched_off():
            assert not compiled.is_ready()
            yield "NumPy"
    else:
        if not compiled.is_installed():
            pytest.skip("numba is missing; install the extra fast")
        assert compiled.prepare(), compiled.why_not()
        yield "compiled"


# ------------------------------------------------------------------------------------------ hashes


@given(many_ids, seeds)
def test_xxh3_is_bit_exact(given_ids: list[bytes], seed: int) -> None:
    high, low = xxh3.xxh3_128(b"".join(given_ids), seed)
    found = [int(upper) << 64 | int(lower) for upper, lower in zip(high, low, strict=True)]
    assert found == [xxhash.xxh3_128_intdigest(each, seed) for each in given_ids]


@given(st.lists(ids, min_size=1, max_size=4), seeds)
def test_the_loop_to_be_compiled_is_bit_exact(given_ids: list[bytes], seed: int) -> None:
    # As it stands, without numba: what it compiles is this.
    rows = xxh3.as_rows(b"".join(given_ids))
    high, low = np.empty(len(rows), np.uint64), np.empty(len(rows), np.uint64)
    secrets, length_word = xxh3._secrets(seed), np.uint64(xxh3._length_word(seed))
    with np.errstate(over="ignore"):
        xxh3.HASHING.plain(rows.view("<u8"), secrets, length_word, high, low)
    expected = xxh3.xxh3_128(rows, seed)
    assert (high.tolist(), low.tolist()) == (expected[0].tolist(), expected[1].tolist())
    for halves in (high, low):
        sums = np.zeros(3, np.uint64)
        with np.errstate(over="ignore"):
            xxh3.SUMMING.plain(halves, sums)
        xor, upper, lower = sums.tolist()
        assert xxh3._xor_and_sum_of_halves(halves) == (xor, (upper << 32) + lower)


@given(st.lists(ids, min_size=1, max_size=2))
def test_the_loop_of_md5_is_bit_exact(given_ids: list[bytes]) -> None:
    count = len(given_ids)
    words, states = np.zeros((7, count), np.uint32), np.empty((4, count), np.uint32)
    words[:6] = xxh3.as_rows(b"".join(given_ids)).view("<u4").T
    with np.errstate(over="ignore"):
        md5.HASHING.plain(words, md5._INDICES, md5._CONSTANTS, md5._TURNS, md5._START_WORDS, states)
    found = [row.tobytes() for row in np.ascontiguousarray(states.T).astype("<u4")]
    assert found == [hashlib.md5(each).digest() for each in given_ids]


@given(st.lists(st.lists(ids, min_size=1, max_size=5), max_size=8), st.integers(1, 7))
def test_segments_come_to_what_their_ids_come_to_however_pieces_are_cut(
    given_segments: list[list[bytes]], piece_rows: int
) -> None:
    rows = xxh3.as_rows(b"".join(each for segment in given_segments for each in segment))
    lengths = [len(segment) for segment in given_segments]
    starts = np.cumsum([0, *lengths])[:-1].astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(md5, "PIECE_ROWS", piece_rows)
        patch.setattr(md5, "_COMPILED_ROWS", piece_rows)
        patch.setattr(prefix_digests, "_PIECE_ROWS", piece_rows)
        md5s = md5.xor_md5_at(rows, starts)
        counts, xor_high, xor_low, sums = prefix_digests.digests_at(rows, starts)
    assert counts.tolist() == lengths
    for place, segment in enumerate(given_segments):
        expected = digest_of(segment)
        assert md5s[place].tobytes() == expected.xor_md5
        halves = np.array([xor_high[place], xor_low[place]], ">i8")
        assert halves.tobytes() == expected.xor_xxh3
        hashes = [xxhash.xxh3_128_intdigest(each) for each in segment]
        for number, total in enumerate(sums[:, place].tolist()):
            shift = 32 * (3 - number)
            assert total == sum(each >> shift & 0xFFFF_FFFF for each in hashes)


@given(st.integers(0, 40), st.integers(1, 9), st.sets(st.integers(1, 39)))
def test_pieces_cover_every_row_and_name_its_segment(
    row_count: int, piece_rows: int, cuts: set[int]
) -> None:
    starts = np.array(sorted({0, *(cut for cut in cuts if cut < row_count)}), np.int64)
    of_row = np.searchsorted(starts, np.arange(row_count), "right") - 1
    found: list[int] = []
    for piece in segments.pieces(starts, row_count, piece_rows):
        numbers = range(piece.segments.start, piece.segments.stop)
        ends = [*piece.starts[1:].tolist(), piece.rows.stop - piece.rows.start]
        for number, start, end in zip(numbers, piece.starts.tolist(), ends, strict=True):
            assert end > start
            found += [number] * (end - start)
    assert found == of_row.tolist()


@given(many_ids)
def test_md5_is_bit_exact(given_ids: list[bytes]) -> None:
    found = [row.tobytes() for row in md5.md5(b"".join(given_ids))]
    assert found == [hashlib.md5(each).digest() for each in given_ids]


@given(many_ids)
def test_sums_are_those_of_the_hashes(given_ids: list[bytes]) -> None:
    each_hash = [xxhash.xxh3_128_intdigest(each) for each in given_ids]
    xor = 0
    for hashed in each_hash:
        xor ^= hashed
    assert xxh3.digest(b"".join(given_ids)) == (xor, sum(each_hash) % 2**128)
    xor_of_md5 = 0
    for each in given_ids:
        xor_of_md5 ^= int.from_bytes(hashlib.md5(each).digest(), "big")
    assert md5.xor_md5(b"".join(given_ids)) == xor_of_md5.to_bytes(16, "big")


def test_pieces_of_many_ids_fit_together() -> None:
    data = Random(1).randbytes(24 * (2 * xxh3.PIECE_ROWS + 3))
    every = [data[at : at + 24] for at in range(0, len(data), 24)]
    high, low = xxh3.xxh3_128(data)
    found = [upper << 64 | lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]
    assert found == [xxhash.xxh3_128_intdigest(id_) for id_ in every]
    assert [row.tobytes() for row in md5.md5(data)] == [hashlib.md5(id_).digest() for id_ in every]
    xor = 0
    for hashed in found:
        xor ^= hashed
    assert xxh3.digest(data) == (xor, sum(found) % 2**128)


@given(many_ids, st.integers(0, 7), st.integers(1, 3))
def test_ids_may_lie_anywhere(given_ids: list[bytes], offset: int, stride: int) -> None:
    """Read-only, at an odd address, with gaps between them: whatever a caller has."""
    data = bytes(offset) + b"".join(given_ids)
    rows = np.frombuffer(data, np.uint8)[offset:].reshape(-1, 24)[::stride]
    chosen = given_ids[::stride]
    assert xxh3.digest(rows) == xxh3.digest(b"".join(chosen))
    assert xxh3.salted(rows, b"saltsalt").tolist() == [
        xxhash.xxh3_128_intdigest(id_, int.from_bytes(b"saltsalt")) % 2**64 for id_ in chosen
    ]
    assert md5.xor_md5(rows) == md5.xor_md5(b"".join(chosen))
    hashed = (xxh3.salted(rows, b"saltsalt") >> np.uint64(16))[::stride]
    assert cells.sketch(hashed, 40).encode() == cells.sketch(hashed.copy(), 40).encode()
    assert xxh3.xor_and_sum(hashed, hashed) == xxh3.xor_and_sum(hashed.copy(), hashed.copy())


def test_sums_of_many_large_hashes_do_not_overflow() -> None:
    full = np.full(70_000, 2**64 - 1, np.uint64)
    assert xxh3.xor_and_sum(full, full) == (0, 70_000 * (2**128 - 1) % 2**128)


@pytest.mark.parametrize("shape", [(3,), (2, 23), (1, 2, 24)])
def test_what_are_no_ids_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids"):
        xxh3.as_rows(np.zeros(shape, np.uint8))


# ------------------------------------------------------------------------------------------- cells


@given(st.lists(hashes, max_size=80), st.integers(1, 300))
def test_one_id_at_a_time_makes_the_same_cells_as_many(given_hashes: list[int], count: int) -> None:
    places_of_one = PlacesOfOne(count)
    numbers = [0] * places_of_one.size
    for hashed in given_hashes:
        mixed = mix(hashed)
        places_of_one.add(mixed, mixed >> 40 << 48 | hashed, numbers)
    expected = cells.Cells.of_numbers(numbers[:count]).encode()
    assert cells.sketch(as_words(given_hashes), count).encode() == expected


@given(st.lists(hashes, min_size=1, max_size=5), st.integers(1, 300))
def test_the_loop_over_cells_is_bit_exact(given_hashes: list[int], count: int) -> None:
    layout, numbers = places(count), as_words(given_hashes)
    mixed = cell_places.mixed_words(numbers)
    sums = layout.sums_of_none()
    with np.errstate(over="ignore"):
        cell_places.ADDING.plain(mixed, *cells._halves(numbers, mixed), *layout.layout, sums)
    found = cells.Cells(sums[:count, 0], sums[:count, 1]).normalised()
    assert found.encode() == cells.sketch(numbers, count).encode()


@pytest.mark.parametrize("count", [1, 40, 1_696, 30_000, CELL_COUNT_MAX])
def test_many_ids_make_the_same_cells_in_both_forms(count: int) -> None:
    # More than a piece, and all there is of levels.
    numbers = np.random.default_rng(count).integers(0, 2**48, 40_000, dtype=np.uint64)
    found = cells.sketch(numbers, count).encode()
    with compiled.switched_off():
        assert cells.sketch(numbers, count).encode() == found


def test_cells_that_are_full_do_not_run_over() -> None:
    """Every id the same: sums grow as fast as they can."""
    numbers = np.full(50_000, 2**48 - 1, np.uint64)
    held = [cells.sketch(numbers[:1], 4).chosen(np.array([at])).encode() for at in range(4)]
    at = next(place for place, cell in enumerate(held) if any(cell))
    one = int.from_bytes(held[at], "big")
    every = int.from_bytes(cells.sketch(numbers, 4).encode()[9 * at : 9 * at + 9], "big")
    assert every == one * 50_000 % 2**72


@given(st.lists(hashes, max_size=40), st.integers(1, 300))
def test_the_first_cells_of_a_sketch_are_a_smaller_sketch(
    given_hashes: list[int], count: int
) -> None:
    large = cells.sketch(as_words(given_hashes), count + 50)
    assert large.first(count).encode() == cells.sketch(as_words(given_hashes), count).encode()


@pytest.mark.parametrize("count", [4, 8, 100, 4096, CELL_COUNT_MAX])
def test_an_id_is_in_a_cell_once_and_within_the_sketch(count: int) -> None:
    mixed = as_words([mix(number) for number in range(400)])
    for row in places(count).of_each(mixed):
        held = row[row >= 0]
        assert len(set(held.tolist())) == len(held)
        assert held.max() < count


def test_densities_are_how_often_cells_are_met() -> None:
    mixed = as_words([mix(number) for number in range(60_000)])
    rows = places(64).of_each(mixed)
    found = np.bincount(rows[rows >= 0], minlength=64) / len(mixed)
    assert np.allclose(found, densities(64), rtol=0.08, atol=0.004)


@given(st.sets(hashes, max_size=60), st.sets(hashes, max_size=60))
def test_peeling_reads_exactly_the_difference(mine: set[int], theirs: set[int]) -> None:
    count = 3 * len(mine ^ theirs) + 60
    difference = cells.sketch(as_words(sorted(mine)), count) - cells.sketch(
        as_words(sorted(theirs)), count
    )
    peeled = cells.peel(difference)
    # Among few ids a pair may share all its cells; then it says so.
    if peeled.is_whole:
        assert set(peeled.plus.tolist()) == mine - theirs
        assert set(peeled.minus.tolist()) == theirs - mine


@pytest.mark.parametrize("size", [10, 100, 1_000, 5_000])
def test_as_many_cells_as_are_needed_are_enough(size: int) -> None:
    random = Random(size)
    need = int(1.22 * size + 3.6 * size**0.5 + 9)
    trials = 40 if size < 5_000 else 8
    whole = 0
    for _ in range(trials):
        drawn = as_words([random.getrandbits(48) for _ in range(size)])
        half = size // 2
        whole += cells.peel(
            cells.sketch(drawn[:half], need) - cells.sketch(drawn[half:], need)
        ).is_whole
    assert whole >= trials - 2


@given(st.binary(max_size=9 * 80))
def test_made_up_cells_are_read_in_bounded_time(data: bytes) -> None:
    data = data[: len(data) // 9 * 9]
    if data:
        peeled = cells.peel(cells.Cells.decode(data))
        assert len(peeled) <= len(data) // 9


def test_an_id_that_is_there_twice_is_no_difference() -> None:
    once = cells.sketch(as_words([123456789]), 40)
    assert not cells.peel(once + once).is_whole


def test_cells_that_would_be_peeled_for_ever_are_given_up() -> None:
    # An id in one of its cells alone: taken out it shows in the others, and so on.
    whole = cells.sketch(as_words([123456789]), 40)
    cell = int(np.flatnonzero(~whole.is_empty)[0])
    low, high = np.zeros(40, np.uint64), np.zeros(40, np.uint64)
    low[cell], high[cell] = whole.low[cell], whole.high[cell]
    assert not cells.peel(cells.Cells(low, high)).is_whole


@given(st.lists(st.integers(0, 2**72 - 1), min_size=1, max_size=30))
def test_cells_survive_their_bytes(numbers: list[int]) -> None:
    found = cells.Cells.of_numbers(numbers)
    assert found.encode() == b"".join(number.to_bytes(9, "big") for number in numbers)
    assert cells.Cells.decode(found.encode()).encode() == found.encode()
    assert (found - found).is_empty.all()


# -------------------------------------------------------------------------------------------- rice


@given(st.lists(words, max_size=50) | st.lists(st.integers(0, 300), max_size=200))
def test_numbers_survive_their_rice_code(numbers: list[int]) -> None:
    packed = rice.pack(as_words(numbers))
    found, used = rice.unpack(memoryview(packed + b"more"), len(numbers))
    assert found.tolist() == numbers
    assert used == len(packed)


def test_many_numbers_survive_their_rice_code() -> None:
    numbers = np.random.default_rng(1).integers(0, 1 << 20, 40_001).astype(np.uint64)
    found, _ = rice.unpack(memoryview(rice.pack(numbers)), len(numbers))
    assert (found == numbers).all()


@given(st.binary(max_size=60), st.integers(0, 200))
def test_made_up_rice_codes_are_refused_or_read(data: bytes, count: int) -> None:
    try:
        found, used = rice.unpack(memoryview(data), count)
    except rice.RiceError:
        return
    assert len(found) == count
    assert used <= len(data)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.data())
def test_a_rice_code_that_is_cut_short_is_refused(numbers: list[int], data: st.DataObject) -> None:
    packed = rice.pack(as_words(numbers))
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(rice.RiceError):
        rice.unpack(memoryview(cut), len(numbers))


def test_a_rice_code_has_one_form() -> None:
    packed = bytearray(rice.pack(as_words([9, 300, 17])))
    rice.unpack(memoryview(packed), 3)
    for place in (-1, 1):
        changed = bytearray(packed)
        changed[place] |= 1
        with pytest.raises(rice.RiceError, match="zeros"):
            rice.unpack(memoryview(changed), 3)


# ------------------------------------------------------------------------------------------ ranges

# Few different bytes, so that ids share beginnings and ends.
close_ids = st.lists(
    st.tuples(*[st.sampled_from(b"\x00\x01\xff")] * 24).map(bytes)
    | st.tuples(st.just(bytes(8)), st.binary(min_size=16, max_size=16)).map(b"".join),
    max_size=30,
)


@given(close_ids)
def test_ids_are_sorted_and_each_is_there_once(given_ids: list[bytes]) -> None:
    found = ranges.sorted_ids(xxh3.as_rows(b"".join(given_ids)))
    assert [row.tobytes() for row in found] == sorted(set(given_ids))
    assert ranges.are_sorted(found)


@given(st.lists(words | st.integers(0, 3), max_size=20))
def test_distinct_numbers_are_in_order_and_each_is_there_once(numbers: list[int]) -> None:
    assert ranges.distinct(as_words(numbers)).tolist() == sorted(set(numbers))


@given(st.lists(ids, min_size=2, max_size=6))
def test_only_what_is_in_order_counts_as_sorted(given_ids: list[bytes]) -> None:
    is_sorted = all(a < b for a, b in pairwise(given_ids))
    assert ranges.are_sorted(xxh3.as_rows(b"".join(given_ids))) == is_sorted


@given(close_ids, st.binary(max_size=24))
def test_lower_bound_is_how_many_come_before(given_ids: list[bytes], wanted: bytes) -> None:
    rows = ranges.sorted_ids(xxh3.as_rows(b"".join(given_ids)))
    expected = sum(row.tobytes() < wanted for row in rows)
    assert ranges.lower_bound(rows, ranges.keys(rows), wanted) == expected


@given(many_ids, st.integers(0, 64), st.randoms())
def test_prefixes_find_the_ids_that_have_them(
    given_ids: list[bytes], depth: int, random: Random
) -> None:
    rows = ranges.sorted_ids(xxh3.as_rows(b"".join(given_ids)))
    prefix = random.randrange(2**depth)
    if given_ids and random.random() < 0.5:
        prefix = int.from_bytes(given_ids[0][:8], "big") >> 64 - depth
    starts, ends = ranges.prefix_bounds(ranges.keys(rows), depth, as_words([prefix]))
    found = [row.tobytes() for row in rows[int(starts[0]) : int(ends[0])]]
    every = sorted(set(given_ids))
    assert found == [id_ for id_ in every if int.from_bytes(id_[:8], "big") >> 64 - depth == prefix]


@given(many_ids, st.data())
def test_prefix_sums_answer_for_any_range(given_ids: list[bytes], data: st.DataObject) -> None:
    rows = ranges.sorted_ids(xxh3.as_rows(b"".join(given_ids)))
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert ranges.PrefixSums.of(rows).between(start, end) == xxh3.digest(rows[start:end])


def test_buckets_hold_what_their_prefix_has() -> None:
    rows = ranges.sorted_ids(xxh3.as_rows(Random(3).randbytes(24 * 500)))
    found = ranges.bucket_digests(rows)
    assert len(found) == ranges.BUCKET_COUNT
    assert sum(count for count, _, _ in found) == len(rows)
    bucket = int.from_bytes(rows[77, :2].tobytes(), "big")
    inside = rows[ranges.keys(rows) >> np.uint64(48) == bucket]
    assert found[bucket] == (len(inside), *xxh3.digest(inside))
