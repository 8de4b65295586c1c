"""The bench of documents counts deliveries by what updates hold, merged or not."""

import pytest
from pycrdt import Doc, Text, get_update, merge_updates

from bench.documents.framing import Kind, framing_of, read_varint, varint
from bench.documents.links import Reader
from bench.documents.playing import CLIENT
from bench.documents.updates import (
    ranges_of,
    replaced_updates,
    text_of,
    typed_text,
    typed_updates,
)


def test_an_update_of_one_keystroke_covers_one_clock() -> None:
    for clock, update in enumerate(typed_updates(CLIENT, 300)):
        assert ranges_of(update) == ((CLIENT, clock, clock + 1),)


def test_typed_updates_give_the_text_that_a_run_expects() -> None:
    updates = typed_updates(CLIENT, 300)
    for count in (0, 1, 40, 300):
        assert text_of(updates[:count]) == typed_text(CLIENT, count)
        assert len(typed_text(CLIENT, count)) == count


def test_a_merged_update_covers_the_clocks_of_all_its_parts() -> None:
    updates = typed_updates(CLIENT, 300)
    assert ranges_of(merge_updates(*updates[100:180])) == ((CLIENT, 100, 180),)
    whole: Doc[Text] = Doc()
    for update in updates:
        whole.apply_update(update)
    assert ranges_of(whole.get_update()) == ((CLIENT, 0, 300),)


def test_what_a_merged_update_leaves_out_is_not_counted() -> None:
    updates = typed_updates(CLIENT, 30)
    merged = merge_updates(*updates[:10], *updates[20:])
    assert ranges_of(merged) == ((CLIENT, 0, 10), (CLIENT, 20, 30))


def test_a_replaced_value_covers_one_clock_and_the_document_does_not_grow() -> None:
    updates = replaced_updates(CLIENT, 20, 5_000)
    document: Doc[Text] = Doc()
    for clock, update in enumerate(updates):
        assert ranges_of(update) == ((CLIENT, clock, clock + 1),)
        document.apply_update(update)
    assert ranges_of(document.get_update()) == ((CLIENT, 0, 20),)
    assert len(document.get_update()) < 2 * 5_000


def test_an_update_without_content_covers_nothing() -> None:
    whole = merge_updates(*typed_updates(CLIENT, 5))
    document: Doc[Text] = Doc()
    document.apply_update(whole)
    assert ranges_of(get_update(whole, document.get_state())) == ()


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**53 - 1])
def test_numbers_are_written_and_read_as_lib0_does(number: int) -> None:
    assert read_varint(varint(number) + b"rest", 0) == (number, len(varint(number)))
    assert varint(300) == b"\xac\x02"


@pytest.mark.parametrize("style", ["plain", "hocuspocus", "bare"])
def test_a_frame_is_read_as_it_was_written(style: str) -> None:
    framing = framing_of(style, "document")
    update = typed_updates(CLIENT, 1)[0]
    assert framing.read(framing.update(update)) == (Kind.UPDATE, update)
    assert framing.read(framing.empty_state) == (Kind.STATE, b"\x00\x00")
    assert framing.read(framing.prefix + b"\x01\x00") == (Kind.OTHER, b"")


def test_frames_of_hocuspocus_carry_the_document_and_its_answers() -> None:
    framing = framing_of("hocuspocus", "a")
    assert framing.opening[1] == b"\x01a\x00\x00\x01\x00"
    assert framing.read(b"\x01a\x08\x01") == (Kind.STATUS, b"\x01")
    assert framing.read(b"\x01b\x08\x01") == (Kind.OTHER, b"")


async def test_a_reader_counts_what_it_could_apply() -> None:
    reader = Reader(framing_of("plain", "document"))
    updates = typed_updates(CLIENT, 10)
    reader.take(Kind.UPDATE, updates[0])
    reader.take(Kind.UPDATE, updates[0])
    assert reader.update_count == 1
    # A gap: of no use before it is closed.
    reader.take(Kind.UPDATE, merge_updates(*updates[2:6]))
    assert reader.update_count == 1
    reader.take(Kind.UPDATE, merge_updates(*updates[1:4]))
    assert reader.update_count == 6


async def test_deliveries_are_told_with_their_clocks() -> None:
    told: list[tuple[int, int, int]] = []
    reader = Reader(framing_of("plain", "document"), lambda *found: told.append(found))
    updates = typed_updates(CLIENT, 3)
    for update in (updates[1], updates[0], updates[2]):
        reader.take(Kind.UPDATE, update)
    assert told == [(CLIENT, 0, 1), (CLIENT, 1, 2), (CLIENT, 2, 3)]
