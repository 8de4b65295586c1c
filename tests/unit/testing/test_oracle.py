"""The oracle accepts what a crash may leave and names what it may not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from syncline.storage.base import (
    Damage,
    Entry,
    EntryKind,
    Snapshot,
    StreamKind,
    StreamState,
)
from syncline.testing.observation import Observation, StreamView
from syncline.testing.oracle import Oracle
from syncline.values.ids import StreamId
from syncline.values.records import (
    AppendEntry,
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    TruncateStream,
)

STREAM = StreamId(b"s" * 24)
OTHER = StreamId(b"o" * 24)


def view(first: int, next_seq: int) -> StreamView:
    """A queue as `told` staged it, from one sequence to another."""
    return StreamView(
        StreamState(StreamKind.QUEUE, first, next_seq, 0, False),
        [Entry(seq, 5, b"%d" % seq) for seq in range(first, next_seq)],
        None,
        {},
    )


def seen(**streams: StreamView) -> Observation:
    ids = {"s": STREAM, "o": OTHER}
    found = {ids[name]: shown for name, shown in streams.items()}
    return Observation(found, len(found), ())


def told(durable_count: int, staged_count: int = 0, first: int = 1) -> Oracle:
    """A queue with durable entries, durably acknowledged below `first`, and more staged."""
    oracle = Oracle()
    oracle.staged(CreateStream(STREAM, StreamKind.QUEUE, 0, 5))
    for seq in range(1, durable_count + 1):
        oracle.staged(AppendEntry(STREAM, b"%d" % seq, 5))
    if first > 1:
        oracle.staged(TruncateStream(STREAM, first))
    oracle.batch_taken(acknowledgements=True)
    oracle.batch_finished()
    for seq in range(durable_count + 1, durable_count + staged_count + 1):
        oracle.staged(AppendEntry(STREAM, b"%d" % seq, 5))
    return oracle


def rules(oracle: Oracle, observation: Observation) -> set[str]:
    return {violation.rule for violation in oracle.violations(observation)}


def test_all_that_is_durable_and_any_part_of_what_is_staged_is_accepted() -> None:
    oracle = told(3, 2)
    assert [rules(oracle, seen(s=view(1, next_seq))) for next_seq in (4, 5, 6)] == [set()] * 3
    assert oracle.acknowledged_count == 3


@pytest.mark.parametrize(
    ("observation", "rule"),
    [
        (seen(), "lost"),
        (seen(s=view(1, 3)), "lost"),
        (seen(s=view(1, 7)), "invented"),
        (seen(s=view(2, 4)), "lost"),
        (seen(s=replace(view(1, 4), entries=view(1, 4).entries[1:])), "gap"),
        (seen(s=replace(view(1, 4), entries=[*view(1, 3).entries, Entry(3, 5, b"x")])), "changed"),
        (seen(s=replace(view(1, 4), entries=[*view(1, 3).entries, Entry(3, 6, b"3")])), "changed"),
        (seen(s=replace(view(1, 4), entries=[*view(1, 4).entries][::-1])), "gap"),
        (seen(s=view(1, 4), o=view(1, 1)), "invented"),
        (seen(s=replace(view(1, 4), snapshot=Snapshot(1, 5, b"x"))), "changed"),
        (seen(s=replace(view(1, 4), cursors={b"c": 1})), "changed"),
        (replace(seen(s=view(1, 4)), damage=(Damage("f", 0, "r"),)), "damage"),
        (replace(seen(s=view(1, 4)), stream_count=2), "changed"),
        (
            seen(s=replace(view(1, 4), state=StreamState(StreamKind.DOCUMENT, 1, 4, 0, False))),
            "settings",
        ),
        (
            seen(s=replace(view(1, 4), state=StreamState(StreamKind.QUEUE, 1, 4, 9, False))),
            "settings",
        ),
    ],
)
def test_what_must_not_be_is_named(observation: Observation, rule: str) -> None:
    assert rule in rules(told(3, 2), observation)


def test_a_batch_under_way_may_be_there_in_part() -> None:
    oracle = told(1, 2)
    oracle.batch_taken(acknowledgements=True)
    assert rules(oracle, seen(s=view(1, 2))) == set()
    assert rules(oracle, seen(s=view(1, 3))) == set()
    oracle.batch_finished()
    assert rules(oracle, seen(s=view(1, 3))) == {"lost"}
    assert rules(oracle, seen(s=view(1, 4))) == set()


def test_what_is_staged_behind_a_taken_batch_is_not_durable_with_it() -> None:
    oracle = told(1)
    oracle.batch_taken(acknowledgements=True)
    oracle.staged(AppendEntry(STREAM, b"2", 5))
    oracle.batch_finished()
    assert rules(oracle, seen(s=view(1, 2))) == set()


def test_a_durable_acknowledgement_stays_and_a_staged_one_may_go() -> None:
    oracle = told(5, first=3)
    oracle.staged(TruncateStream(STREAM, 5))
    assert rules(oracle, seen(s=view(3, 6))) == set()
    assert rules(oracle, seen(s=view(5, 6))) == set()
    assert "reappeared" in rules(oracle, seen(s=view(2, 6)))
    assert rules(oracle, seen(s=view(4, 6))) == {"lost"}, "nobody acknowledged up to there"


def test_a_deferred_acknowledgement_is_durable_with_the_next_batch_that_takes_them() -> None:
    oracle = told(5)
    oracle.staged(TruncateStream(STREAM, 4))
    oracle.staged(MoveCursor(STREAM, b"c", 2))
    oracle.batch_taken(acknowledgements=False)
    oracle.batch_finished()
    assert rules(oracle, seen(s=view(1, 6))) == set()
    oracle.batch_taken(acknowledgements=True)
    oracle.batch_finished()
    assert "reappeared" in rules(oracle, seen(s=view(1, 6)))
    assert rules(oracle, seen(s=replace(view(4, 6), cursors={b"c": 2}))) == set()


def test_a_deleted_stream_does_not_come_back() -> None:
    oracle = told(2)
    oracle.staged(DeleteStream(STREAM))
    oracle.batch_taken(acknowledgements=True)
    assert rules(oracle, seen(s=view(1, 3))) == set()
    assert rules(oracle, seen()) == set()
    oracle.batch_finished()
    assert rules(oracle, seen()) == set()
    assert rules(oracle, seen(s=view(1, 3))) == {"resurrected"}


def test_a_stream_created_anew_has_nothing_of_the_old_one() -> None:
    oracle = told(2)
    oracle.staged(DeleteStream(STREAM))
    oracle.staged(CreateStream(STREAM, StreamKind.QUEUE, 0, 5))
    assert rules(oracle, seen(s=view(1, 1))) == set()
    assert rules(oracle, seen(s=view(1, 3))) == set(), "neither is durable yet"
    oracle.batch_taken(acknowledgements=True)
    oracle.batch_finished()
    assert rules(oracle, seen(s=view(1, 1))) == set()
    assert "invented" in rules(oracle, seen(s=view(1, 3)))
    assert rules(oracle, seen()) == {"lost"}


def test_snapshots_and_cursors_are_as_durable_as_their_batch() -> None:
    oracle = told(2)
    oracle.staged(PutSnapshot(STREAM, 2, b"x", 7))
    oracle.staged(MoveCursor(STREAM, b"c", 1))
    with_both = replace(view(1, 3), snapshot=Snapshot(2, 7, b"x"), cursors={b"c": 1})
    assert rules(oracle, seen(s=view(1, 3))) == set()
    oracle.batch_taken(acknowledgements=True)
    oracle.batch_finished()
    assert rules(oracle, seen(s=with_both)) == set()
    assert rules(oracle, seen(s=view(1, 3))) == {"lost", "changed"}
    oracle.staged(DropCursor(STREAM, b"c"))
    assert rules(oracle, seen(s=replace(with_both, cursors={}))) == set()


def test_a_quota_marker_blocks_the_queue_it_waits_in() -> None:
    oracle = told(1)
    oracle.marker_staged(STREAM, 5)
    marker = Entry(2, 5, b"", EntryKind.QUOTA_MARKER)
    blocked = StreamView(
        StreamState(StreamKind.QUEUE, 1, 3, 0, True), [*view(1, 2).entries, marker], None, {}
    )
    assert rules(oracle, seen(s=blocked)) == set()
    unblocked = replace(blocked, state=StreamState(StreamKind.QUEUE, 1, 3, 0, False))
    assert rules(oracle, seen(s=unblocked)) == {"changed"}
    wrongly = replace(view(1, 2), state=StreamState(StreamKind.QUEUE, 1, 2, 0, True))
    assert rules(oracle, seen(s=wrongly)) == {"changed"}


def test_an_adopted_observation_is_durable() -> None:
    oracle = told(3, 2)
    oracle.adopt(seen(s=view(1, 5)))
    assert rules(oracle, seen(s=view(1, 5))) == set()
    assert rules(oracle, seen(s=view(1, 4))) == {"lost"}
    oracle.staged(AppendEntry(STREAM, b"5", 5))
    assert rules(oracle, seen(s=view(1, 6))) == set()


@pytest.mark.parametrize("shown", [lambda: seen(), lambda: seen(s=view(1, 2))])
def test_a_forgiving_oracle_takes_any_prefix_but_no_invention(
    shown: Callable[[], Observation],
) -> None:
    oracle = Oracle(is_forgiving=True)
    oracle.staged(CreateStream(STREAM, StreamKind.QUEUE, 0, 5))
    oracle.staged(AppendEntry(STREAM, b"1", 5))
    oracle.batch_taken(acknowledgements=True)
    oracle.batch_finished()
    assert rules(oracle, shown()) == set()
    assert "invented" in rules(oracle, seen(s=view(1, 3)))
