"""The report on readers that were behind, and on rows of several logs, each by its name."""

import re
from pathlib import Path

import pytest

from syncline.pipeline.schemas import CONSUMER_HEALTH, EVENTS
from tests.pipeline.report_pages import facts_of, report_on
from tests.pipeline.report_tables import (
    HOUR_MS,
    RESTORED,
    START_MS,
    STORE,
    TEN,
    audit_row,
    audited,
    event_row,
    health_row,
    healthy,
    restored,
    something_of_everything,
    stream,
    write,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    return folder


# ----------------------------------------------------------------------------------------- readers


def test_readers_that_were_too_far_behind_count_once_each(root: Path) -> None:
    times = [START_MS + at * HOUR_MS for at in range(60)]
    looks = [health_row(1, times[at], 40_000 + at, "relative") for at in range(40)]
    looks += [health_row(1, times[40], 900_000, "absolute"), health_row(1, times[41], 0, "gone")]
    # It came back under the same number, and fell behind again: another reader.
    looks += [health_row(1, times[50], 41_000, "relative", joined_position=900)]
    looks += [health_row(2, times[at], 50_000, "relative") for at in (3, 4)]
    # As far as none of these, but nobody was waiting.
    looks += [health_row(3, times[9], 999_000)]
    for at in range(0, len(looks), 7):
        write(root, CONSUMER_HEALTH, looks[at : at + 7], job="lag")
    readers = facts_of(root).readers
    assert readers is not None
    assert (readers.behind_count, readers.behind_ms_max) == (3, 900_000)
    found = [(each.at_ms, each.relative, each.absolute) for each in readers.slots]
    assert [each for each in found if each[1:] != (0, 0)] == [
        (times[4], 1, 0),
        (times[40], 0, 1),
        (times[50], 1, 0),
    ]
    facts, page = report_on(root)
    assert facts.sections["readers"] == (
        "The reader furthest behind was 16 min 39 s behind; 3 readers were too far behind, "
        "by 15 min at most, and would be given up."
    )
    drawn = "A line over time; the highest is 16 min 39 s. Readers that were too far behind: 3."
    assert drawn in page.words


def test_more_readers_than_can_be_told_apart_are_that_many_or_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.pipeline.report.readers.COUNTED_MAX", 4)
    monkeypatch.setattr("syncline.pipeline.report.delivery_sections.COUNTED_MAX", 4)
    looks = [health_row(at, START_MS + at, 40_000 + at, "relative") for at in range(9)]
    write(root, CONSUMER_HEALTH, looks, job="lag", row_group_size=2)
    facts, _ = report_on(root)
    assert facts.sections["readers"].endswith(
        "; 4 or more readers were too far behind, by 40.0 s at most, and would be given up."
    )


def test_one_reader_is_told_of_as_one(root: Path) -> None:
    write(root, CONSUMER_HEALTH, [health_row(1, START_MS, 40_000, "relative")], job="lag")
    facts, _ = report_on(root)
    assert "; 1 reader was too far behind, by 40.0 s at most" in facts.sections["readers"]


def test_no_reader_at_all_says_why(root: Path) -> None:
    healthy(root)
    facts, _ = report_on(root)
    assert facts.sections["readers"] == (
        "No reader was seen: of one that comes and goes between two looks of the job, "
        "nothing is told."
    )


# -------------------------------------------------------------------------------------------- logs


def test_rows_of_several_logs_say_which_and_what_it_was_restored_from(root: Path) -> None:
    something_of_everything(root)
    restored(root)
    found = facts_of(root)
    assert found.logs.shown == {STORE, RESTORED}
    assert found.logs.former == {RESTORED: STORE}
    facts, page = report_on(root)
    old, new = "log 00010203", "log fffefdfc, restored from 00010203"
    firsts = [row[0] for row in page.rows if row] + [row[1] for row in page.rows if len(row) > 1]
    for text in (f"plain{old}", f"plain{new}"):
        # Slowest streams, readers, what is held; documents that differ, largest documents.
        assert firsts.count(text) >= 3, text
    faults = [row for row in page.rows if row[0] == "rolled back" and len(row) == 7]
    assert [row[1] for row in faults] == [f"plain{new}"]
    gaps = [row[-1] for row in page.rows if row[0] in ("damage", "gap")]
    assert gaps == ["00010203", "fffefdfc, restored from 00010203"]
    assert "4 documents, each counted in every log that has it: " in facts.sections["documents"]


def test_one_log_is_not_named(root: Path) -> None:
    something_of_everything(root)
    assert facts_of(root).logs.shown == {STORE}
    _, page = report_on(root)
    assert not [about for _, about in page.tags if about.get("class") == "log"]
    # Names of snapshots begin with the same, and have more.
    assert not [text for row in page.rows for text in row if re.search(r"00010203\b(?!-)", text)]
    assert ["Kind", "Position", "Length", "Why"] in page.rows


def test_a_log_that_was_not_restored_is_named_by_its_id_alone(root: Path) -> None:
    audited(root, [audit_row(1, 0, TEN), audit_row(1, 0, TEN, store=RESTORED)], [])
    # Starts that are no restore, and the restore of a log that has no row here.
    starts = [event_row(10, START_MS, event=1, store=RESTORED, first=0, stream=stream(4))]
    starts += [event_row(10, START_MS, event=1, store=RESTORED, first=64)]
    starts += [event_row(10, START_MS, event=1, store=bytes(16), first=64, stream=stream(4))]
    write(root, EVENTS, starts)
    assert facts_of(root).logs.former == {}
    _, page = report_on(root)
    assert any(row[0].endswith("log fffefdfc") for row in page.rows if row)
