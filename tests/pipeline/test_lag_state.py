"""What `lag` says of readers is what the router's own rules say, however the log is cut."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.core.tracker import MARK_MS, LagRules
from syncline.errors import CorruptionError, PipelineError
from syncline.pipeline.lag_checkpoint import LagCheckpoint
from syncline.pipeline.lag_state import Head, HealthRow, LagState, LogRow, Marks, Rule
from syncline.values.events import EventKind
from tests.pipeline.lag_histories import (
    OTHER_STORE,
    START_MS,
    STORE,
    History,
    document,
    judged,
    session,
)

RULES = LagRules()
STEPS_MS = (0, 1, 50, 99, 100, 101, 5_000, 29_999, 30_001, 600_000, 1_800_001)
Latest = dict[tuple[bytes, int], HealthRow]


def random_history(chance: random.Random, row_count: int) -> list[LogRow]:
    history = History()
    kinds = ["message"] * 6 + ["subscribe"] * 3 + ["acknowledge"] * 5
    kinds += ["unsubscribe", "evict", "queue", "passive"]
    rare = ["start", "delete", "dropped", "gap"]
    while len(history.rows) < row_count:
        history.wait(chance.choice(STEPS_MS))
        stream, who = document(chance.randrange(1, 4)), session(chance.randrange(1, 5))
        head = history.heads.get(stream, 0)
        match chance.choice(rare if chance.random() < 0.04 else kinds):
            case "message":
                for _ in range(chance.randrange(1, 4)):
                    history.message(stream)
            case "subscribe":
                place = head if chance.random() < 0.5 else chance.randint(0, head)
                history.subscribe(stream, who, place + 1)
            case "passive":
                history.subscribe(stream, who, head + 1, acknowledges=False)
            case "acknowledge":
                history.acknowledge(stream, who, chance.randint(0, head))
            case "unsubscribe":
                history.unsubscribe(stream, who)
            case "evict":
                history.event(EventKind.EVICTED, stream, who, seq=head)
            case "queue":
                history.message(document(9), flags=0)
                history.subscribe(document(9), session(1, face=2), 1)
            case "start":
                history.event(EventKind.STARTED)
            case "delete":
                # Whoever reads it is told first.
                for number in range(1, 5):
                    history.unsubscribe(stream, session(number))
                history.delete(stream)
            case "dropped":
                history.event(EventKind.DROPPED, first=3)
            case _:
                history.gap()
    return history.rows


def cut(chance: random.Random, rows: list[LogRow]) -> list[list[LogRow]]:
    parts: list[list[LogRow]] = []
    at = 0
    while at < len(rows):
        size = chance.choice((1, 2, 7, 40))
        parts.append(rows[at : at + size])
        at += size
    return parts


def latest(told: list[HealthRow], before: Latest) -> Latest:
    return before | {(row.store, row.joined_position): row for row in told}


@given(seed=st.integers(0, 2**32), row_count=st.integers(1, 120))
def test_verdicts_are_those_of_the_routers_rules_at_every_cut(seed: int, row_count: int) -> None:
    chance = random.Random(seed)
    rows = random_history(chance, row_count)
    state = LagState(RULES, row_ms=0)
    known: Latest = {}
    count = 0
    for part in cut(chance, rows):
        count += len(part)
        known = latest(state.fold(part, {}), known)
        expected = judged(rows[:count], RULES)
        there = {key: row for key, row in known.items() if row.rule != Rule.GONE}
        assert there.keys() == expected.keys()
        for key, row in there.items():
            verdict = expected[key]
            assert (row.rule, row.acked_seq, row.head_seq) == (
                verdict.rule,
                verdict.acked,
                verdict.head,
            )
            # Beyond the absolute rule marks are put together.
            is_exact = verdict.lag_ms <= RULES.absolute_ms
            if is_exact and row.as_of_ms == max(each.time_ms or 0 for each in rows[:count]):
                assert row.lag_ms == verdict.lag_ms
        rules = [each.rule for each in expected.values()]
        counts = state.counts()
        assert counts.consumer_count == len(rules)
        assert counts.relative_count == rules.count("relative")
        assert counts.absolute_count == rules.count("absolute")
        assert counts.unknown_count == rules.count("unknown")


@given(seed=st.integers(0, 2**32))
def test_a_state_that_was_stored_goes_on_as_if_it_had_not_been(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("state")
    kept = LagState(RULES, row_ms=5_000)
    for batch, part in enumerate(cut(chance, random_history(chance, 80))):
        stored = LagCheckpoint(folder, RULES, 5_000).before("query", batch)
        again = LagCheckpoint(folder, RULES, 5_000).before("query", batch)
        told = stored.fold(part, {STORE: START_MS})
        assert told == kept.fold(part, {STORE: START_MS})
        # A batch that is repeated tells the same.
        assert told == again.fold(part, {STORE: START_MS})
        LagCheckpoint(folder, RULES, 5_000).save("query", batch, stored)
    assert len(list(folder.iterdir())) <= 2


def two_readers() -> History:
    """One that keeps up, and one that stands still."""
    history = History()
    history.subscribe(document(1), session(1), 1)
    history.subscribe(document(1), session(2), 1)
    history.message(document(1))
    history.acknowledge(document(1), session(1), 1)
    return history


def rules_of(told: list[HealthRow]) -> dict[int, str]:
    return {row.session >> 4: row.rule for row in told}


def test_a_reader_falls_behind_by_time_alone() -> None:
    history = two_readers()
    state = LagState(RULES, row_ms=0)
    assert rules_of(state.fold(history.rows, {})) == {1: "healthy", 2: "healthy"}
    # Nothing is heard of the document; the log has moved on.
    assert state.fold([], {STORE: history.now_ms + 30_000}) == []
    assert rules_of(state.fold([], {STORE: history.now_ms + 30_001})) == {2: "relative"}
    assert rules_of(state.fold([], {STORE: history.now_ms + 1_800_001})) == {2: "absolute"}


def test_alone_behind_nobody_is_absolute_only() -> None:
    history = History()
    history.subscribe(document(1), session(2), 1)
    history.message(document(1))
    state = LagState(RULES, row_ms=0)
    state.fold(history.rows, {})
    assert state.fold([], {STORE: history.now_ms + 1_800_000}) == []
    assert rules_of(state.fold([], {STORE: history.now_ms + 1_800_001})) == {2: "absolute"}


def test_the_rules_can_be_others() -> None:
    history = two_readers()
    state = LagState(LagRules(1_000, 2_000), row_ms=0)
    state.fold(history.rows, {})
    assert rules_of(state.fold([], {STORE: history.now_ms + 1_001})) == {2: "relative"}
    assert rules_of(state.fold([], {STORE: history.now_ms + 2_001})) == {2: "absolute"}


def test_each_log_has_its_own_time() -> None:
    history, other = two_readers(), History(OTHER_STORE)
    other.wait(3_600_000)
    other.message(document(1))
    state = LagState(RULES, row_ms=0)
    assert rules_of(state.fold(history.rows + other.rows, {})) == {1: "healthy", 2: "healthy"}


def test_behind_a_missing_stretch_a_reader_is_unknown_until_it_is_heard_of() -> None:
    history = two_readers()
    history.wait(60_000)
    history.gap()
    state = LagState(RULES, row_ms=0)
    assert rules_of(state.fold(history.rows, {})) == {1: "unknown", 2: "unknown"}
    history.rows.clear()
    history.message(document(1))
    history.acknowledge(document(1), session(1), 1)
    history.acknowledge(document(1), session(3), 2)
    told = rules_of(state.fold(history.rows, {}))
    assert told == {1: "healthy", 2: "unknown", 3: "healthy"}
    assert state.counts().unknown_count == 1
    assert state.counts().consumer_count == 3


def test_a_restored_log_ends_the_readers_of_the_one_before_it() -> None:
    history, restored = two_readers(), History(OTHER_STORE)
    restored.event(EventKind.STARTED, STORE + bytes(8), first=70_000)
    state = LagState(RULES, row_ms=0)
    state.fold(history.rows, {})
    assert rules_of(state.fold(restored.rows, {})) == {1: "gone", 2: "gone"}
    assert state.counts().consumer_count == 0


def test_rows_of_one_reader_do_not_come_more_often_than_asked_for() -> None:
    history = History()
    history.subscribe(document(1), session(1), 1)
    state = LagState(RULES, row_ms=10_000)
    told = state.fold(history.rows, {})
    for _ in range(30):
        history.rows.clear()
        history.wait(1_000)
        history.acknowledge(document(1), session(1), history.message(document(1)))
        told += state.fold(history.rows, {})
    assert [row.as_of_ms - START_MS for row in told] == [0, 10_000, 20_000, 30_000]
    # What it said last holds once it is quiet.
    history.rows.clear()
    history.wait(1_000)
    history.acknowledge(document(1), session(1), history.message(document(1)))
    assert state.fold(history.rows, {}) == []
    assert [row.acked_seq for row in state.fold([], {STORE: history.now_ms + 9_000})] == [31]


def test_of_a_reader_that_is_not_well_there_are_rows_while_time_goes_by() -> None:
    history = two_readers()
    state = LagState(RULES, row_ms=10_000)
    state.fold(history.rows, {})
    told: list[HealthRow] = []
    for second in range(1, 60):
        told += state.fold([], {STORE: history.now_ms + 1_000 * second})
    assert [(row.rule, row.lag_ms) for row in told] == [
        ("relative", 31_000),
        ("relative", 41_000),
        ("relative", 51_000),
    ]


@pytest.mark.parametrize(("then_ms", "lag_ms"), [(35, 35), (45, 0)])
def test_stretches_go_on_from_before_there_was_a_reader(then_ms: int, lag_ms: int) -> None:
    history = History()
    history.message(document(1))
    history.wait(50)
    history.message(document(1))
    history.wait(10)
    history.subscribe(document(1), session(1), 3)
    history.wait(then_ms)
    history.message(document(1))
    state = LagState(RULES, row_ms=0)
    (row,) = state.fold(history.rows, {})
    assert row.lag_ms == lag_ms == judged(history.rows, RULES)[STORE, row.joined_position].lag_ms


def test_times_that_go_back_break_nothing() -> None:
    history = two_readers()
    history.wait(-3_600_000)
    history.subscribe(document(1), session(3), 2)
    history.message(document(1))
    history.message(document(2))
    state = LagState(RULES, row_ms=0)
    told = state.fold(history.rows, {})
    assert all(row.lag_ms >= 0 for row in told)
    assert {row.as_of_ms for row in told} == {START_MS}


def test_marks_of_a_reader_that_stands_still_are_bounded() -> None:
    history = History()
    history.subscribe(document(1), session(1), 1)
    state = LagState(LagRules(1_000, 60_000), row_ms=0)
    for _ in range(50):
        for _ in range(100):
            history.wait(MARK_MS)
            history.message(document(1))
        state.fold(history.rows, {})
        history.rows.clear()
    marks = state.logs[STORE].documents[document(1)].marks
    assert len(marks) <= 60_000 // MARK_MS + 3
    # The first that it owes is still known.
    assert marks.time_of(1) == START_MS + MARK_MS


def test_of_documents_without_readers_only_the_head_is_kept() -> None:
    history = two_readers()
    for number in (1, 2):
        history.unsubscribe(document(1), session(number))
    # Of a queue, and of what a run has without saying what it is, nothing.
    history.message(document(2), flags=0)
    history.message(document(3), flags=None)
    state = LagState(RULES, row_ms=0)
    state.fold(history.rows, {})
    log = state.logs[STORE]
    assert not log.documents
    assert not log.restless
    assert log.heads == {document(1): Head(1, 1, START_MS)}


def test_marks_that_are_stored_make_the_same_timeline() -> None:
    marks, again = Marks(), Marks()
    for seq in range(1, 50):
        marks.add(seq, seq * 37)
    for seq, time_ms in marks.pairs:
        again.add(seq, time_ms)
    assert again.pairs == marks.pairs


def test_a_state_that_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    checkpoint = LagCheckpoint(tmp_path, RULES, 0)
    with pytest.raises(PipelineError, match="missing"):
        checkpoint.before("query", 1)
    checkpoint.save("query", 0, LagState(RULES, 0))
    with pytest.raises(PipelineError, match="another query"):
        LagCheckpoint(tmp_path, RULES, 0).before("other", 1)
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        LagCheckpoint(tmp_path, RULES, 0).before("query", 1)
