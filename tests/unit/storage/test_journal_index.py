"""Places of entries, found by sequence, with gaps where something is lost."""

from syncline.storage.base import EntryKind
from syncline.storage.journal.index import EntryIndex, Place


def place(seq: int) -> Place:
    return Place(seq, seq * 100, 100, seq * 1000, EntryKind.MESSAGE)


def index_of(*seqs: int) -> EntryIndex:
    index = EntryIndex()
    for seq in seqs:
        index.append(place(seq))
    return index


def test_places_come_back_in_order_from_any_sequence() -> None:
    index = index_of(3, 4, 7, 8)
    assert list(index) == [place(3), place(4), place(7), place(8)]
    assert [found.seq for found in index.places_from(5)] == [7, 8]
    assert list(index.places_from(9)) == []
    assert index.last == place(8)


def test_a_lost_entry_has_no_place_but_a_neighbour() -> None:
    index = index_of(3, 7)
    assert index.at(7) == place(7)
    assert index.at(5) is None
    assert index.before(5) == place(3)
    assert index.before(3) is None


def test_truncated_places_are_gone() -> None:
    index = index_of(*range(1, 301))
    for seq in (2, 150, 290):
        index.truncate_before(seq)
        assert [found.seq for found in index] == list(range(seq, 301))
        assert index.before(seq) is None
    index.truncate_before(1_000)
    assert len(index) == 0
    assert index.last is None
    index.append(place(1_000))
    assert index.last == place(1_000)


def test_an_empty_index_answers_too() -> None:
    index = EntryIndex()
    assert (len(index), index.last, index.at(1), index.before(1)) == (0, None, None, None)
