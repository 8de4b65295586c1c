"""A document folded from its log: the router's own state, or none; never another one."""

import random
from dataclasses import replace
from typing import Any, cast

import msgspec
import pycrdt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.kinds.yjs import YjsFolding
from syncline.pipeline import document_folds
from syncline.pipeline.document_folds import DocumentFold, DocumentState, is_same_state
from syncline.pipeline.yjs_items import holds_same, items_of
from syncline.storage.documents import DocumentSnapshot, decode_snapshot, encode_snapshot, stream_of
from syncline.values.kinds import Kind
from tests.pipeline.document_histories import (
    DELETE,
    MESSAGE,
    SNAPSHOT,
    STORE,
    History,
    LogRow,
    YjsWriters,
    fold_rows,
)

SEEDS = st.integers(0, 1 << 32)


def assert_true(history: History, found: dict[bytes, DocumentState]) -> None:
    """Every state is what its own document was at its sequence."""
    for state in found.values():
        if state.state is None:
            continue
        assert state.incarnation is not None
        assert state.up_to_seq is not None
        life = history.lives[state.stream, state.incarnation]
        assert is_same_state(life.kind, state.state, life.state_at(state.up_to_seq))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_whole_log_gives_every_document_and_every_snapshot_is_checked(seed: int) -> None:
    history = History(seed).go_on(150)
    found = fold_rows(history.rows)
    assert_true(history, found)
    assert len(found) == len({row.stream for row in history.rows})
    for stream, state in found.items():
        lives = [life for (each, _), life in history.lives.items() if each == stream]
        # The first of each life is what it begins with.
        assert state.checked_count == sum(life.snapshot_count - 1 for life in lives)
        assert (state.mismatch_count, state.problem) == (0, None)
        current = history.current.get(lives[0].name)
        assert state.is_deleted == (current is None)
        if current is None:
            assert state.state is None
        else:
            assert state.up_to_seq == state.update_count == len(current.bodies)
            assert state.incarnation == current.incarnation
            assert state.bytes_out == len(state.state or b"")


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.floats(0, 0.3))
def test_whatever_is_missing_a_state_is_true_or_not_there(seed: int, share: float) -> None:
    history = History(seed).go_on(150)
    chance = random.Random(seed)
    kept: list[LogRow] = []
    edges: list[int] = []
    for row in history.rows:
        if chance.random() >= share:
            kept.append(row)
        else:
            edges += [row.position, row.position + 10]
    found = fold_rows(kept, edges=edges)
    assert_true(history, found)
    assert all(state.mismatch_count == 0 for state in found.values())
    for state in found.values():
        current = history.current.get(state.name or "")
        is_behind = current is not None and state.up_to_seq != len(current.bodies)
        last = max(row.position for row in history.rows if row.stream == state.stream)
        if is_behind and state.position == last:
            assert state.problem is not None


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_an_update_that_is_missing_is_seen_by_its_sequence(seed: int) -> None:
    """Nothing tells of it but the sequence."""
    history = History(seed).go_on(120)
    updates = [row for row in history.rows if row.kind == MESSAGE]
    if not updates:
        return
    missing = random.Random(seed).choice(updates)
    found = fold_rows(row for row in history.rows if row != missing)
    assert_true(history, found)
    assert sum(state.mismatch_count for state in found.values()) == 0


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.floats(0, 0.1), st.integers(1, 6))
def test_a_log_folded_in_parts_gives_what_it_gives_at_once(
    seed: int, share: float, cut_count: int
) -> None:
    history = History(seed).go_on(150)
    chance = random.Random(seed)
    lost = {row.position for row in history.rows if chance.random() < share}
    rows = [row for row in history.rows if row.position not in lost]
    cuts = sorted(chance.randrange(len(rows) + 1) for _ in range(cut_count))
    edges = sorted(lost)
    known: dict[bytes, DocumentState] = {}
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = rows[start:end]
        again = _to_fold_again(known, part)
        older = [row for row in rows[:start] if row.stream in again]
        rest = {stream: state for stream, state in known.items() if stream not in again}
        known = fold_rows([*older, *part], rest, edges)
    whole = fold_rows(rows, edges=edges)
    assert known.keys() == whole.keys()
    for stream, state in whole.items():
        other = known[stream]
        # The same may be written in different ways.
        written = {"state": state.state, "bytes_out": state.bytes_out}
        assert replace(other, **cast(Any, written)) == state
        if state.state is None or other.state is None:
            assert state.state == other.state
        else:
            assert is_same_state(state.kind or "", other.state, state.state)


def _to_fold_again(known: dict[bytes, DocumentState], part: list[LogRow]) -> set[bytes]:
    """As the job decides it."""
    return {
        row.stream
        for row in part
        if row.kind == SNAPSHOT
        and (state := known.get(row.stream)) is not None
        and (state.waiting_count or row.seq < (state.up_to_seq or 0))
    }


def two_lives() -> tuple[History, list[LogRow], list[LogRow]]:
    """A document of three updates; then it was deleted and made anew, and has six. No snapshots but
    that at 0 of each."""
    history = History(8, ["d"])
    history.create("d", Kind.BYTES)
    for _ in range(6):
        history.update("d")
    first = list(history.rows)
    history.delete("d")
    history.create("d", Kind.BYTES)
    for _ in range(6):
        history.update("d")
    return history, first, history.rows[len(first) + 3 :]


def test_a_gap_may_hide_that_a_document_was_made_anew() -> None:
    """All that was lost lies between two rows whose sequences follow on each other."""
    history, first, second = two_lives()
    edge = [first[-1].position + 1]
    # Updates 1 to 3 of the one, then 4 to 6 of the other: they are not folded together.
    rows = [*first[:5], *second[3:]]
    (state,) = fold_rows(rows, edges=edge).values()
    assert (state.up_to_seq, state.waiting_count, state.gap_count) == (3, 3, 1)
    assert_true(history, {state.stream: state})
    # A snapshot tells which of the two it is, and those that waited follow on it.
    history.snapshot("d", 0)
    found = decode_snapshot(history.rows[-1].body)
    at_4 = msgspec.structs.replace(found, state=history.current["d"].state_at(4))
    late = LogRow(99_999, SNAPSHOT, state.stream, 4, encode_snapshot(at_4))
    (state,) = fold_rows([*rows, late], edges=edge).values()
    assert (state.up_to_seq, state.incarnation) == (6, found.incarnation)
    assert (state.checked_count, state.mismatch_count, state.waiting_count) == (0, 0, 0)
    assert_true(history, {state.stream: state})
    # What waited before the gap is of the old one.
    rows = [*first[:5], *first[6:], late]
    (state,) = fold_rows(rows, edges=edge).values()
    assert (state.up_to_seq, state.incarnation) == (4, found.incarnation)
    assert_true(history, {state.stream: state})
    # The same sequence of another document is no mismatch.
    at_3 = msgspec.structs.replace(found, state=history.current["d"].state_at(3))
    same = LogRow(99_999, SNAPSHOT, state.stream, 3, encode_snapshot(at_3))
    (state,) = fold_rows([*first[:5], same], edges=edge).values()
    assert (state.up_to_seq, state.mismatch_count) == (3, 0)
    assert_true(history, {state.stream: state})


def test_what_has_waited_is_folded_checked_and_counted_like_all_else() -> None:
    history = History(8, ["d"])
    history.create("d", Kind.BYTES)
    for _ in range(6):
        history.update("d")
    history.snapshot("d", 0)
    *rows, snapshot = history.rows
    edge = [rows[5].position]
    (whole,) = fold_rows([*rows, snapshot]).values()
    (state,) = fold_rows([*rows, snapshot], edges=edge).values()
    gap = "gaps in what the log has of it: 1"
    assert state == replace(whole, gap_count=1, problem=gap)
    assert (state.checked_count, state.update_count) == (1, 6)
    assert state.bytes_in == sum(len(row.body) for row in rows if row.kind == MESSAGE)
    # One of them is not there: those before it are folded, those behind it are in the snapshot.
    missing = [row for row in rows if row.seq != 5]
    (state,) = fold_rows([*missing, snapshot], edges=edge).values()
    assert (state.up_to_seq, state.update_count, state.checked_count) == (6, 4, 0)
    assert (state.state, state.waiting_count) == (whole.state, 0)
    # Updates that were logged before a snapshot, and are not in it, follow on it.
    found = decode_snapshot(snapshot.body)
    at_4 = msgspec.structs.replace(found, state=history.current["d"].state_at(4))
    early = replace(snapshot, seq=4, body=encode_snapshot(at_4))
    (state,) = fold_rows([*rows, early], edges=edge).values()
    assert (state.up_to_seq, state.checked_count, state.update_count) == (6, 1, 6)
    assert state.state == whole.state


def test_a_state_that_grows_too_large_by_what_has_waited_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(8, ["d"])
    history.create("d", Kind.BYTES)
    for _ in range(6):
        history.update("d")
    history.snapshot("d", 0)
    monkeypatch.setattr(document_folds, "STATE_BYTES_MAX", 10)
    monkeypatch.setattr(document_folds, "TAIL_BYTES_MAX", 10)
    fold = DocumentFold(STORE, stream_of("d"))
    fold.created()
    fold.snapshot(0, history.rows[1].body)
    fold.log_is_missing()
    fold.updates(1, [row.body for row in history.rows[2:-1]], is_document=True)
    fold.snapshot(6, history.rows[-1].body)
    assert (fold.up_to_seq, fold.position) == (6, -1)
    monkeypatch.setattr(document_folds, "STATE_BYTES_MAX", 1_000)
    state = fold.result()
    assert state is not None
    assert (state.up_to_seq, state.is_too_large) == (6, False)


def test_a_document_made_anew_has_nothing_of_the_one_before() -> None:
    history = History(8, ["d"])
    history.create("d", Kind.BYTES)
    history.create("d", Kind.BYTES)
    history.update("d")
    rows = list(history.rows)
    rows[3] = replace(rows[3], body=b"damaged")
    (state,) = fold_rows(rows).values()
    assert (state.state, state.incarnation, state.waiting_count) == (None, None, 1)


# ------------------------------------------------------------------------------------------ checks


def one_document(kind: Kind, update_count: int = 12, seed: int = 3) -> History:
    """Snapshots at 0, the middle and the end."""
    history = History(seed, ["d"])
    history.create("d", kind)
    for place in range(update_count):
        history.update("d")
        if place == update_count // 2:
            history.snapshot("d", 0)
    history.snapshot("d", 0)
    return history


def other_state(kind: Kind, payload: bytes) -> bytes:
    """The same snapshot with something else in it."""
    found = decode_snapshot(payload)
    match kind:
        case Kind.JSON:
            state = msgspec.json.encode({**msgspec.json.decode(found.state), "more": 1})
        case Kind.BYTES:
            state = msgspec.msgpack.encode([*msgspec.msgpack.decode(found.state), b"more"])
        case Kind.YJS:
            doc = pycrdt.Doc[Any](client_id=77)
            doc["text"] = pycrdt.Text("more")
            fold = YjsFolding(found.state)
            fold.apply(doc.get_update())
            state = fold.state()
    return encode_snapshot(msgspec.structs.replace(found, state=state))


@pytest.mark.parametrize("kind", list(Kind))
def test_a_snapshot_that_holds_something_else_is_a_mismatch_and_is_gone_on_from(
    kind: Kind,
) -> None:
    history = one_document(kind)
    rows = history.rows
    at = next(place for place, row in enumerate(rows) if row.kind == SNAPSHOT and row.seq)
    rows[at] = replace(rows[at], body=other_state(kind, rows[at].body))
    (state,) = fold_rows(rows).values()
    # The one in the middle differs; the last one differs from what was folded onto it.
    assert (state.checked_count, state.mismatch_count) == (2, 2)
    assert "hold something else: 2" in (state.problem or "")
    assert state.state is not None
    assert is_same_state(kind, state.state, history.current["d"].state_at(12))
    # Without the last one, what the router had in the middle is in the state.
    (state,) = fold_rows(rows[:-1]).values()
    assert state.state is not None
    assert not is_same_state(kind, state.state, history.current["d"].state_at(12))


def test_what_is_damaged_or_foreign_is_counted_and_waited_out() -> None:
    rows = one_document(Kind.JSON).rows
    middle = next(place for place, row in enumerate(rows) if row.kind == SNAPSHOT and row.seq)
    cut_off = [
        *rows[: middle - 3],
        replace(rows[middle - 3], body=rows[middle - 3].body[:5]),
        *rows[middle - 2 :],
    ]
    (state,) = fold_rows(cut_off).values()
    assert (state.up_to_seq, state.damaged_count, state.gap_count) == (12, 1, 1)
    assert (state.waiting_count, state.checked_count) == (0, 1)
    assert state.problem == "gaps in what the log has of it: 1; updates or snapshots are damaged: 1"
    # No snapshot can be read: nothing to begin with, and nothing is made up.
    for body in (b"junk", encode_snapshot(msgspec.structs.replace(_head(rows), name="another"))):
        broken = [replace(row, body=body) if row.kind == SNAPSHOT else row for row in rows]
        (state,) = fold_rows(broken).values()
        assert (state.state, state.up_to_seq, state.damaged_count) == (None, None, 3)
        assert state.waiting_count == 12
        assert "no snapshot to begin with" in (state.problem or "")


def _head(rows: list[LogRow]) -> DocumentSnapshot:
    return decode_snapshot(rows[1].body)


def test_an_update_that_cannot_be_folded_is_left_out_as_the_router_does() -> None:
    history = one_document(Kind.YJS)
    rows = [row for row in history.rows if row.kind != SNAPSHOT or row.seq == 0]
    at = len(rows) - 1
    rows[at] = replace(rows[at], body=rows[at].body[:13] + b"\xff\xff junk")
    (state,) = fold_rows(rows).values()
    assert (state.up_to_seq, state.unfoldable_count) == (12, 1)
    assert state.problem == "updates cannot be folded: 1"
    text = one_document(Kind.JSON).rows[:5]
    text[-1] = replace(text[-1], body=text[-1].body[:12] + b"no JSON")
    (other,) = fold_rows(text).values()
    assert (other.up_to_seq, other.unfoldable_count) == (3, 1)
    assert state.state is not None
    assert is_same_state(Kind.YJS, state.state, history.current["d"].state_at(11))


def test_a_document_that_grows_too_large_is_given_up_until_the_next_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document_folds, "STATE_BYTES_MAX", 2_000)
    monkeypatch.setattr(document_folds, "TAIL_BYTES_MAX", 500)
    monkeypatch.setattr(document_folds, "WAITING_BYTES_MAX", 300)
    history = History(1, ["d"])
    history.create("d", Kind.BYTES)
    for _ in range(400):
        history.update("d")
    (state,) = fold_rows(history.rows).values()
    assert (state.state, state.up_to_seq) == (None, None)
    assert state.is_too_large
    assert "larger than 2000 bytes" in (state.problem or "")
    history.snapshot("d", 0)
    monkeypatch.setattr(document_folds, "STATE_BYTES_MAX", 20_000)
    (later,) = fold_rows(history.rows[-1:], {state.stream: state}).values()
    assert (later.up_to_seq, later.waiting_count, later.is_too_large) == (400, 0, False)


def test_a_deletion_says_nothing_of_a_queue() -> None:
    fold = DocumentFold(STORE, stream_of("queue"))
    fold.updates(1, [b"message"], is_document=False)
    fold.deleted()
    assert fold.result() is None
    (state,) = fold_rows(
        [*one_document(Kind.JSON).rows, LogRow(9_999, DELETE, stream_of("d"))]
    ).values()
    assert (state.is_deleted, state.state, state.up_to_seq) == (True, None, None)
    assert (state.checked_count, state.problem) == (2, None)


# ---------------------------------------------------------------------------------- equal and not


def test_numbers_and_truth_are_told_apart_in_json() -> None:
    assert is_same_state("json", b'{"a":1,"b":{}}', b'{"b":{},"a":1}')
    assert not is_same_state("json", b'{"a":1}', b'{"a":1.0}')
    assert not is_same_state("json", b'{"a":1}', b'{"a":true}')


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_yjs_states_are_the_same_however_they_were_folded_and_differ_by_any_update(
    seed: int,
) -> None:
    chance = random.Random(seed)
    writers = YjsWriters(chance)
    updates = [writers.update() for _ in range(40)]
    one, other, less = YjsFolding(), YjsFolding(), YjsFolding()
    missing = chance.randrange(len(updates))
    for place, update in enumerate(updates):
        one.apply(update)
        other.apply(update)
        if chance.random() < 0.2:
            other = YjsFolding(other.state())
        if place != missing:
            less.apply(update)
    assert holds_same(one.state(), other.state())
    # An update with items of its own; a deletion may have been another's as well.
    if items_of([updates[missing]]).known:
        assert not holds_same(one.state(), less.state())


def test_the_same_items_with_other_content_or_deleted_are_another_state() -> None:
    def state(text: str, *, deletes: bool = False, key: str = "k") -> bytes:
        doc = pycrdt.Doc[Any](client_id=5)
        doc["text"] = shared = pycrdt.Text(text)
        doc["map"] = pycrdt.Map({key: {"a": 1, "b": [True, None], "c": float("nan")}})
        if deletes:
            del shared[1]
        return msgspec.msgpack.encode([doc.get_update()])

    assert holds_same(state("abc"), state("abc"))
    assert not holds_same(state("abc"), state("abd"))
    assert not holds_same(state("abc"), state("abc", deletes=True))
    assert not holds_same(state("abc"), state("abc", key="l"))


def test_what_is_no_state_is_an_error() -> None:
    for junk in (b"\x91\xc4\x02\xff\xff", b"junk", msgspec.msgpack.encode([b"\x01\x01\x05"])):
        with pytest.raises(ValueError, match=r".*"):
            holds_same(YjsFolding().state(), junk)
