"""The kernel of the audit says what a plain reading of its rules says, in one piece or several."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from syncline.kernels import delivery_rows as codes
from syncline.kernels.delivery import Outcome, Rules
from syncline.kernels.delivery_tally import COUNTS, FAULTS
from tests.unit.kernels.delivery_histories import Log, compared, settled, told
from tests.unit.kernels.delivery_oracle import Row, judge
from tests.unit.kernels.delivery_router import Router

# Histories are long, and machines that run tests are not always quick.
pytestmark = pytest.mark.timeout(120)

MINUTE_MS = 60_000
RULES = Rules(late_ms=5_000, lost_after_ms=30 * MINUTE_MS, is_over=False)
OVER = Rules(late_ms=5_000, lost_after_ms=30 * MINUTE_MS, is_over=True)
DOCUMENTS = frozenset({1, 2})
START_MS = 1_700_000_000_000

STEPS_MS = (0, 1, 3, 40, 900, 2_000, 7_000, 10 * MINUTE_MS, 31 * MINUTE_MS)
ANYTHING = (
    *(codes.MESSAGE,) * 4,
    *(codes.DELIVERED,) * 4,
    *(codes.SUBSCRIBED,) * 2,
    *(codes.ACKNOWLEDGED,) * 2,
    *(codes.UNSUBSCRIBED, codes.EVICTED, codes.RESENT, codes.REPEATED, codes.EXPIRED),
    *(codes.PASSED, codes.DELETED, codes.MARKER),
)


def anything(random: Random) -> Log:
    """Rows that no router would write in such an order, but that stand in one."""
    rows: list[Row] = []
    starts: list[tuple[int, int]] = [(1, 0)]
    stretches: list[tuple[int, int, int]] = []
    place, now_ms, newest = 10, START_MS, START_MS
    seqs = dict.fromkeys(range(1, 5), 0)
    for _ in range(random.randint(1, 60)):
        place += random.choice((1, 7, 100))
        now_ms += random.choice((*STEPS_MS, -50))
        what = random.randint(0, 30)
        if what == 0:
            starts.append((place, newest))
            continue
        if what == 1:
            stretches.append((place, place + random.choice((0, 3)), newest))
            place += 5
            continue
        stream = random.randint(1, 4)
        code = random.choice(ANYTHING)
        face = 1 if stream in DOCUMENTS else 2
        session = random.choice((1, 2)) << 4 | face
        first, last, detail = random.randint(0, 6), random.randint(0, 6), random.choice((0, 0, 7))
        if code in (codes.MESSAGE, codes.MARKER):
            last = max(seqs[stream] + random.choice((1, 1, 1, 1, 1, 0, 2)), 1)
            seqs[stream] = max(last, seqs[stream])
        elif code in (codes.DELIVERED, codes.RESENT):
            last = first + random.choice((0, 0, 1, 2, -1, 90))
        elif code == codes.SUBSCRIBED:
            last = random.choice((0, 1))
        elif code == codes.DELETED:
            seqs[stream] = 0
        newest = max(newest, now_ms)
        rows.append(Row(stream, code, place, now_ms, session, first, max(last, 0), detail))
    is_branch = random.random() < 0.2
    return Log(tuple(rows), DOCUMENTS, tuple(starts), tuple(stretches), is_branch)


def check_against_oracle(log: Log, rules: Rules, block_rows: int) -> None:
    there = {row.stream for row in log.rows if row.code in (codes.MESSAGE, codes.MARKER)}
    readers = {row.stream for row in log.rows if row.code == codes.SUBSCRIBED}
    # Of a stream without entries or readers nobody knows what it is.
    rows = [row for row in log.rows if row.stream in there | readers]
    if rows:
        outcome = settled(rows, DOCUMENTS, log.facts(), rules, block_rows=block_rows)
        assert compared(told([outcome])) == compared(judge(rows, set(DOCUMENTS), log.book(rules)))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 64), st.booleans(), st.integers(1, 70))
def test_the_kernel_reads_the_rules_as_the_oracle_does(
    seed: int, is_over: bool, block_rows: int
) -> None:
    check_against_oracle(anything(Random(seed)), OVER if is_over else RULES, block_rows)


def run_in_pieces(log: Log, cuts: list[int], rules: Rules) -> list[Outcome]:
    """The log read up to each place in turn, and then to its end."""
    outcomes: list[Outcome] = []
    before: Log | None = None
    for cut in [*sorted(cuts), 1 << 60]:
        so_far = log.up_to(cut)
        new = [row for row in so_far.rows if before is None or row not in set(before.rows)]
        facts = so_far.facts(before)
        last = outcomes[-1] if outcomes else None
        if new or last is not None:
            outcomes.append(settled(new, log.documents, facts, rules, last))
            before = so_far
    return outcomes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 64), st.integers(10, 300))
def test_a_router_that_keeps_its_promises_has_no_faults(seed: int, step_count: int) -> None:
    log = Router(Random(seed)).go(step_count)
    found = told([settled(log.rows, log.documents, log.facts(), RULES)])
    assert not [key for key in found.findings if key[0] in FAULTS]
    assert not [key for key in found.counts if key[2] in ("lost", "duplicate")]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 64), st.integers(10, 200), st.booleans())
def test_a_router_that_breaks_them_is_found_out_as_the_oracle_says(
    seed: int, step_count: int, is_over: bool
) -> None:
    check_against_oracle(
        Router(Random(seed), breaks=True).go(step_count), OVER if is_over else RULES, 11
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 64), st.integers(10, 200), st.integers(1, 5))
def test_a_log_read_in_pieces_gives_what_one_reading_gives(
    seed: int, step_count: int, cut_count: int
) -> None:
    random = Random(seed)
    # That a stream was deleted where nobody saw it is learned later, and changes what was said.
    log = Router(random, breaks=True, dark_deletes=False).go(step_count)
    cuts = [random.randint(0, log.rows[-1].place + 1) for _ in range(cut_count)] if log.rows else []
    check_pieces(log, cuts)


def check_pieces(log: Log, cuts: list[int]) -> None:
    whole = told([settled(log.rows, log.documents, log.facts(), RULES)])
    assert compared(told(run_in_pieces(log, cuts, RULES))) == compared(whole)


# ------------------------------------------------------------------------------ planted, one by one

READER, OTHER = 1 << 4 | 1, 2 << 4 | 1


def healthy() -> list[Row]:
    """Two readers of a document, who get and acknowledge four updates; then both leave."""
    rows = [
        Row(1, codes.SUBSCRIBED, 10, START_MS, READER, 1, 1, 71),
        Row(1, codes.SUBSCRIBED, 11, START_MS, OTHER, 1, 0, 72),
    ]
    for seq in range(1, 5):
        at, ms = seq * 100, START_MS + seq * 1_000
        rows.append(Row(1, codes.MESSAGE, at, ms, last=seq, detail=70))
        for place, session in ((at + 1, READER), (at + 2, OTHER)):
            rows.append(Row(1, codes.DELIVERED, place, ms + 3, session, seq, seq))
        rows.append(Row(1, codes.ACKNOWLEDGED, at + 3, ms + 9, READER, last=seq))
    rows.append(Row(1, codes.UNSUBSCRIBED, 900, START_MS + 9_000, READER))
    rows.append(Row(1, codes.UNSUBSCRIBED, 901, START_MS + 9_000, OTHER))
    return rows


def without(rows: list[Row], *places: int) -> list[Row]:
    return [row for row in rows if row.place not in places]


DELIVERED_TWICE = Row(1, codes.DELIVERED, 350, START_MS + 3_500, OTHER, 3, 3)
TO_BE_SENT_AGAIN = Row(1, codes.RESENT, 349, START_MS + 3_500, OTHER, 3, 3)
PLANTED = {
    "nothing": (healthy(), {}),
    "a loss": (without(healthy(), 202), {("lost", OTHER, 2): 1}),
    "a loss that nothing follows": (without(healthy(), 402), {("interrupted", OTHER, 4): 1}),
    "what came when it had left, and was logged before that": (
        [
            *without(healthy(), 402, 901),
            Row(1, codes.UNSUBSCRIBED, 901, START_MS + 9_000, OTHER, last=3),
        ],
        {},
    ),
    "what came when it was evicted, and was logged before that": (
        [
            *without(healthy(), 402, 901),
            Row(1, codes.EVICTED, 901, START_MS + 9_000, OTHER, 3, 3),
        ],
        {("evicted", OTHER, 3): 1},
    ),
    "a loss that was acknowledged": (without(healthy(), 201), {}),
    "no acknowledgement": (without(healthy(), 403), {("unacknowledged", READER, 4): 1}),
    "a duplicate": ([*healthy(), DELIVERED_TWICE], {("duplicate", OTHER, 3): 1}),
    "sent again": (
        [*healthy(), TO_BE_SENT_AGAIN, DELIVERED_TWICE],
        {("resent", OTHER, 3): 1},
    ),
    "a gap": (
        without(healthy(), 200, 201, 202, 203),
        {("sequence_gap", -1, 2): 1},
    ),
    "late": (
        [row if row.place != 302 else row._replace(time_ms=START_MS + 8_001) for row in healthy()],
        {("late", OTHER, 3): 1},
    ),
    "when the wait was over": (
        [
            row if row.place != 302 else row._replace(time_ms=START_MS + 31 * MINUTE_MS)
            for row in healthy()
        ],
        {("lost", OTHER, 3): 1},
    ),
    "to its author": (
        [row if row.place != 300 else row._replace(detail=72) for row in healthy()],
        {("to_author", OTHER, 3): 1},
    ),
    "a receipt for its author": (
        [
            row._replace(detail=72)
            if row.place == 300
            else row._replace(detail=1)
            if row.place == 302
            else row
            for row in healthy()
        ],
        {},
    ),
    "after it left": (
        [*healthy(), Row(1, codes.DELIVERED, 950, START_MS + 9_500, OTHER, 4, 4)],
        {("after_unsubscribe", OTHER, 4): 1},
    ),
    "not stored": (
        [*healthy(), Row(1, codes.DELIVERED, 860, START_MS + 8_000, OTHER, 5, 5)],
        {("undurable", OTHER, 5): 1},
    ),
    "before its time": (
        [row if row.place != 11 else row._replace(first=2) for row in healthy()],
        {("unexpected", OTHER, 1): 1},
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found_and_nothing_else(what: str) -> None:
    rows, wanted = PLANTED[what]
    log = Log(tuple(sorted(rows, key=lambda row: row.place)), DOCUMENTS, ((1, 0),))
    found = told([settled(log.rows, DOCUMENTS, log.facts(), RULES)])
    assert {(rule, who, seq): n for (rule, _, who, seq), n in found.findings.items()} == wanted


def test_a_queue_has_one_reader_so_another_ends_its_span() -> None:
    first, second = 1 << 4 | 2, 2 << 4 | 2
    rows = (
        Row(3, codes.MESSAGE, 5, START_MS, last=1),
        Row(3, codes.SUBSCRIBED, 10, START_MS + 10, first),
        Row(3, codes.DELIVERED, 20, START_MS + 20, first, 1, 1),
        Row(3, codes.SUBSCRIBED, 30, START_MS + 30, second),
        Row(3, codes.DELIVERED, 40, START_MS + 40, second, 1, 1),
        # Whoever has lost the queue may fetch from it, as often as it likes.
        Row(3, codes.DELIVERED, 50, START_MS + 50, first, 1, 1),
        Row(3, codes.DELIVERED, 60, START_MS + 60, second, 1, 1),
    )
    log = Log(rows, DOCUMENTS, ((1, 0),))
    found = told([settled(log.rows, DOCUMENTS, log.facts(), RULES)])
    assert dict(found.findings) == {("duplicate", 3, second, 1): 1}
    assert found.took == {(3, START_MS // 3_600_000): [10]}
    assert found.waiting == 1


def test_what_is_not_known_is_not_called_lost() -> None:
    rows = tuple(without(healthy(), 202, 303))
    log = Log(rows, DOCUMENTS, ((1, 0),), ((310, 320, START_MS + 3_000),))
    found = told([settled(log.rows, DOCUMENTS, log.facts(), RULES)])
    assert not found.findings
    assert sum(n for key, n in found.counts.items() if key[2] == "unknown") == 1


HUGE = ((1 << 63) - 1, 1 << 62, 1 << 60, 0, 1, 3, 5, -1, -(1 << 63))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 64))
def test_no_numbers_make_it_work_long_or_fail(seed: int) -> None:
    """Whatever is in the rows: ranges of nothing and of everything, times and places far off."""
    random = Random(seed)
    rows = healthy() + [
        Row(
            random.randint(1, 4),
            random.choice((*ANYTHING, 0, 77)),
            random.choice((random.randint(0, 1_000), *HUGE)),
            random.choice((START_MS, *HUGE)),
            random.choice((READER, OTHER, *HUGE)),
            random.choice(HUGE),
            random.choice(HUGE),
            random.choice(HUGE),
        )
        for _ in range(30)
    ]
    log = Log(tuple(rows), DOCUMENTS, ((1, 0),), ((310, 320, START_MS + 3_000),))
    first = settled(rows, DOCUMENTS, log.facts(), RULES)
    again = settled(rows[:9], DOCUMENTS, log.facts(), OVER, first)
    for outcome in (first, again):
        counts = dict(zip(COUNTS, outcome.hours.counts.sum(axis=0).tolist(), strict=True))
        verdicts = ("delivered", "lost", "interrupted", "unknown")
        assert counts["expected"] == sum(counts[each] for each in verdicts)
        assert counts["expected"] < 2_000
