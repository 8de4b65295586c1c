"""`compact`: what the router has of each document, in one run or in many."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from syncline.cli import pipeline_documents
from syncline.cli.output import Output
from syncline.cli.pipeline_session import Jobs
from syncline.cli.router_client import RouterClient
from syncline.errors import MalformedMessageError, TableError, UnknownDocumentError
from syncline.pipeline.document_folds import DocumentState, is_same_state
from syncline.pipeline.document_pieces import Cutting, Group, Source
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.compact import CompactReport, compact, folded_groups
from syncline.pipeline.jobs.ingest import ingest
from syncline.pipeline.live_states import LiveReport, LiveState, compare_live, stored_states
from syncline.pipeline.schemas import DOCUMENT_STATES
from syncline.pipeline.sources.folders import Tail
from syncline.pipeline.sources.rows import Unread
from syncline.pipeline.tables import Table
from syncline.server import document_views
from syncline.server.open_document import DocumentOptions, OpenDocument, create, load
from syncline.storage.base import commit
from syncline.storage.documents import decode_snapshot, encode_snapshot, stream_of
from syncline.values.events import EventKind
from syncline.values.kinds import Kind
from tests.pipeline.document_histories import STORE, History, YjsWriters, fold_rows
from tests.pipeline.event_tables import add_events, document_row
from tests.pipeline.routers import Router

OPTIONS = DocumentOptions(document_bytes_max=1 << 20)


def states_of(spark: SparkSession, tables: Path) -> dict[tuple[bytes, bytes], DocumentState]:
    version = Table(tables, DOCUMENT_STATES).version()
    assert len({each.partition["run"] for each in version.files}) <= 1
    rows = read_version(spark, DOCUMENT_STATES, version).drop("run").collect()
    found: dict[tuple[bytes, bytes], DocumentState] = {}
    for row in rows:
        plain: dict[str, Any] = {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in row.asDict().items()
        }
        state = DocumentState(**plain)
        assert (state.store, state.stream) not in found
        found[state.store, state.stream] = state
    return found


class DocumentRouter(Router):
    """Documents worked on by the router's own code, in a store of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.chance = random.Random(seed)
        self.opened: dict[str, OpenDocument] = {}
        self._writers: dict[str, YjsWriters] = {}

    def create_document(self, name: str, kind: Kind) -> None:
        incarnation = self.chance.randbytes(8)
        self.opened[name] = create(name, kind, incarnation, self.store, OPTIONS, self.now_ms)
        self._writers[name] = YjsWriters(self.chance)
        commit(self.store)

    def write(self, name: str, count: int) -> None:
        """Updates, and snapshots that are logged behind later updates."""
        document = self.opened[name]
        for number in range(count):
            self.now_ms += 100
            seq = document.mutate("me", 0, self._body(name), self.now_ms)
            assert isinstance(seq, int)
            if number % 7 == 3:
                commit(self.store)
                document.release(seq, self.now_ms)
                document.mutate("me", 0, self._body(name), self.now_ms)
                covered = document.stage_snapshot(self.now_ms)
                assert covered is not None
                commit(self.store)
                document.release(covered + 1, self.now_ms)
                document.machine.snapshot_taken(covered)
                document.truncate()
        commit(self.store)
        document.release(document.machine.staged, self.now_ms)

    def _body(self, name: str) -> bytes:
        match self.opened[name].kind:
            case Kind.YJS:
                return self._writers[name].update()
            case Kind.JSON:
                return b'{"k%d":%d}' % (self.chance.randrange(5), self.chance.randrange(9))
            case Kind.BYTES:
                return self.chance.randbytes(30)

    def delete_document(self, name: str) -> None:
        self.store.delete(stream_of(name))
        del self.opened[name]
        commit(self.store)


def assert_is_the_routers(
    router: DocumentRouter, found: dict[tuple[bytes, bytes], DocumentState]
) -> None:
    """Document by document, with what its own code says that it opens from the store."""
    store_id = router.store_id
    live = {key: state for key, state in found.items() if not state.is_deleted}
    assert {stream_of(name) for name in router.opened} == {stream for _, stream in live}
    for name, document in router.opened.items():
        opened = load(name, router.store, OPTIONS)
        state = live[store_id, stream_of(name)]
        assert state.problem is None
        assert (state.name, state.kind) == (name, document.kind)
        assert state.up_to_seq == opened.machine.head
        assert state.state is not None
        assert is_same_state(document.kind, state.state, opened.folding.state())
        assert is_same_state(document.kind, state.state, document.folding.state())


def test_states_are_those_that_the_router_opens_run_after_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    router = DocumentRouter(tmp_path / "data", 5)
    router.create(1)
    router.append(1, 30)
    names = [f"document {number}" for number in range(9)]
    for number, name in enumerate(names):
        router.create_document(name, list(Kind)[number % 3])
        router.write(name, 20 + number)
    tables = tmp_path / "tables"
    # The last batch of all is not read yet.
    router.append(1, 1)
    ingest(spark, tables, [router.folder], tail=Tail.DURABLE)
    first = compact(spark, tables)
    assert (first.run, first.version, first.is_new) == (1, 1, True)
    assert (first.document_count, first.mismatch_count, first.problem_count) == (9, 0, 0)
    assert first.checked_count == sum((20 + number + 3) // 7 for number in range(9))
    assert_is_the_routers(router, states_of(spark, tables))

    router.delete_document(names[0])
    router.delete_document(names[1])
    router.create_document(names[1], Kind.JSON)
    for name in names[1:4]:
        router.write(name, 25)
    # The last batch of all is not read yet.
    router.append(1, 1)
    ingest(spark, tables, [router.folder], tail=Tail.DURABLE)
    second = compact(spark, tables)
    assert (second.run, second.version, second.document_count) == (2, 2, 8)
    assert second.checked_count == first.checked_count - 3 + 3 * 4
    found = states_of(spark, tables)
    assert_is_the_routers(router, found)
    assert found[router.store_id, stream_of(names[0])].is_deleted
    again = compact(spark, tables)
    assert again == CompactReport(**{**_facts(second), "is_new": False})
    _assert_live_states_are_compared(router, tables)
    # An earlier version has the earlier states.
    assert Table(tables, DOCUMENT_STATES).version(1).row_count == 9
    assert Table(tables, DOCUMENT_STATES).lineage(2)["inputs"] == {"events": 2}
    router.stop()


def _assert_live_states_are_compared(router: DocumentRouter, tables: Path) -> None:
    def ask(name: str) -> LiveState | None:
        """As the operator's API gives it."""
        if name not in router.opened:
            return None
        document = router.opened[name]
        said = msgspec.json.decode(msgspec.json.encode(document_views.state(document)))
        return LiveState(document.incarnation.hex(), said["seq"], said["state"])

    def changed(name: str) -> LiveState | None:
        live = ask(name)
        if live is None or router.opened[name].kind is not Kind.JSON:
            return live
        return LiveState(live.incarnation, live.seq, {**cast(dict[str, Any], live.state), "z": 1})

    count = len(router.opened)
    assert compare_live(stored_states(tables), ask) == LiveReport(count, 0, 0, 0, [])
    json_names = {name for name, each in router.opened.items() if each.kind is Kind.JSON}
    report = compare_live(stored_states(tables), changed)
    assert report.equal_count == count - len(json_names)
    assert set(report.mismatches) == json_names
    assert compare_live(stored_states(tables), lambda _: None).other_count == count
    (name, *_) = router.opened
    router.write(name, 1)
    report = compare_live(stored_states(tables), ask)
    assert (report.equal_count, report.moved_on_count) == (count - 1, 1)


def _facts(report: CompactReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in CompactReport.__slots__}


def test_runs_give_what_folding_everything_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are missing, and said to be; parts end anywhere, also between updates and snapshots."""
    history = History(11, [f"d{number}" for number in range(12)]).go_on(900)
    chance = random.Random(12)
    lost = {row.position for row in history.rows if chance.random() < 0.01}
    rows = [row for row in history.rows if row.position not in lost]
    gaps: list[dict[str, Any]] = [
        {"position": at, "kind": int(Unread.DAMAGE), "length": 1, "time_ms": None}
        for at in sorted(lost)
    ]
    tables = tmp_path / "tables"
    cuts = [0, 300, 620, len(rows)]
    for start, end in pairwise(cuts):
        part = rows[start:end]
        bounds = (part[0].position if start else 0), part[-1].position
        missing = [gap for gap in gaps if bounds[0] <= gap["position"] <= bounds[1]]
        add_events(tables, [*map(document_row, part), *missing], file_count=3)
        report = compact(spark, tables)
        assert report.is_new
    found = states_of(spark, tables)
    edges = sorted({edge for at in lost for edge in (at, at + 1)})
    expected = fold_rows(rows, edges=edges)
    assert {stream for _, stream in found} == expected.keys()
    for (store, stream), state in found.items():
        wanted = expected[stream]
        assert store == STORE
        for name in ("up_to_seq", "is_deleted", "checked_count", "waiting_count", "gap_count"):
            assert getattr(state, name) == getattr(wanted, name), name
        assert (state.state is None) == (wanted.state is None)
        if state.state is not None and wanted.state is not None:
            assert is_same_state(wanted.kind or "", state.state, wanted.state)
    # The case is worth something.
    assert any(state.gap_count for state in found.values())
    assert report.checked_count > 20


def test_a_restored_log_goes_on_from_the_one_it_branched_off_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = History(3, ["d"])
    before.create("d", Kind.JSON)
    for _ in range(10):
        before.update("d")
    branch = before.rows[-1].position + 5
    restored = b"r" * 16
    tables = tmp_path / "tables"
    add_events(tables, map(document_row, before.rows))
    compact(spark, tables)
    started = {
        "store": restored,
        "position": branch,
        "kind": 10,
        "event": int(EventKind.STARTED),
        "first": branch,
        "stream": STORE + bytes(8),
        "seq": 0,
    }
    count = len(before.rows)
    for _ in range(3):
        before.update("d")
    more = [document_row(row, restored) for row in before.rows[count:]]
    add_events(tables, [started, *more])
    compact(spark, tables)
    found = states_of(spark, tables)
    stream = stream_of("d")
    assert found[STORE, stream].up_to_seq == 10
    assert found[restored, stream].up_to_seq == 13
    assert found[restored, stream].problem is None
    state = found[restored, stream].state
    assert state is not None
    assert is_same_state("json", state, before.current["d"].state_at(13))


# Which rows come with which run: of the former log below the branch, behind it, of the restored.
ORDERS = {
    "at once": ["bar"],
    "in order": ["ba", "r"],
    "turned round": ["r", "ba"],
    "branch, then what led to it": ["ar", "b"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_restored_log_gives_the_same_whichever_is_read_first(
    spark: SparkSession, tmp_path: Path, order: str
) -> None:
    """What cannot be read below the branch is missing to both, what is behind it to one."""
    history = History(3, ["d", "e", "torn"])
    for name in ("d", "e", "torn"):
        history.create(name, Kind.JSON)
    for _ in range(3):
        history.update("d")
        history.update("e")
    # Before the last two updates: to what is made behind it, nothing is missing.
    lost_below = history.rows[-3].position + 1
    history.create("late", Kind.JSON)
    below = list(history.rows)
    branch = below[-1].position + 5
    for name in ("d", "e", "torn", "d", "torn", "late"):
        history.update(name)
    behind = history.rows[len(below) :]
    lost_behind = behind[0].position + 1
    restored = b"r" * 16
    first = next(row for row in below if row.stream == stream_of("e") and row.seq == 1)
    parts: dict[str, list[dict[str, Any]]] = {
        "b": [
            *map(document_row, below),
            unread(Unread.DAMAGE, lost_below),
            unread(Unread.TORN, first.position + 1),
        ],
        "a": [*map(document_row, behind), unread(Unread.GAP, lost_behind)],
        "r": [
            started(restored, STORE, branch),
            *(document_row(row, restored) for row in behind),
        ],
    }
    for run in ORDERS[order]:
        add_events(tmp_path, [row for part in run for row in parts[part]], file_count=2)
        compact(spark, tmp_path)
    found = states_of(spark, tmp_path)
    for store, edges in ((STORE, [lost_below, lost_behind]), (restored, [lost_below])):
        expected = fold_rows([*below, *behind], edges=edges)
        facts = {
            stream: (state.up_to_seq, state.waiting_count, state.gap_count, state.problem)
            for (log, stream), state in found.items()
            if log == store
        }
        assert facts == {
            stream: (state.up_to_seq, state.waiting_count, state.gap_count, state.problem)
            for stream, state in expected.items()
        }
    late = stream_of("late")
    assert (found[STORE, late].gap_count, found[restored, late].gap_count) == (1, 0)


def test_a_snapshot_of_what_was_folded_by_an_earlier_run_is_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A router logs it behind later updates; the state of the last run is past it."""
    history = History(3, ["d"])
    history.create("d", Kind.JSON)
    for _ in range(3):
        history.update("d")
    history.snapshot("d", 2)
    *rows, snapshot = history.rows
    add_events(tmp_path, map(document_row, rows))
    assert compact(spark, tmp_path).checked_count == 0
    add_events(tmp_path, [document_row(snapshot)])
    report = compact(spark, tmp_path)
    assert (report.checked_count, report.mismatch_count, report.update_count) == (1, 0, 5)


def unread(kind: Unread, position: int) -> dict[str, Any]:
    return {"position": position, "kind": int(kind), "length": 1, "time_ms": None}


def started(store: bytes, former: bytes, branch: int) -> dict[str, Any]:
    told = {"event": int(EventKind.STARTED), "first": branch, "seq": 0}
    return {**told, "store": store, "position": branch, "kind": 10, "stream": former + bytes(8)}


def test_a_router_is_asked_for_incarnation_and_state() -> None:
    asked: list[str] = []

    class FakeClient:
        def get(self, path: str) -> dict[str, Any]:
            asked.append(path)
            if "absent" in path:
                raise UnknownDocumentError("there is none")
            return {"seq": 7, "state": {"x": 1}} if "view=state" in path else {"incarnation": "0a"}

    client = cast(RouterClient, FakeClient())
    assert pipeline_documents.live_state(client, "a/b c") == LiveState("0a", 7, {"x": 1})
    assert asked == ["/api/documents/a%2Fb%20c", "/api/documents/a%2Fb%20c?view=state"]
    assert pipeline_documents.live_state(client, "absent") is None


def test_a_mismatch_is_told_and_is_exit_code_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(3, ["d"])
    history.create("d", Kind.JSON)
    history.update("d")
    history.snapshot("d", 0)
    last = history.rows[-1]
    other = decode_snapshot(last.body)
    history.rows[-1] = replace(
        last, body=encode_snapshot(msgspec.structs.replace(other, state=b'{"other":1}'))
    )
    tables = tmp_path / "tables"
    add_events(tables, map(document_row, history.rows))

    @contextmanager
    def one_session(folder: Path, *_: object) -> Iterator[Jobs]:
        yield Jobs(spark, folder, Output(is_json=True))

    monkeypatch.setattr(pipeline_documents, "open_jobs", one_session)
    app = typer.Typer()
    app.command("compact")(pipeline_documents.compact)
    app.command("gc-plan")(pipeline_documents.gc_plan)
    found = CliRunner().invoke(app, ["compact", "--tables", str(tables), "--json"])
    assert found.exit_code == 1
    facts = msgspec.json.decode(found.stdout)
    assert (facts["checked_count"], facts["mismatch_count"], facts["problem_count"]) == (1, 1, 1)
    (state,) = states_of(spark, tables).values()
    assert state.problem == "snapshots of the router hold something else: 1"
    planned = CliRunner().invoke(app, ["gc-plan", "--tables", str(tables), "--json"])
    assert (planned.exit_code, msgspec.json.decode(planned.stdout)["stream_count"]) == (0, 1)
    # A wrong address is told before Spark is started.
    wrong = CliRunner().invoke(app, ["compact", "--check", "nonsense", "--json"])
    assert isinstance(wrong.exception, MalformedMessageError)


def test_there_is_one_exchange_and_an_empty_table_gives_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TableError, match="events"):
        compact(spark, tmp_path / "nowhere")
    tables = tmp_path / "tables"
    add_events(tables, [], file_count=0)
    report = compact(spark, tables)
    assert (report.document_count, report.update_count, report.problem_count) == (0, 0, 0)
    group = Group("file", 0, 0, Source.NEW)
    plan = folded_groups(spark, [group], Cutting(4, {}), {})._jdf.queryExecution()
    text = str(plan.executedPlan().toString())
    assert text.count("Exchange") == 1
    assert "SortMergeJoin" not in text
