"""The report: its numbers are those of the tables, and it says plainly what it does not know."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from syncline.errors import PipelineError, TableError
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.report import (
    folding,
    wants_session,
    write_report,
)
from syncline.pipeline.report.delivery import FINDINGS_MAX, Percentiles
from syncline.pipeline.report.facts import SPECS, Facts, gather, gather_sources
from syncline.pipeline.report.folding import Fold, Reader, summing
from syncline.pipeline.report.verdict import Verdict, judge
from syncline.pipeline.schemas import (
    DELIVERY_AUDIT,
    DELIVERY_FINDINGS,
    EVENTS,
    SERVICE_DIGESTS,
    TRUNCATION_PLAN,
)
from syncline.pipeline.tables import LOG_NAME, Table, TableSpec
from tests.pipeline.report_pages import Page, facts_of, report_on
from tests.pipeline.report_tables import (
    HOSTILE,
    HOUR_MS,
    START_MS,
    STORE,
    TEN,
    audit_row,
    audited,
    digest_row,
    event_row,
    finding_row,
    healthy,
    plan_row,
    something_of_everything,
    stream,
    write,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Something of everything; no test changes it."""
    root = tmp_path_factory.mktemp("full") / "tables"
    root.mkdir()
    something_of_everything(root)
    return root


@pytest.fixture(scope="module")
def page(full: Path) -> Page:
    return report_on(full)[1]


@pytest.fixture(scope="module")
def found(full: Path) -> Facts:
    return facts_of(full)


def verdict_of(root: Path) -> Verdict:
    return judge(facts_of(root))


# ---------------------------------------------------------------------------------------- verdicts


def test_a_healthy_run_is_proved(root: Path) -> None:
    healthy(root)
    facts, page = report_on(root)
    assert facts.state == "proved"
    assert facts.verdict == "Nothing was lost: all 60 expected deliveries happened."
    assert page.heading == facts.verdict
    assert facts.sections["findings"] == "No faults, no signs."
    assert "took over 5.0 s" in page.words


def test_faults_come_first_and_are_told_in_words(found: Facts, page: Page) -> None:
    verdict = judge(found)
    assert verdict.state == "faults"
    assert verdict.sentence == (
        "2 deliveries were lost and 1 update went back to its author; "
        "23 of 25 expected deliveries happened."
    )
    assert "1 state that a router kept of a document is not what its updates come to." in page.words
    assert "3 deliveries came late." in verdict.notes
    assert page.heading == verdict.sentence


def test_what_could_not_be_read_is_not_proved(root: Path) -> None:
    healthy(root)
    gap = [event_row(-3, None, position=10, length=99, body=b"gone")]
    write(root, EVENTS, gap)
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert verdict.sentence == (
        "No fault was found, but it is not proved that nothing was lost: "
        "1 stretch of the log is unknown."
    )
    assert "All 60 expected deliveries happened." in verdict.notes
    assert "The audit has read events up to version 1; there is version 2 by now." in verdict.notes


def test_deliveries_that_are_unknown_are_not_proved(root: Path) -> None:
    audited(root, [audit_row(1, 0, TEN, unknown=4, expected=14)], [])
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert verdict.sentence.endswith("4 deliveries cannot be judged.")


def test_events_that_were_left_out_are_not_proved(root: Path) -> None:
    healthy(root)
    write(root, EVENTS, [event_row(10, START_MS, event=13, first=20)])
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert verdict.sentence.endswith("routers left 20 events unnoted.")


def test_a_router_that_noted_no_events_proves_nothing(root: Path) -> None:
    healthy(root)
    starts = [event_row(10, START_MS, event=1, detail=detail) for detail in (0, 1)]
    write(root, EVENTS, starts)
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert verdict.sentence.endswith(": 1 run of a router noted no events.")


def test_without_findings_a_clean_audit_is_not_proved(root: Path) -> None:
    write(root, DELIVERY_AUDIT, [audit_row(1, 0, TEN)])
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert "the findings of the audit are not there" in verdict.sentence
    assert "the events that were audited are not there any more" in verdict.sentence


def test_an_audit_that_was_cut_off_is_not_proved(root: Path) -> None:
    healthy(root)
    write(root, DELIVERY_FINDINGS, [], inputs={"events": 2})
    verdict = verdict_of(root)
    assert verdict.state == "not proved"
    assert verdict.sentence.endswith("the last audit was cut off.")


def test_what_is_still_open_is_told(root: Path) -> None:
    audited(root, [audit_row(1, 0, TEN)], [], pending_count=3)
    verdict = verdict_of(root)
    assert verdict.state == "proved"
    assert verdict.notes == ("3 deliveries are still open: the next audit judges them.",)


def test_readers_that_left_are_no_loss(root: Path) -> None:
    audited(root, [audit_row(1, 0, TEN, expected=12, interrupted=2)], [])
    verdict = verdict_of(root)
    assert verdict.state == "proved"
    assert verdict.sentence == (
        "Nothing was lost: 10 of 12 expected deliveries happened; "
        "2 did not, because the reader went away."
    )


def test_a_wrong_digest_is_a_fault_until_a_newer_snapshot_is_right(root: Path) -> None:
    healthy(root)
    write(
        root, SERVICE_DIGESTS, [digest_row("aa-1", 1, matches=False)], inputs={"snapshot": "aa-1"}
    )
    verdict = verdict_of(root)
    assert verdict.state == "faults"
    assert verdict.sentence == "1 digest that a router kept of a set of ids is wrong."
    write(root, SERVICE_DIGESTS, [digest_row("aa-2", 1, matches=True)], inputs={"snapshot": "aa-2"})
    assert verdict_of(root).state == "proved"


def test_nothing_to_read_says_what_to_run(root: Path) -> None:
    facts, page = report_on(root)
    assert facts.state == "nothing"
    assert facts.verdict.startswith("Nothing can be said about deliveries yet")
    for command in ("ingest FOLDER", "audit", "lag FOLDER", "compact", "reconcile ROUTER WANTED"):
        assert f"syncline pipeline {command}" in page.words
    assert set(facts.sections) == {
        *("delivery", "findings", "latency", "readers", "drift"),
        *("storage", "documents", "unknown", "history"),
    }


def test_empty_tables_say_what_to_run(root: Path) -> None:
    for spec in SPECS:
        write(root, spec, [])
    facts, page = report_on(root)
    assert facts.state == "nothing"
    assert "The table " in page.words
    assert " has no rows yet. To add some, run:" in page.words
    assert "syncline pipeline audit" in page.words


# ------------------------------------------------------------------------------------------- facts


def test_hours_and_runs_add_up(found: Facts) -> None:
    delivery = found.delivery
    assert delivery is not None
    first, second = delivery.hours
    assert first.hour_ms == START_MS
    assert (first.counts["delivered"], first.counts["late"], first.counts["lost"]) == (15, 3, 0)
    assert (second.counts["lost"], second.counts["interrupted"]) == (2, 1)
    assert delivery.totals["expected"] == 25
    # Ten of 1 to 10 ms, four of 500 (as its bucket's end), one of 9 s: merged, not averaged.
    assert first.latency == Percentiles(8, 9_215, 9_215)
    assert second.latency == Percentiles(5, 10, 10)


def test_slow_streams_are_ranked_by_their_worst_hour_and_told_over_all(found: Facts) -> None:
    delivery = found.delivery
    assert delivery is not None
    assert [(each.stream, each.worst_ms) for each in delivery.slowest] == [
        (stream(1), 9_215),
        (stream(2), 511),
    ]
    assert delivery.slowest[0].delivered == 19
    assert delivery.slowest[0].latency == Percentiles(6, 10, 9_215)


def test_findings_are_bounded_and_no_rule_pushes_out_another(root: Path) -> None:
    findings = [finding_row("lost", is_fault=True, seq=at) for at in range(3 * FINDINGS_MAX)]
    findings += [finding_row("to_author", is_fault=True, seq=at) for at in range(FINDINGS_MAX)]
    findings += [finding_row("duplicate", is_fault=True, seq=at) for at in range(7)]
    findings += [finding_row("late", is_fault=False, seq=at) for at in range(9)]
    write(root, DELIVERY_FINDINGS, findings, row_group_size=100)
    found = facts_of(root).findings
    assert found is not None
    assert found.faults == {"lost": 3 * FINDINGS_MAX, "to_author": FINDINGS_MAX, "duplicate": 7}
    assert found.signs == {"late": 9}
    rules = [each.rule for each in found.worst]
    assert rules == ["lost"] * 96 + ["to_author"] * 97 + ["duplicate"] * 7
    # The newest of each.
    assert [each.seq for each in found.worst][:2] == [3 * FINDINGS_MAX - 1, 3 * FINDINGS_MAX - 2]
    _, page = report_on(root)
    assert any("; 607 more are in the table delivery_findings" in each for each in page.words)


def test_what_could_not_be_read_is_listed_once(found: Facts) -> None:
    logged = found.logged
    assert logged is not None
    assert (logged.stretch_count, logged.unread_bytes, logged.torn_count) == (1, 4_096, 1)
    assert logged.dropped_count == 17
    (stretch,) = logged.stretches
    assert (stretch.kind, stretch.position, stretch.byte_count) == ("damage", 64, 4_096)
    assert [
        (each.message_count, each.message_bytes, each.snapshot_bytes) for each in logged.slots
    ] == [
        (6, 600, 0),
        (0, 0, 2_048),
    ]


def test_readers_that_are_gone_are_behind_no_longer(found: Facts) -> None:
    readers = found.readers
    assert readers is not None
    assert [(each.lag_ms_max, each.relative) for each in readers.slots] == [(40_000, 1), (90, 0)]
    assert [(each.stream, each.lag_ms) for each in readers.slowest] == [
        (stream(1), 40_000),
        (stream(2), 90),
    ]


def test_drift_is_told_over_time_also_when_there_was_none(found: Facts) -> None:
    drift = found.drift
    assert [(each.missing, each.extra) for each in drift.reconciled] == [(2, 1), (0, 0)]
    assert [each.mismatch_count for each in drift.digested] == [1, 0]
    assert drift.mismatch_count == 0
    assert [each.claimed_count for each in drift.wrong] == [1_001]
    assert all(each.time_ms is not None for each in drift.reconciled)


def test_storage_says_who_holds_what_and_for_how_long(found: Facts) -> None:
    plan = found.plan
    assert plan is not None
    assert [(each.held_by, each.held_bytes, each.reclaimable_bytes) for each in plan.holders] == [
        ("reader", 700, 0),
        ("nothing", 0, 5_000),
    ]
    assert plan.held_by_age["1 h to 1 day"] == 700
    assert [each.session for each in plan.largest] == [33]


def test_documents_that_are_deleted_do_not_count(found: Facts) -> None:
    documents = found.documents
    assert documents is not None
    assert (documents.document_count, documents.totals["bytes_in"]) == (2, 4_196)
    assert documents.totals["mismatch_count"] == 1
    assert [each.name for each in documents.largest] == [HOSTILE, "plain"]
    assert [each.name for each in documents.wrong] == ["plain"]


def test_only_the_newest_run_of_a_plan_counts(root: Path) -> None:
    write(root, TRUNCATION_PLAN, [plan_row(1, "unread", run=9, held_bytes=5)])
    write(root, TRUNCATION_PLAN, [plan_row(1, "unread", run=10, held_bytes=7)])
    found = facts_of(root).plan
    assert found is not None
    assert (found.run, found.holders[0].held_bytes) == (10, 7)


def test_any_cut_into_pieces_gives_the_same(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As workers do it, but here: a fold is sent to them, and theirs are folded together."""

    def piecewise(_: object, spec: TableSpec, pieces: list[Any], fold: Fold) -> pa.Table:
        sent = cast(Fold, cloudpickle.loads(cast(Any, cloudpickle).dumps(fold)))
        parts = [folding._folded(spec, [piece], sent) for piece in reversed(pieces)]
        return fold.again(folding._joined([*parts, fold.schema.empty_table()]))

    monkeypatch.setattr(folding, "_folded_by_workers", piecewise)
    # Nothing is small enough to be read at once.
    reader = Reader(cast(SparkSession, object()), -1)
    assert gather(reader, gather_sources(full)) == facts_of(full)


def test_workers_of_spark_find_the_same(root: Path, spark: SparkSession) -> None:
    rows = [audit_row(at % 7, at % 50, [at, 2 * at], run=at % 3) for at in range(500)]
    write(root, DELIVERY_AUDIT, rows, row_group_size=64)
    version = Table(root, DELIVERY_AUDIT).version()
    names = ("hour_ms", "delivered", "p99_ms")
    schema = schema_of([pa.field(name, pa.int64()) for name in names])
    fold = summing(schema, names[:1], sums=names[1:2], highest=names[2:])

    def found(session: SparkSession | None) -> list[dict[str, Any]]:
        rows = Reader(session, 0).folded(DELIVERY_AUDIT, version, fold)
        return sorted(rows, key=lambda row: int(row["hour_ms"]))

    here = found(None)
    assert sum(row["delivered"] for row in here) == 1_000
    assert found(spark) == here
    broken = version.files[0].path
    content = bytearray(broken.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    broken.write_bytes(content)
    with pytest.raises(TableError, match="delivery_audit"):
        found(spark)


# -------------------------------------------------------------------------------------------- page


def test_numbers_on_the_page_are_those_of_the_tables(page: Page) -> None:
    assert page.row("2026-03-02 00:00") == [
        *("2026-03-02 00:00", "15", "15", "15", "0", "0", "3", "0", "0", "0"),
    ]
    assert page.row("All hours")[1:5] == ["25", "25", "23", "2"]
    assert ["plain", "yjs", "10", "10", "100 B", "1.0 KiB", "1", "1"] in page.rows
    assert ["lost", "stored, and never delivered to a reader that was to get it", "2"] in page.rows
    assert page.row("delivery_audit") == [
        *("delivery_audit", "2", "5", "numbers", "syncline pipeline lineage delivery_audit@2"),
    ]
    assert page.row("associations")[1] == "not there"
    assert any("Made at 2026-03-02 00:00:00 UTC." in each for each in page.words)


def test_names_from_outside_are_text_and_nothing_else(page: Page) -> None:
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "link")]
    assert "<script>" not in page.text
    shown = HOSTILE.replace("\u202e", "\ufffd")
    # As a document, as the stream of findings, and as the reason of a damaged place.
    assert sum(shown in each for each in page.words) >= 3
    assert len([tag for tag, _ in page.tags if tag == "style"]) == 1


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    assert "http" not in page.text.replace("HTTP", "")
    assert "@import" not in page.text
    ids = [about["id"] for _, about in page.tags if "id" in about]
    assert len(ids) == len(set(ids))
    for _, about in page.tags:
        assert not {"src", "srcset", "onload", "action"} & set(about)
        target = about.get("href")
        assert target is None or target.removeprefix("#") in ids
        for name in (about.get("aria-labelledby") or "").split():
            assert name in ids


def test_figures_can_be_read_aloud_and_follow_the_style(page: Page) -> None:
    drawings = [about for tag, about in page.tags if tag == "svg" and about.get("role") == "img"]
    assert len(drawings) == 12
    titles = [tag for tag, _ in page.tags if tag == "desc"]
    assert len(titles) == len(drawings)
    assert "Delivered" in page.words
    # Colours are those of the page, and so is the font.
    styles = [about.get("style") or "" for _, about in page.tags]
    assert not [each for each in styles if "#" in each or "font-family" in each]
    # Every table has a caption.
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table")


def test_the_same_tables_give_the_same_page(full: Path, page: Page) -> None:
    again = full.parent / "again.html"
    write_report(None, full, again)
    # Only when it was made is said by whoever makes it.
    assert again.read_text() == page.text.replace(" Made at 2026-03-02 00:00:00 UTC.", "")


def test_clocks_that_were_far_off_do_not_break_the_page(root: Path) -> None:
    # Further than any calendar goes, and back at the beginning.
    far = {"hour_ms": (1 << 47) - (1 << 47) % HOUR_MS, "day": None}
    rows = [audit_row(1, hour, TEN) for hour in range(40)]
    audited(root, [*rows, audit_row(1, 0, TEN, hour_ms=0), audit_row(2, 0, TEN, **far)], [])
    write(root, EVENTS, [{**event_row(1, None, length=9), "time_ms": (1 << 47) - 1}])
    facts, page = report_on(root)
    assert facts.state == "proved"
    assert any("by hour in which" in each and "; 2 far off in time" in each for each in page.words)
    assert page.row("All hours")[3] == "420"


# ------------------------------------------------------------------------------------------ broken


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("file", "cut off"),
        ("footer", "cannot be read"),
        ("commit", "cannot be read"),
        ("lineage", "commit of version 1 cannot be read"),
    ],
)
def test_a_table_that_cannot_be_read_is_an_error_and_no_page(
    root: Path, what: str, reason: str
) -> None:
    healthy(root)
    path = root.parent / "report.html"
    path.write_text("the page of yesterday")
    file = Table(root, DELIVERY_AUDIT).version().files[0].path
    match what:
        case "file":
            file.write_bytes(file.read_bytes()[:-9])
        case "footer":
            file.write_bytes(b"\0" * file.stat().st_size)
        case _:
            log = root / DELIVERY_AUDIT.name / LOG_NAME
            newest = max(log.glob("*.json"))
            old, new = (
                ("commitInfo", "commitInfo\\q")
                if what == "commit"
                else ('"syncline":"{', '"syncline":"[')
            )
            assert old in newest.read_text()
            newest.write_text(newest.read_text().replace(old, new))
    with pytest.raises(TableError, match="delivery_audit") as caught:
        write_report(None, root, path)
    assert reason in str(caught.value)
    assert path.read_text() == "the page of yesterday"
    assert [each.name for each in root.parent.iterdir() if each != root] == [path.name]


def test_a_page_that_cannot_be_written_leaves_nothing(root: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="elsewhere"):
        write_report(None, root, tmp_path / "elsewhere" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PipelineError, match="folder"):
        write_report(None, root, tmp_path / "folder")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "tables"]


def test_no_folder_of_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no folder"):
        write_report(None, tmp_path / "none", tmp_path / "report.html")


def test_small_tables_need_no_session(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy(root)
    assert not wants_session(root)
    monkeypatch.setattr("syncline.pipeline.report.folding.IN_PROCESS_BYTES_MAX", 100)
    assert wants_session(root)


def test_names_are_looked_up_for_the_streams_that_are_shown(found: Facts) -> None:
    assert found.names == {stream(1): HOSTILE, stream(2): "plain"}
    assert replace(found, names={}) != found
    assert found.sources[EVENTS.name].commits[0].inputs == {"<folder>": {"a": [1]}}
    assert STORE.hex().startswith("00010203")
