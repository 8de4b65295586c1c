"""The digest of a set is that of its ids one by one, whatever the pieces it is read in."""

from random import Random

import pytest

from syncline.core.reconciliation.sets import Snapshot
from syncline.storage import set_digests
from syncline.storage.set_digests import digest_of_set, run_out, walk
from syncline.values.digests import digest_of

IDS = [Random(number).randbytes(24) for number in range(2_000)]
IDS += [bytes(24), b"\xff" * 24, b"\x00\xff" + bytes(22), b"\x01" + bytes(23)]


def test_it_is_that_of_the_ids_with_the_version_of_the_set() -> None:
    assert digest_of_set(Snapshot(b"".join(IDS), 7)) == digest_of(IDS, 7)
    assert digest_of_set(Snapshot(b"", 3)) == digest_of([], 3)


@pytest.mark.parametrize("expected_count", [0, len(IDS), 1_000_000])
def test_it_does_not_depend_on_what_was_expected(expected_count: int) -> None:
    steps = walk(Snapshot(b"".join(IDS), 7), expected_count)
    assert run_out(steps) == digest_of(IDS, 7)


def test_a_small_set_is_one_step_and_a_large_one_many() -> None:
    ids = Snapshot(b"".join(IDS))
    assert list(walk(ids, len(IDS))) == [len(IDS)]
    counts = list(walk(ids, set_digests._IDS_AT_ONCE + 1))
    assert (len(counts), sum(counts)) == (256, len(IDS))
