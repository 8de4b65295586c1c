"""`gc-plan`: what the router's own rules let go of, and who holds the rest."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from syncline.cli import keeping
from syncline.core.tracker import LagRules, Offset, Timeline, is_too_far_behind, lag_ms
from syncline.errors import TableError
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.gc_plan import gc_plan, log_facts, truncation_plan
from syncline.pipeline.jobs.ingest import ingest
from syncline.pipeline.schemas import EVENTS, TRUNCATION_PLAN
from syncline.pipeline.sources.folders import Tail
from syncline.pipeline.tables import Table
from syncline.server.events import note_start
from syncline.storage.base import StreamKind, commit
from syncline.storage.life import log_id, read_lives
from syncline.values.events import EventKind, encode_event
from tests.pipeline.event_tables import add_events
from tests.pipeline.routers import Router, stream_id

RULES = LagRules()
PLANNED = (
    "is_document",
    "head_seq",
    "truncated_seq",
    "safe_seq",
    "held_by",
    "session",
    "lag_ms",
    "reclaimable_count",
    "reclaimable_bytes",
    "held_bytes",
    "oldest_held_ms",
)


class Reader(Offset):
    """One that is subscribed now."""

    acknowledges: bool = True


class Stream:
    """What is true of a stream, kept as a router keeps it."""

    def __init__(self, *, is_document: bool) -> None:
        self.is_document = is_document
        self.entries: dict[int, tuple[int, int]] = {}
        self.last = self.truncated = self.acknowledged = 0
        self.snapshot_seq = 0
        self.readers: dict[int, Reader] = {}
        self.timeline = Timeline()

    def plan(self, now_ms: int) -> tuple[Any, ...]:
        """By the router's own rules, one reader after the other."""
        holder: tuple[int, int, int] | None = None
        if self.is_document:
            everybody = list(self.readers.values())
            lags = {
                session: lag_ms(reader, self.last, self.timeline, now_ms)
                for session, reader in self.readers.items()
            }
            holder = min(
                (
                    (reader.acked, session, lags[session])
                    for session, reader in self.readers.items()
                    if not is_too_far_behind(reader, everybody, lags[session], RULES)
                ),
                default=None,
            )
            lowest = self.snapshot_seq if holder is None else min(self.snapshot_seq, holder[0])
            safe = max(self.truncated, lowest)
        else:
            safe = max(self.truncated, self.acknowledged)
        held = {seq: entry for seq, entry in self.entries.items() if seq > safe}
        gone = {seq: e for seq, e in self.entries.items() if self.truncated < seq <= safe}
        held_by = "nothing"
        if self.last > safe:
            held_by = "unread"
            if self.is_document:
                is_reader = holder is not None and holder[0] < self.snapshot_seq
                held_by = "reader" if is_reader else "snapshot"
        by_reader = held_by == "reader" and holder is not None
        return (
            self.is_document,
            self.last,
            self.truncated,
            safe,
            held_by,
            holder[1] if by_reader and holder else None,
            holder[2] if by_reader and holder else None,
            len(gone),
            sum(length for length, _ in gone.values()),
            sum(length for length, _ in held.values()),
            held[min(held)][1] if held else None,
        )


class World:
    """Streams of one log at random, as rows; every so often the router starts anew."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows: list[dict[str, Any]] = []
        self.streams: dict[int, Stream] = {}
        self.now_ms = 1_700_000_000_000
        self._position = 0

    def go_on(self, step_count: int) -> None:
        for _ in range(step_count):
            self.now_ms += self.chance.choice([100, 2_000, 15_000])
            number = self.chance.randrange(20)
            stream = self.streams.get(number)
            if stream is None:
                self._create(number)
                continue
            what = self.chance.randrange(100)
            if what == 0:
                self._add(number, 4, flags=0, last=stream.last, unread=0)
                for session in list(stream.readers):
                    self._event(number, EventKind.UNSUBSCRIBED, session)
                del self.streams[number]
            elif what == 1 and self.chance.random() < 0.3:
                self._event(None, EventKind.STARTED, 0)
                for each in self.streams.values():
                    each.readers.clear()
            elif what < 50:
                self._append(number, stream)
            elif stream.is_document:
                self._document(number, stream)
            else:
                self._queue(number, stream)

    def _create(self, number: int) -> None:
        stream = self.streams[number] = Stream(is_document=bool(self.chance.randrange(3)))
        flags = 0x80 if stream.is_document else 0
        self._add(number, 3, flags=flags, last=0, unread=0)
        if stream.is_document:
            self._snapshot(number, stream)

    def _append(self, number: int, stream: Stream) -> None:
        stream.last += 1
        length = self.chance.randrange(200)
        stream.entries[stream.last] = (length, self.now_ms)
        stream.timeline.add(stream.last, self.now_ms)
        flags = 0xA0 if stream.is_document else 0
        seq = stream.last
        self._add(number, 1, flags=flags, seq=seq, length=length, **self._state(stream))

    def _state(self, stream: Stream) -> dict[str, int]:
        return {"last": stream.last, "unread": stream.last - stream.truncated}

    def _queue(self, number: int, stream: Stream) -> None:
        if stream.acknowledged < stream.last:
            stream.acknowledged += 1
            self._event(number, EventKind.ACKNOWLEDGED, 0x12, last=stream.acknowledged)
        if self.chance.random() < 0.5:
            self._truncate(number, stream, stream.acknowledged)

    def _truncate(self, number: int, stream: Stream, up_to: int) -> None:
        stream.truncated = max(stream.truncated, up_to)
        self._add(number, 5, flags=0, seq=stream.truncated, **self._state(stream))

    def _snapshot(self, number: int, stream: Stream) -> None:
        stream.snapshot_seq = stream.last
        self._add(number, 6, flags=0xA0, seq=stream.last, length=50, **self._state(stream))

    def _document(self, number: int, stream: Stream) -> None:
        match self.chance.randrange(8):
            case 0:
                self._snapshot(number, stream)
            case 1:
                floor = min([stream.snapshot_seq, *(r.acked for r in stream.readers.values())])
                if self.chance.random() < 0.3:
                    self._truncate(number, stream, floor)
            case 2 | 3:
                session = self.chance.randrange(1, 5) << 4 | 1
                if session in stream.readers:
                    kind = self.chance.choice([EventKind.UNSUBSCRIBED, EventKind.EVICTED])
                    self._event(number, kind, session)
                    del stream.readers[session]
                else:
                    # It may know less than before.
                    place = self.chance.randrange(stream.truncated, stream.last + 1)
                    reader = stream.readers[session] = Reader(place, self.now_ms)
                    reader.acknowledges = self.chance.random() < 0.7
                    told = {"first": place + 1, "last": int(reader.acknowledges)}
                    self._event(number, EventKind.SUBSCRIBED, session, **told)
            case _ if stream.readers:
                session = self.chance.choice(list(stream.readers))
                reader = stream.readers[session]
                if reader.acked < stream.last:
                    place = self.chance.randrange(reader.acked, stream.last) + 1
                    told = {"first": reader.acked + 1, "last": place}
                    self._event(number, EventKind.DELIVERED, session, **told)
                    if not reader.acknowledges:
                        reader.acked = place
                    elif self.chance.random() < 0.6:
                        reader.acked = place
                        self._event(number, EventKind.ACKNOWLEDGED, session, last=place)
            case _:
                pass

    def _add(self, number: int | None, kind: int, **values: Any) -> None:
        self._position += 64
        stream = None if number is None else bytes(stream_id(number))
        row = {"position": self._position, "kind": kind, "stream": stream, "time_ms": self.now_ms}
        self.rows.append({**row, **values})

    def _event(self, number: int | None, event: int, session: int, **values: int) -> None:
        told = {"first": values.get("first", 0), "seq": values.get("last", 0), "detail": 0}
        self._add(number, 10, event=int(event), session=session, **told)


def planned_by_log(spark: SparkSession, tables: Path) -> dict[bytes, dict[bytes, tuple[Any, ...]]]:
    version = Table(tables, TRUNCATION_PLAN).version()
    assert len({each.partition["run"] for each in version.files}) <= 1
    rows = read_version(spark, TRUNCATION_PLAN, version).collect()
    found: dict[bytes, dict[bytes, tuple[Any, ...]]] = {}
    for row in rows:
        plan = tuple(row[name] for name in PLANNED)
        found.setdefault(bytes(row.store), {})[bytes(row.stream)] = plan
    assert sum(map(len, found.values())) == len(rows)
    return found


def planned(spark: SparkSession, tables: Path) -> dict[bytes, tuple[Any, ...]]:
    """Of one log."""
    (found,) = planned_by_log(spark, tables).values()
    return found


def test_a_plan_is_what_the_routers_rules_give_stream_by_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(7)
    tables = tmp_path / "tables"
    holders: set[str] = set()
    for turn in (1, 2):
        count = len(world.rows)
        world.go_on(1_500)
        add_events(tables, world.rows[count:], file_count=3)
        report = gc_plan(spark, tables)
        expected = {
            bytes(stream_id(number)): stream.plan(world.now_ms)
            for number, stream in world.streams.items()
        }
        found = planned(spark, tables)
        assert found == expected
        assert (report.run, report.version, report.is_new) == (turn, turn, True)
        assert report.stream_count == len(expected)
        assert report.reclaimable_count == sum(plan[7] for plan in expected.values())
        assert report.reclaimable_bytes == sum(plan[8] for plan in expected.values())
        assert report.held_bytes == sum(plan[9] for plan in expected.values())
        holders |= {plan[4] for plan in expected.values()}
    assert holders >= {"reader", "snapshot", "unread"}
    assert not gc_plan(spark, tables).is_new


def test_rows_are_shuffled_once_and_facts_of_logs_once(spark: SparkSession, tmp_path: Path) -> None:
    add_events(tmp_path, [{"position": 1, "kind": 1, "stream": b"s" * 24, "seq": 1}])
    rows = read_version(spark, EVENTS, Table(tmp_path, EVENTS).version())
    frame = truncation_plan(rows, log_facts(rows), RULES)
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    # A row for each log, and the rows of the streams.
    assert plan.count("Exchange hashpartitioning(store#") == 2
    assert plan.count("REPARTITION_BY_COL") == 1
    assert "SortMergeJoin" not in plan


def test_no_table_is_named_and_an_empty_one_gives_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TableError, match="events"):
        gc_plan(spark, tmp_path / "nowhere")
    add_events(tmp_path, [], file_count=0)
    report = gc_plan(spark, tmp_path)
    assert (report.stream_count, report.reclaimable_bytes, report.held_bytes) == (0, 0, 0)


def test_what_a_store_wrote_is_planned_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    router = Router(tmp_path / "data")
    router.create(1, 2)
    router.create(9, kind=StreamKind.DOCUMENT)
    router.append(1, 10, 100)
    router.acknowledge(1, 4)
    router.append(9, 8, 50)
    router.store.put_snapshot(stream_id(9), 6, b"state", router.now_ms)
    session = 3 << 4 | 1
    for event in _reader_at(router, session, 2):
        router.store.note_event(event)
    commit(router.store)
    router.append(2, 3, 10)
    router.acknowledge(2, 3)
    router.append(1, 1, 100)
    tables = tmp_path / "tables"
    ingest(spark, tables, [router.folder], tail=Tail.DURABLE)
    gc_plan(spark, tables)
    found = planned(spark, tables)
    assert found[stream_id(1)][:5] == (False, 10, 4, 4, "unread")
    assert found[stream_id(1)][7:10] == (0, 0, 600)
    assert found[stream_id(2)][:5] == (False, 3, 3, 3, "nothing")
    assert found[stream_id(9)][:6] == (True, 8, 0, 2, "reader", session)
    assert found[stream_id(9)][7:10] == (2, 100, 300)
    router.stop()


def _reader_at(router: Router, session: int, acked: int) -> Iterator[bytes]:
    stream = stream_id(9)
    yield encode_event(EventKind.SUBSCRIBED, router.now_ms, stream, session, 1, 1)
    yield encode_event(EventKind.DELIVERED, router.now_ms, stream, session, 1, 8)
    yield encode_event(EventKind.ACKNOWLEDGED, router.now_ms, stream, session, 0, acked)


class Restored:
    """A router whose backup was restored, while its own folder went on without what that wrote."""

    def __init__(self, folder: Path) -> None:
        first = Router(folder / "data")
        note_start(first.store, first.now_ms)
        first.create(1, 2, 3)
        first.create(9, kind=StreamKind.DOCUMENT)
        first.append(1, 10, 100)
        first.acknowledge(1, 4)
        for number in (2, 3):
            first.append(number, 2, 10)
        first.append(9, 8, 50)
        first.store.put_snapshot(stream_id(9), 6, b"state", first.now_ms)
        for event in _reader_at(first, 3 << 4 | 1, 2):
            first.store.note_event(event)
        commit(first.store)
        first.stop()
        keeping.backup(folder / "copy", folder=folder / "data", is_json=True)
        # All of this is not in the backup.
        first.start()
        first.acknowledge(1, 8)
        first.append(2, 5, 10)
        first.store.delete(stream_id(3))
        first.create(4)
        first.append(4, 1)
        first.stop()
        keeping.restore(folder / "copy", folder / "back", is_json=True)
        second = Router(folder / "back", 2)
        lives = read_lives(second.files, second.folder)
        second.now_ms = first.now_ms
        note_start(second.store, second.now_ms, lives[-1])
        second.append(1, 3, 100)
        second.stop()
        self.first, self.second = first.folder, second.folder
        self.former, self.log = first.store_id, log_id(first.store_id, lives)


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Restored:
    return Restored(tmp_path_factory.mktemp("restored"))


@pytest.mark.parametrize("folders", ["second", "first second", "second first"])
def test_a_restored_log_is_planned_with_what_it_has_of_before(
    spark: SparkSession, tmp_path: Path, restored: Restored, folders: str
) -> None:
    for name in folders.split():
        ingest(spark, tmp_path, [getattr(restored, name)], tail=Tail.STOPPED)
    report = gc_plan(spark, tmp_path)
    by_log = planned_by_log(spark, tmp_path)
    found = {stream: (*plan[:6], plan[9]) for stream, plan in by_log.pop(restored.log).items()}
    assert found == {
        stream_id(1): (False, 13, 4, 4, "unread", None, 900),
        stream_id(2): (False, 2, 0, 0, "unread", None, 20),
        # What was deleted behind the backup is there again; and no reader has come back.
        stream_id(3): (False, 2, 0, 0, "unread", None, 20),
        stream_id(9): (True, 8, 0, 6, "snapshot", None, 100),
    }
    # The log that it branched off from is a log as well, if there is more of it than that.
    assert set(by_log) == ({restored.former} if "first" in folders else set())
    if by_log:
        own = {stream: plan[:5] for stream, plan in by_log[restored.former].items()}
        assert own == {
            stream_id(1): (False, 10, 8, 8, "unread"),
            stream_id(2): (False, 7, 0, 0, "unread"),
            stream_id(4): (False, 1, 0, 0, "unread"),
            stream_id(9): (True, 8, 0, 2, "reader"),
        }
    assert report.stream_count == 4 * (1 + len(by_log))


def test_a_log_that_was_restored_twice_has_what_each_had_up_to_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of the first up to 200, of the second up to 300; a branch of the first at 250 is another."""
    logs = {name: name.encode() * 16 for name in "abcx"}

    def message(log: str, position: int, seq: int, stream: int = 1) -> dict[str, Any]:
        state = {"seq": seq, "last": seq, "unread": seq, "flags": 0, "length": 1}
        of = {"store": logs[log], "position": position, "stream": bytes(stream_id(stream))}
        return {**of, "kind": 1, **state}

    def start(log: str, former: str, position: int) -> dict[str, Any]:
        told = {"event": int(EventKind.STARTED), "first": position, "seq": 0, "session": 0}
        of = {"store": logs[log], "position": position, "stream": logs[former] + bytes(8)}
        return {**of, "kind": 10, **told}

    rows = [
        *(message("a", 100, 1), message("a", 210, 2), message("a", 240, 3, stream=2)),
        # Right before the branch, and right behind it.
        *(message("a", 199, 5, stream=3), message("a", 200, 6, stream=3)),
        *(start("b", "a", 200), message("b", 220, 2), message("b", 310, 3)),
        *(start("c", "b", 300), message("c", 330, 3)),
        start("x", "a", 250),
    ]
    add_events(tmp_path, rows, file_count=2)
    gc_plan(spark, tmp_path)
    heads = {
        (log.decode()[0], stream): plan[1]
        for log, found in planned_by_log(spark, tmp_path).items()
        for stream, plan in found.items()
    }
    one, two, three = (stream_id(number) for number in (1, 2, 3))
    # Of the first nothing is known behind 250.
    known = {("b", one): 3, ("c", one): 3, ("x", one): 2, ("x", two): 3}
    assert heads == {**known, ("b", three): 5, ("c", three): 5, ("x", three): 6}
