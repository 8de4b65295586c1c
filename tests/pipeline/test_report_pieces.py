"""Pieces of the report: what is text stays text, and what is drawn fits."""

from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.pipeline.report.bins import BINS_MAX, bins_of, stretch_of
from syncline.pipeline.report.drawing import BLUE, INK, Sheet
from syncline.pipeline.report.markup import Html, element, joined
from syncline.pipeline.report.svg import settings, written
from syncline.pipeline.report.wording import (
    byte_text,
    counted,
    cut,
    duration,
    moment,
    sequences,
    session_text,
    stream_text,
)

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_becomes_an_element_or_ends_an_attribute(inside: str, about: str) -> None:
    made = element("p", inside, title=about)
    made.encode()
    found = Elements(made)
    assert [tag for tag, _ in found.tags] == ["p"]
    assert list(found.tags[0][1]) == ["title"]
    printable = "".join(each for each in inside if each.isprintable())
    assert "".join(each for each in found.text if each in printable) == printable


def test_only_what_was_built_is_not_escaped() -> None:
    assert joined("<b>", Html("<i>"), 3, None, ["&", element("br")]) == "&lt;b&gt;<i>3&amp;<br>"
    assert element("td", class_="n", tabindex=0, hidden=True, id=None) == (
        '<td class="n" tabindex="0" hidden></td>'
    )


def test_text_that_turns_or_hides_is_shown_as_such() -> None:
    assert joined("a\u202eb\x00c") == "a\ufffdb\ufffdc"
    assert (
        joined("\u65e5\u3000\u672c \N{MAN}\u200d\N{WOMAN}")
        == "\u65e5\u3000\u672c \N{MAN}\u200d\N{WOMAN}"
    )


times = st.integers(0, 200 * YEAR_MS).map(lambda ms: ms - ms % HOUR_MS)


@given(st.lists(times, min_size=1, max_size=60))
def test_bins_hold_all_that_is_not_far_off(found: list[int]) -> None:
    bins = bins_of(found)
    first, last = stretch_of(found)
    assert bins.count <= BINS_MAX
    inside = [each for each in found if first <= each <= last]
    added = bins.added([(each, 1) for each in found])
    if last - first < (BINS_MAX - 1) * 8_760 * HOUR_MS:
        assert all(map(bins.has, inside))
        assert added.sum() >= len(inside)
    assert len(bins.edges()) == bins.count + 1
    assert bins.has(last)
    text = bins.left_out(found)
    assert (text == "") == all(map(bins.has, found))


def test_the_stretch_with_most_times_is_shown() -> None:
    now = 56 * YEAR_MS
    assert stretch_of([0, now, now + HOUR_MS, 90 * YEAR_MS]) == (now, now + HOUR_MS)
    # As many on both sides: the newer.
    assert stretch_of([0, now]) == (now, now)


def test_highest_values_leave_holes_where_there_is_nothing() -> None:
    bins = bins_of([0, 2 * HOUR_MS])
    found = bins.highest([(0, 3), (0, 7), (2 * HOUR_MS, 1)])
    assert found[0] == 7
    assert np.isnan(found[1])


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3 * HOUR_MS + 600_000, "3 h 10 min"),
        (49 * HOUR_MS, "2 d 1 h"),
    ],
)
def test_durations_are_told_in_two_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_numbers_and_ids_read_well() -> None:
    assert counted(1, "delivery", "deliveries") == "1 delivery"
    assert counted(12_480, "delivery", "deliveries") == "12,480 deliveries"
    assert (byte_text(1_023), byte_text(1_536), byte_text(3 << 40)) == (
        "1023 B",
        "1.5 KiB",
        "3.0 TiB",
    )
    assert sequences(5, 5) == "5"
    assert sequences(5, 1_007) == "5 to 1,007"
    assert session_text(7 << 4 | 2) == "SMP 7"
    assert session_text(7 << 4 | 9) == "face 9 7"
    assert stream_text(bytes(24)) == "A" * 32
    assert moment(1 << 60) == f"{1 << 60} ms"
    assert cut("a" * 200) == "a" * 119 + "…"


def test_drawings_are_the_same_each_time_and_have_only_variables_for_colours() -> None:
    def drawing(name: str) -> str:
        with settings():
            sheet = Sheet(300, 100)
            panel = sheet.panel(20, 20, 200, 60)
            panel.bars(np.arange(4.0), np.array([1.0, 0.0, 2.0]), BLUE)
            panel.show(x=(0, 3), y=(0, 2))
            sheet.write(0, 5, "1 < 2 & $x$", INK)
            return written(sheet, name, "<title>", "described")

    text = drawing("one")
    assert text == drawing("one")
    assert "&lt;title&gt;" in text
    assert "1 &lt; 2 &amp; $x$" in text
    assert "fill: var(--blue)" in text
    assert not {"http", "#1d3557", "#2f6f9f", "font-family"} & set(text.split())
    ids = {about["id"] for _, about in Elements(text).tags if "id" in about}
    assert all(each is not None and each.startswith("one-") for each in ids)
    # Two drawings of one page do not share ids.
    others = {about["id"] for _, about in Elements(drawing("two")).tags if "id" in about}
    assert not ids & others
