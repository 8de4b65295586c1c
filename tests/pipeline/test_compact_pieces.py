"""Rows cut into pieces and put together: each document sees its own, in the order of the log."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from syncline.pipeline import document_pieces
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.document_folds import DocumentState, is_same_state
from syncline.pipeline.document_pieces import (
    PIECES,
    STATES,
    Cutting,
    Edges,
    Group,
    Source,
    folded,
    pieces_of,
)
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.tables import Table
from syncline.storage.documents import encode_entry, stream_of
from syncline.values.kinds import Kind
from tests.pipeline.document_histories import MESSAGE, STORE, History, LogRow, fold_rows
from tests.pipeline.event_tables import add_events, document_row

OTHER = b"o" * 16


def groups_of(tables: Path, source: Source = Source.NEW) -> list[Group]:
    """A group for each row group of 50 rows."""
    found: list[Group] = []
    for each in Table(tables, EVENTS).version().files:
        count = pq.read_metadata(each.path).num_row_groups
        found += [Group(str(each.path), number, 0, source) for number in range(count)]
    return found


def states_of(groups: list[Group], cutting: Cutting, edges: Edges) -> list[DocumentState]:
    """As Spark does it: cut everywhere, shuffle, sort, fold."""
    pieces = [
        row
        for group in groups
        for each in pieces_of(group, cutting)
        for row in rows_of(pa.Table.from_batches([each]))
    ]
    random.Random(1).shuffle(pieces)
    found: list[DocumentState] = []
    for bucket in range(cutting.bucket_count):
        own = [piece for piece in pieces if piece["bucket"] == bucket]
        own.sort(key=lambda piece: (piece["store"], piece["part"], piece["first"]))
        batches = pa.Table.from_pylist(own, schema=PIECES).to_batches(max_chunksize=3)
        for batch in folded(batches, edges):
            assert batch.schema == STATES
            found += [DocumentState(**row) for row in rows_of(pa.Table.from_batches([batch]))]
    return found


def assert_same(found: list[DocumentState], expected: dict[bytes, DocumentState]) -> None:
    assert {state.stream for state in found} == expected.keys()
    assert len(found) == len(expected)
    for state in found:
        wanted = expected[state.stream]
        for name in ("up_to_seq", "position", "is_deleted", "checked_count", "problem"):
            assert getattr(state, name) == getattr(wanted, name), name
        if wanted.state is None or state.state is None:
            assert state.state == wanted.state
        else:
            assert is_same_state(wanted.kind or "", state.state, wanted.state)


@pytest.mark.parametrize("piece_bytes_max", [400, document_pieces._PIECE_BYTES_MAX])
def test_files_and_pieces_may_be_cut_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes_max: int
) -> None:
    monkeypatch.setattr(document_pieces, "_PIECE_BYTES_MAX", piece_bytes_max)
    history = History(21, [f"d{number}" for number in range(8)]).go_on(600)
    lost = {row.position for row in history.rows if row.position % 7 == 3}
    rows = [row for row in history.rows if row.position not in lost]
    # Rows of queues are passed over: a message, and a deletion that does not say of what.
    queue: list[dict[str, Any]] = [
        {**document_row(LogRow(5, 1, b"q" * 24, 1, b"message")), "flags": 0},
        {**document_row(LogRow(6, 4, b"q" * 24)), "flags": 0},
        {**document_row(LogRow(7, 1, b"r" * 24, 1, b"from a run")), "flags": None},
    ]
    # Files overlap: each has every third row.
    add_events(tmp_path, [*map(document_row, rows), *queue], file_count=3)
    edges = {STORE: np.array(sorted(lost), np.int64)}
    expected = fold_rows(rows, edges=sorted(lost))
    assert any(state.gap_count for state in expected.values())
    assert_same(states_of(groups_of(tmp_path), Cutting(3, {}), edges), expected)


def test_a_document_does_not_get_the_update_of_its_neighbour(tmp_path: Path) -> None:
    """Of the second one only an update is left, whose sequence follows on those of the first."""
    first, second = sorted(["a", "b"], key=stream_of)
    history = History(24, [first])
    history.create(first, Kind.BYTES)
    history.update(first)
    history.update(first)
    rows = [*history.rows, LogRow(9_999, MESSAGE, stream_of(second), 3, encode_entry("x", 1, b""))]
    add_events(tmp_path, map(document_row, rows))
    found = {each.stream: each for each in states_of(groups_of(tmp_path), Cutting(1, {}), {})}
    assert found[stream_of(first)].up_to_seq == 2
    assert (found[stream_of(second)].up_to_seq, found[stream_of(second)].waiting_count) == (None, 1)


def test_two_logs_are_apart_and_an_heir_has_the_rows_up_to_its_branch(tmp_path: Path) -> None:
    history = History(22).go_on(200)
    branch = history.rows[120].position
    add_events(tmp_path, map(document_row, history.rows), file_count=2)
    cutting = Cutting(2, {STORE: [(OTHER, branch)]})
    found = states_of(groups_of(tmp_path), cutting, {})
    own = [state for state in found if state.store == STORE]
    heir = [state for state in found if state.store == OTHER]
    assert len(own) + len(heir) == len(found)
    assert_same(own, fold_rows(history.rows))
    assert_same(heir, fold_rows(history.rows[:120]))


def test_of_old_rows_only_those_are_taken_that_are_folded_again(tmp_path: Path) -> None:
    history = History(23).go_on(150)
    add_events(tmp_path, map(document_row, history.rows))
    groups = groups_of(tmp_path, Source.OLD)
    stream = history.rows[0].stream
    assert states_of(groups, Cutting(2, {}), {}) == []
    again = Cutting(2, {}, again=frozenset([(STORE, stream)]))
    assert [state.stream for state in states_of(groups, again, {})] == [stream]
    all_of_it = Cutting(2, {}, again_logs=frozenset([STORE]))
    assert_same(states_of(groups, all_of_it, {}), fold_rows(history.rows))
