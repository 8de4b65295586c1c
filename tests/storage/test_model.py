"""Random commands on a backend and on the reference side by side: nobody can tell them apart.

Batches are taken, written and finished one step at a time, so that commands fall between; jobs too.
After a kill the backend may have fewer acknowledgements than were staged; nothing else may differ.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from syncline.errors import SynclineError
from syncline.storage.base import Batch, EntryKind, Store, StreamKind, run_jobs
from syncline.storage.memory import MemoryStore
from syncline.storage.options import STORE_KINDS
from syncline.testing.jobs import JobSteps
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.broken_stores import BROKEN_STORES
from tests.storage.under_test import StoreUnderTest, stream_id

# Few streams, so that commands meet in them and can disturb one another.
STREAMS = [stream_id(number) for number in range(4)]
ANY_STREAM = st.sampled_from(STREAMS)
KINDS_AND_QUOTAS = [
    (StreamKind.QUEUE, 2),
    (StreamKind.DOCUMENT, 0),
    (StreamKind.QUEUE, 5),
    (StreamKind.QUEUE, 0),
]
CURSOR_NAMES = [b"a", b"reader with a longer name"]
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([0, 1, 4_000, 4_096, 9_000]), st.integers(0, 20_000)
)
# A position is a part of the way from 0 to a little behind the end.
PARTS = st.integers(0, 12)
ALL_BYTES = limits.read_bytes_max
# Below the limit of a batch, so that one take holds all that is staged unless a segment ends.
STAGED_BYTES_MAX = 200_000


def outcome(act: Callable[[Store], object], store: Store) -> object:
    """What came of it: the value, or the class of the refusal."""
    try:
        return act(store)
    except (SynclineError, ValueError) as error:
        return type(error)


class Comparison(RuleBasedStateMachine):
    """`kind` is set by a subclass for each backend."""

    kind: str | type[MemoryStore]

    def __init__(self) -> None:
        super().__init__()
        self.tidy = tempfile.TemporaryDirectory(prefix="syncline-model-")
        folder = Path(self.tidy.name)
        self.subject = StoreUnderTest(self.kind, folder / "data")
        self.model = StoreUnderTest("memory", folder / "model")
        self.batches: tuple[Batch | None, Batch | None] | None = None
        self.is_written = False
        # The backend gave only a part of what is staged. The reference never does.
        self.is_partial = False
        self.jobs = JobSteps(self.subject.store)
        self.counter = 0
        # Where the readers of streams were whose deletion may not be durable yet.
        self.first_when_deleted: dict[StreamId, int] = {}

    @initialize(round_count=st.sampled_from([0, 3, 20]))
    def begin_with_all_streams(self, round_count: int) -> None:
        """Streams of each kind, and a past: entries that have been moved from file to file."""
        for stream, (kind, quota) in zip(STREAMS, KINDS_AND_QUOTAS, strict=True):
            self.create(stream, kind, quota)
        for _ in range(round_count):
            self.append(STREAMS[1], [300])
            self.append(STREAMS[3], [15_000] * 3)
            self.both(lambda store: store.truncate_before(STREAMS[3], store.state(STREAMS[3]).next))
            self.commit()
            run_jobs(self.subject.store)

    def both(self, act: Callable[[Store], object]) -> object:
        self.subject.now_ms += 1
        expected = outcome(act, self.model.store)
        found = outcome(act, self.subject.store)
        assert found == expected
        return found

    def payload(self, size: int) -> bytes:
        self.counter += 1
        unit = b"%d\n" % self.counter
        return (unit * (size // len(unit) + 1))[:size]

    def position(self, stream: StreamId, part: int) -> int:
        if stream not in self.model.store.streams():
            return part
        return self.model.store.state(stream).next * part // 11

    # Commands. What happens most often in life stands here more than once.

    def append(self, stream: StreamId, sizes: list[int]) -> None:
        for size in sizes:
            payload = self.payload(size)
            self.both(lambda store: store.append(stream, payload, self.subject.now_ms))  # noqa: B023
        if self.model.store.waiting_bytes > STAGED_BYTES_MAX:
            self.finish()
            self.commit()

    @rule(stream=ANY_STREAM, sizes=st.lists(SIZES, min_size=1, max_size=6))
    def append_some(self, stream: StreamId, sizes: list[int]) -> None:
        self.append(stream, sizes)

    @rule(stream=ANY_STREAM, sizes=st.lists(SIZES, min_size=1, max_size=3))
    def append_few(self, stream: StreamId, sizes: list[int]) -> None:
        self.append(stream, sizes)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=2))
    def append_to_all(self, sizes: list[int]) -> None:
        messages = [(stream, self.payload(size)) for size in sizes for stream in STREAMS]
        # Up to the first that is refused, and then what comes behind it.
        while messages:
            staged = self.both(lambda store: store.append_many(messages, self.subject.now_ms))  # noqa: B023
            assert isinstance(staged, list)
            messages = messages[len(staged) + 1 :]
        self.append(STREAMS[0], sizes)

    @rule(stream=ANY_STREAM)
    def append_a_segment(self, stream: StreamId) -> None:
        self.append(stream, [16_000] * 5)

    @rule(stream=ANY_STREAM, part=PARTS)
    def truncate(self, stream: StreamId, part: int) -> None:
        seq = self.position(stream, part)
        self.both(lambda store: store.truncate_before(stream, seq))

    @rule(stream=ANY_STREAM)
    def acknowledge_one(self, stream: StreamId) -> None:
        self.both(lambda store: store.truncate_before(stream, store.state(stream).first + 1))

    @rule(part=PARTS)
    def truncate_all(self, part: int) -> None:
        wanted = [(stream, self.position(stream, part)) for stream in STREAMS]
        # Up to the first that is refused, and then what comes behind it.
        while wanted:
            count = self.both(lambda store: store.truncate_many(wanted))  # noqa: B023
            assert isinstance(count, int)
            wanted = wanted[count + 1 :]

    @rule()
    def look_at_heads(self) -> None:
        self.both(lambda store: store.read_heads(STREAMS))

    @rule(stream=ANY_STREAM)
    def acknowledge_all(self, stream: StreamId) -> None:
        self.both(lambda store: store.truncate_before(stream, store.state(stream).next))

    def create(self, stream: StreamId, kind: StreamKind, quota: int) -> None:
        self.both(lambda store: store.create(stream, kind, quota, self.subject.now_ms))

    @rule(stream=ANY_STREAM)
    def delete(self, stream: StreamId) -> None:
        if stream in self.model.store.streams():
            first = self.model.store.state(stream).first
            self.first_when_deleted[stream] = max(first, self.first_when_deleted.get(stream, first))
        self.both(lambda store: store.delete(stream))

    @rule(stream=ANY_STREAM, kind_and_quota=st.sampled_from(KINDS_AND_QUOTAS))
    def create_anew(self, stream: StreamId, kind_and_quota: tuple[StreamKind, int]) -> None:
        self.delete(stream)
        self.create(stream, *kind_and_quota)

    @rule(kind_and_quota=st.sampled_from(KINDS_AND_QUOTAS))
    def create_what_is_missing(self, kind_and_quota: tuple[StreamKind, int]) -> None:
        for stream in STREAMS:
            self.create(stream, *kind_and_quota)

    @rule(part=PARTS, size=SIZES)
    def put_snapshots(self, part: int, size: int) -> None:
        for stream in sorted(self.model.store.streams()):
            if self.model.store.state(stream).kind is StreamKind.DOCUMENT:
                seq, payload = self.position(stream, part), self.payload(size)
                self.both(lambda store: store.put_snapshot(stream, seq, payload, seq))  # noqa: B023

    @rule(stream=ANY_STREAM, name=st.sampled_from(CURSOR_NAMES), part=PARTS, is_drop=st.booleans())
    def use_cursor(self, stream: StreamId, name: bytes, part: int, is_drop: bool) -> None:
        if is_drop:
            self.both(lambda store: store.drop_cursor(stream, name))
        seq = self.position(stream, part)
        self.both(lambda store: store.move_cursor(stream, name, seq))

    @precondition(lambda self: self.batches is None)
    @rule(age_ms=st.integers(0, 60), count_max=st.integers(1, 12))
    def expire(self, age_ms: int, count_max: int) -> None:
        """Which streams go first is the backend's choice; how many entries in all is not."""
        self.commit()
        before_ms = self.subject.now_ms - age_ms
        due = {stream: self.due_count(stream, before_ms) for stream in self.model.store.streams()}
        count = self.subject.store.expire_before(before_ms, count_max)
        assert count == min(count_max, sum(due.values()))
        for stream, due_count in due.items():
            was, now = self.model.store.state(stream).first, self.subject.store.state(stream).first
            assert was <= now <= was + due_count
            self.model.store.truncate_before(stream, now)
            count -= now - was
        assert count == 0

    def due_count(self, stream: StreamId, before_ms: int) -> int:
        if self.model.store.state(stream).kind is not StreamKind.QUEUE:
            return 0
        count = 0
        for entry in self.model.entries(stream):
            if entry.time_ms >= before_ms or entry.kind is not EntryKind.MESSAGE:
                break
            count += 1
        return count

    # Committing, in one go or step by step.

    @precondition(lambda self: self.batches is None)
    @rule()
    def commit(self) -> None:
        self.subject.commit()
        self.model.commit()
        self.first_when_deleted = {}

    @precondition(lambda self: self.batches is None)
    @rule(acknowledgements=st.booleans())
    def take(self, acknowledgements: bool) -> None:
        model = self.model.store.take_batch(acknowledgements=acknowledgements)
        subject = self.subject.store.take_batch(acknowledgements=acknowledgements)
        self.batches = (model, subject)
        self.is_written = False
        self.is_partial = (
            subject is not None and self.subject.store.waiting_bytes > subject.byte_count
        )

    @precondition(lambda self: self.batches is None)
    @rule(stream=ANY_STREAM, sizes=st.lists(SIZES, min_size=1, max_size=3))
    def create_anew_while_written(self, stream: StreamId, sizes: list[int]) -> None:
        """The narrow place: a batch is under way with entries of a stream that has a successor."""
        self.append(stream, sizes)
        self.take(acknowledgements=True)
        self.create_anew(stream, KINDS_AND_QUOTAS[STREAMS.index(stream)])

    @precondition(lambda self: self.batches is not None and not self.is_written)
    @rule()
    def write(self) -> None:
        assert self.batches is not None
        model, subject = self.batches
        if model is not None:
            self.model.store.write_batch(model)
        if subject is not None:
            self.subject.store.write_batch(subject)
        self.is_written = True
        if self.is_partial:
            self.finish()
            self.commit()

    @precondition(lambda self: self.batches is not None)
    @rule()
    def finish(self) -> None:
        if self.batches is not None and not self.is_written:
            self.write()
        if self.batches is None:
            return
        model, subject = self.batches
        if model is not None:
            self.model.store.finish_batch(model)
        if subject is not None:
            self.subject.store.finish_batch(subject)
        self.batches = None

    # Upkeep, in one go or step by step.

    @rule(bytes_max=st.sampled_from([0, 1_000, 100_000]))
    def upkeep(self, bytes_max: int) -> None:
        self.jobs.finish_all()
        if bytes_max:
            self.subject.store.scrub(bytes_max)

    @rule()
    def step_job(self) -> None:
        """Take one; run it; finish it."""
        self.jobs.step()

    # Ends and beginnings.

    @rule()
    def reopen(self) -> None:
        self.finish()
        self.jobs.finish()
        self.subject.reopen()
        self.jobs = JobSteps(self.subject.store)
        self.model.reopen()

    @rule()
    def crash(self) -> None:
        """Written batches are there. Acknowledgements may be behind, entries may not."""
        acknowledged = dict(self.first_when_deleted)
        for stream in self.model.store.streams():
            first = self.model.store.state(stream).first
            acknowledged[stream] = max(first, acknowledged.get(stream, first))
        self.subject.crash()
        self.model.crash()
        self.batches = None
        self.jobs = JobSteps(self.subject.store)
        for stream in self.model.store.streams():
            durable = self.model.store.state(stream)
            found = self.subject.store.state(stream)
            note(f"after the crash {stream} starts at {found.first}, known {durable.first}")
            assert durable.first <= found.first <= max(durable.first, acknowledged[stream])
            self.model.store.truncate_before(stream, found.first)
        self.commit()

    # What must be the same after every command.

    @invariant()
    def look_the_same(self) -> None:
        model, subject = self.model.store, self.subject.store
        streams = sorted(model.streams())
        assert sorted(subject.streams()) == streams
        for stream in streams:
            state = model.state(stream)
            assert subject.state(stream) == state
            assert subject.snapshot(stream) == model.snapshot(stream)
            assert dict(subject.cursors(stream)) == dict(model.cursors(stream))
            assert self.subject.entries(stream) == self.model.entries(stream)
            middle = (state.first + state.next) // 2
            for from_seq, count_max, bytes_max in (
                (0, 1, ALL_BYTES),
                (state.first + 1, 3, ALL_BYTES),
                (middle, 100, 5_000),
                (state.next - 1, 2, 1),
                (state.next, 1, ALL_BYTES),
            ):
                expected = model.read(stream, from_seq, count_max, bytes_max)
                assert subject.read(stream, from_seq, count_max, bytes_max) == expected
        assert list(subject.damage()) == []

    def teardown(self) -> None:
        self.subject.files.kill()
        self.tidy.cleanup()


def compare(kind: str | type[MemoryStore], chosen: settings) -> None:
    machine = type("Comparison", (Comparison,), {"kind": kind})
    run_state_machine_as_test(machine, settings=chosen)


# The same examples each time, so that a run says something about the change and not about luck.
SHORT = settings(
    max_examples=80,
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(SHORT, max_examples=1_000, stateful_step_count=80, derandomize=False)

# For what must be found: it ends at the first difference, and need not be the shortest.
SEARCH = settings(SHORT, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", STORE_KINDS)
def test_no_sequence_of_commands_tells_a_backend_from_the_reference(kind: str) -> None:
    compare(kind, SHORT)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", STORE_KINDS)
def test_no_long_sequence_of_commands_tells_a_backend_from_the_reference(kind: str) -> None:
    compare(kind, LONG)


@pytest.mark.parametrize("broken", BROKEN_STORES)
def test_a_broken_backend_is_told_from_the_reference(broken: type[MemoryStore]) -> None:
    with pytest.raises(AssertionError):
        compare(broken, SEARCH)
