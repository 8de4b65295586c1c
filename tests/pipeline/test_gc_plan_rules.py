"""`gc-plan`, rule by rule: a stream for each, with what is planned for it spelled out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from syncline.core.tracker import LagRules
from syncline.pipeline.jobs.gc_plan import gc_plan
from syncline.values.events import EventKind
from tests.pipeline.event_tables import add_events
from tests.pipeline.routers import stream_id
from tests.pipeline.test_gc_plan import planned

RULES = LagRules()
# The newest time of the log.
NOW = 1_700_000_000_000
LONG_AGO = NOW - 10 * RULES.absolute_ms
# What is stored at once, each message of ten bytes.
SOON, LENGTH = NOW - 1_000, 10

Plan = tuple[Any, ...]


class Log:
    """Rows in the order in which they are told; each is of the stream that is at hand."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stream = bytes(stream_id(0))

    def add(self, kind: int, **values: Any) -> None:
        row = {"position": 64 * (len(self.rows) + 1), "kind": kind, "stream": self.stream}
        self.rows.append({**row, "time_ms": LONG_AGO, **values})

    def create(self, *, is_document: bool = True) -> None:
        self.add(3, flags=0x80 if is_document else 0, last=0, unread=0)

    def entries(self, *seqs: int, time_ms: int = SOON, flags: int | None = 0xA0) -> None:
        for seq in seqs:
            self.add(1, seq=seq, last=seq, unread=seq, time_ms=time_ms, flags=flags, length=LENGTH)

    def of_run(self, kind: int, *seqs: int) -> None:
        """A run says nothing of the stream."""
        for seq in seqs:
            self.add(kind, seq=seq, flags=None, time_ms=SOON, length=LENGTH)

    def snapshot(self, seq: int, last: int, truncated: int = 0) -> None:
        self.add(6, flags=0xA0, seq=seq, last=last, unread=last - truncated)

    def truncate(self, seq: int, last: int) -> None:
        self.add(5, flags=0, seq=seq, last=last, unread=last - seq)

    def event(
        self, kind: EventKind, session: int, last: int = 0, first: int = 0, time_ms: int = LONG_AGO
    ) -> None:
        told = {"event": int(kind), "session": session, "first": first, "seq": last}
        self.add(10, **told, time_ms=time_ms)

    def reader(self, session: int, acked: int, joined_ms: int = LONG_AGO) -> None:
        self.event(EventKind.SUBSCRIBED, session, 1, first=1, time_ms=joined_ms)
        self.event(EventKind.ACKNOWLEDGED, session, acked)


def document(log: Log, *, owed_ms: int = SOON) -> None:
    """Four updates, the second stored at `owed_ms`, and a snapshot of all of them."""
    log.create()
    log.entries(1, time_ms=LONG_AGO)
    log.entries(2, time_ms=owed_ms)
    log.entries(3, 4)
    log.snapshot(4, 4)


def held(safe: int, by: str, session: int | None, lag_ms: int | None, oldest_ms: int) -> Plan:
    """Of a document of four updates, of which nothing is truncated."""
    sums = (safe, safe * LENGTH, (4 - safe) * LENGTH)
    return True, 4, 0, safe, by, session, lag_ms, *sums, oldest_ms


FREE: Plan = (True, 4, 0, 4, "nothing", None, None, 4, 4 * LENGTH, 0, None)


# ----------------------------------------------------------------------------- readers of documents


def nobody_reads(log: Log) -> Plan:
    document(log)
    return FREE


def everybody_has_everything(log: Log) -> Plan:
    document(log, owed_ms=LONG_AGO)
    log.reader(1, 4)
    return FREE


def led_and_as_late_as_may_be(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.relative_ms)
    log.reader(1, 4)
    log.reader(2, 1)
    return held(1, "reader", 2, RULES.relative_ms, NOW - RULES.relative_ms)


def led_and_too_late(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.relative_ms - 1)
    log.reader(1, 4)
    log.reader(2, 1)
    return FREE


def late_and_led_by_nobody(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.relative_ms - 1)
    log.reader(2, 1)
    log.reader(1, 1)
    return held(1, "reader", 1, RULES.relative_ms + 1, NOW - RULES.relative_ms - 1)


def alone_and_as_late_as_may_be(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.absolute_ms)
    log.reader(1, 1)
    return held(1, "reader", 1, RULES.absolute_ms, NOW - RULES.absolute_ms)


def alone_and_too_late(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.absolute_ms - 1)
    log.reader(1, 1)
    return FREE


def came_when_it_was_stored_already(log: Log) -> Plan:
    document(log, owed_ms=NOW - RULES.absolute_ms - 1)
    log.reader(1, 4)
    log.reader(2, 1, joined_ms=NOW - 500)
    return held(1, "reader", 2, 500, NOW - RULES.absolute_ms - 1)


def the_furthest_behind_that_is_kept(log: Log) -> Plan:
    """The first has lost its place, the third is further."""
    log.create()
    log.entries(1, 2, time_ms=NOW - RULES.relative_ms - 1)
    log.entries(3, 4)
    log.snapshot(4, 4)
    for session, acked in ((3, 3), (1, 1), (2, 2)):
        log.reader(session, acked)
    return held(2, "reader", 2, 1_000, SOON)


def owes_one_that_is_not_in_the_log(log: Log) -> Plan:
    """The next one that is there was stored later than that."""
    log.create()
    log.entries(1, time_ms=LONG_AGO)
    log.entries(3, time_ms=NOW - 2_000)
    log.entries(4)
    log.snapshot(4, 4)
    log.reader(1, 1)
    return True, 4, 0, 1, "reader", 1, 2_000, 1, LENGTH, 2 * LENGTH, NOW - 2_000


def owes_one_behind_one_that_is_not_in_the_log(log: Log) -> Plan:
    log.create()
    log.entries(1, time_ms=LONG_AGO)
    log.entries(3, time_ms=NOW - 2_000)
    log.entries(4)
    log.snapshot(4, 4)
    log.reader(1, 3)
    return True, 4, 0, 3, "reader", 1, 1_000, 2, 2 * LENGTH, LENGTH, SOON


def of_whom_the_log_has_little(log: Log) -> Plan:
    """Neither when it came nor what it owes: it keeps its place."""
    log.snapshot(4, 4)
    log.event(EventKind.ACKNOWLEDGED, 1, 1)
    return True, 4, 0, 1, "reader", 1, 0, 0, 0, 0, None


def left(log: Log) -> Plan:
    document(log)
    log.reader(1, 1)
    log.event(EventKind.UNSUBSCRIBED, 1, 4)
    return FREE


def evicted(log: Log) -> Plan:
    document(log)
    log.reader(1, 1)
    log.event(EventKind.EVICTED, 1, 1, first=4)
    return FREE


def came_again_and_knows_less(log: Log) -> Plan:
    document(log)
    log.reader(1, 4)
    log.event(EventKind.SUBSCRIBED, 1, 1, first=3)
    return held(2, "reader", 1, 1_000, SOON)


def has_what_it_was_handed_if_it_never_acknowledges(log: Log) -> Plan:
    document(log)
    log.event(EventKind.DELIVERED, 1, 4, first=1)
    log.event(EventKind.SUBSCRIBED, 1, 0, first=1)
    log.event(EventKind.DELIVERED, 1, 3, first=1)
    return held(3, "reader", 1, 1_000, SOON)


def has_not_what_it_was_handed_before_it_came_again(log: Log) -> Plan:
    document(log)
    log.event(EventKind.DELIVERED, 1, 3, first=1)
    log.event(EventKind.SUBSCRIBED, 1, 0, first=2)
    return held(1, "reader", 1, 1_000, SOON)


def has_not_what_it_was_handed_if_it_acknowledges(log: Log) -> Plan:
    document(log)
    log.event(EventKind.SUBSCRIBED, 1, 1, first=2)
    log.event(EventKind.DELIVERED, 1, 3, first=2)
    return held(1, "reader", 1, 1_000, SOON)


# -------------------------------------------------------------------------- snapshots of documents


def without_a_snapshot(log: Log) -> Plan:
    log.create()
    log.entries(1, 2, 3, 4)
    return held(0, "snapshot", None, None, SOON)


def between_the_snapshot_and_the_head(log: Log) -> Plan:
    """A reader holds nothing that no snapshot covers."""
    log.create()
    log.entries(1, 2, 3, 4)
    log.snapshot(2, 4)
    log.reader(1, 3)
    return held(2, "snapshot", None, None, SOON)


def at_the_snapshot(log: Log) -> Plan:
    log.create()
    log.entries(1, 2, 3, 4)
    log.snapshot(2, 4)
    log.reader(1, 2)
    return held(2, "snapshot", None, None, SOON)


def behind_what_is_truncated(log: Log) -> Plan:
    document(log)
    log.truncate(2, 4)
    log.reader(1, 0)
    return True, 4, 2, 2, "reader", 1, 1_000, 0, 0, 2 * LENGTH, SOON


def an_older_snapshot_comes_last(log: Log) -> Plan:
    """A router may log it behind a newer one's updates; the furthest counts."""
    document(log)
    log.snapshot(2, 4)
    return FREE


def of_a_run_beyond_all_that_is_there(log: Log) -> Plan:
    """Updates are missing between: no more than the last one may go."""
    log.of_run(1, 3, 4)
    log.of_run(6, 6)
    return True, 4, 2, 4, "nothing", None, None, 2, 2 * LENGTH, 0, None


# ------------------------------------------------------------------------------------------ queues


def queue(log: Log, *seqs: int) -> None:
    log.create(is_document=False)
    log.entries(*seqs, flags=0)


def a_queue_that_nobody_reads(log: Log) -> Plan:
    queue(log, 1, 2, 3)
    return False, 3, 0, 0, "unread", None, None, 0, 0, 3 * LENGTH, SOON


def acknowledged_and_not_let_go_of(log: Log) -> Plan:
    queue(log, 1, 2, 3)
    log.event(EventKind.ACKNOWLEDGED, 1, 2)
    return False, 3, 0, 2, "unread", None, None, 2, 2 * LENGTH, LENGTH, SOON


def acknowledged_and_let_go_of(log: Log) -> Plan:
    queue(log, 1, 2, 3)
    log.event(EventKind.ACKNOWLEDGED, 1, 1)
    log.truncate(2, 3)
    return False, 3, 2, 2, "unread", None, None, 0, 0, LENGTH, SOON


def expired(log: Log) -> Plan:
    queue(log, 1, 2)
    log.event(EventKind.EXPIRED, 0, 2)
    return False, 2, 0, 2, "nothing", None, None, 2, 2 * LENGTH, 0, None


def acknowledged_beyond_its_head(log: Log) -> Plan:
    """The rest of it is not in the log."""
    queue(log, 1, 2)
    log.event(EventKind.ACKNOWLEDGED, 1, 9)
    return False, 2, 0, 2, "nothing", None, None, 2, 2 * LENGTH, 0, None


def a_mark_of_a_full_queue_is_an_entry(log: Log) -> Plan:
    queue(log, 1)
    log.add(2, seq=2, last=2, unread=2, flags=0, time_ms=SOON)
    log.event(EventKind.ACKNOWLEDGED, 1, 1)
    return False, 2, 0, 1, "unread", None, None, 1, LENGTH, 0, SOON


def made_anew(log: Log) -> Plan:
    """Neither messages nor acknowledgements of the one before count."""
    queue(log, 1, 2, 3, 4)
    log.event(EventKind.ACKNOWLEDGED, 1, 4)
    log.add(4, flags=0, last=4, unread=0)
    queue(log, 1, 2)
    return False, 2, 0, 0, "unread", None, None, 0, 0, 2 * LENGTH, SOON


def of_a_run_alone(log: Log) -> Plan:
    """What a run has is what is still wanted."""
    log.of_run(1, 3, 4)
    return False, 4, 2, 2, "unread", None, None, 0, 0, 2 * LENGTH, SOON


def of_a_run_and_acknowledged(log: Log) -> Plan:
    log.of_run(1, 3, 4)
    log.event(EventKind.ACKNOWLEDGED, 1, 3)
    return False, 4, 2, 3, "unread", None, None, 1, LENGTH, LENGTH, SOON


def that_says_what_it_is_behind_rows_of_a_run(log: Log) -> Plan:
    log.entries(1, 2, flags=0xA0)
    log.of_run(1, 3)
    return True, 2, 0, 0, "snapshot", None, None, 0, 0, 3 * LENGTH, SOON


CASES: list[Callable[[Log], Plan]] = [
    nobody_reads,
    everybody_has_everything,
    led_and_as_late_as_may_be,
    led_and_too_late,
    late_and_led_by_nobody,
    alone_and_as_late_as_may_be,
    alone_and_too_late,
    came_when_it_was_stored_already,
    the_furthest_behind_that_is_kept,
    owes_one_that_is_not_in_the_log,
    owes_one_behind_one_that_is_not_in_the_log,
    of_whom_the_log_has_little,
    left,
    evicted,
    came_again_and_knows_less,
    has_what_it_was_handed_if_it_never_acknowledges,
    has_not_what_it_was_handed_before_it_came_again,
    has_not_what_it_was_handed_if_it_acknowledges,
    without_a_snapshot,
    between_the_snapshot_and_the_head,
    at_the_snapshot,
    behind_what_is_truncated,
    an_older_snapshot_comes_last,
    of_a_run_beyond_all_that_is_there,
    a_queue_that_nobody_reads,
    acknowledged_and_not_let_go_of,
    acknowledged_and_let_go_of,
    expired,
    acknowledged_beyond_its_head,
    a_mark_of_a_full_queue_is_an_entry,
    made_anew,
    of_a_run_alone,
    of_a_run_and_acknowledged,
    that_says_what_it_is_behind_rows_of_a_run,
]


def all_cases() -> tuple[Log, dict[bytes, tuple[str, Plan]]]:
    """Some that are gone, and readers of before the start, come first; the newest time last."""
    log = Log()
    log.stream = bytes(stream_id(100))
    queue(log, 1)
    log.add(4, flags=0, last=1, unread=1)
    log.stream = bytes(stream_id(102))
    document(log)
    log.reader(1, 1)
    expected = {log.stream: ("readers of before the last start", FREE)}
    log.add(10, stream=None, event=int(EventKind.STARTED), session=0, first=0, seq=0)
    # Of this one nobody knows how far it goes.
    log.stream = bytes(stream_id(101))
    log.event(EventKind.ACKNOWLEDGED, 1, 1)
    for number, case in enumerate(CASES, 1):
        log.stream = bytes(stream_id(number))
        expected[log.stream] = (case.__name__, case(log))
    log.add(10, stream=None, event=int(EventKind.CONNECTED), session=9, time_ms=NOW)
    return log, expected


def test_every_rule_decides_where_it_should(spark: SparkSession, tmp_path: Path) -> None:
    log, expected = all_cases()
    add_events(tmp_path, log.rows, file_count=2)
    gc_plan(spark, tmp_path)
    found = planned(spark, tmp_path)
    assert {expected[stream][0]: plan for stream, plan in found.items()} == dict(expected.values())
