"""Hypothesis looks for the shortest story of work and crashes after which a promise is broken."""

from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any, ClassVar, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
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
from syncline.storage.base import NotesEvents, Store, StreamKind
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import observe
from syncline.testing.owner import StoreOwner
from syncline.values.events import EventKind, encode_event
from syncline.values.ids import StreamId
from syncline.values.records import (
    CreateStream,
    DeleteStream,
    DropCursor,
    MoveCursor,
    PutSnapshot,
    TruncateStream,
)
from tests.crash.subjects import ARCHIVED, open_subject, oracle_for

STREAMS = [StreamId(bytes([number]) * 24) for number in range(4)]
NAMES = [b"a", b"b"]


Act = TypeVar("Act", bound=Callable[..., None])


def until_the_power_goes(act: Act) -> Act:
    """Carry it out; if the plug is pulled meanwhile, recover."""

    @wraps(act)
    def carry_out(self: "CrashMachine", **arguments: Any) -> None:
        try:
            act(self, **arguments)
        except SimulatedCrashError:
            self._recover(is_kill=False)

    return cast(Act, carry_out)


class CrashMachine(RuleBasedStateMachine):
    """A store, its owner, and a plug that is pulled now and then."""

    kind: ClassVar[str]
    ignored: ClassVar[frozenset[str]] = frozenset()

    @initialize()
    def start(self) -> None:
        self.files = SimulatedFiles(ignored_calls=self.ignored)
        self.oracle = oracle_for(self.kind)
        self.random = Random(0)
        self.counter = 0
        self.opening_count = 0
        self.owner = StoreOwner(self._open, self.oracle)

    def _open(self) -> Store:
        self.opening_count += 1
        return open_subject(self.kind, self.files, seed=self.opening_count)

    def _recover(self, *, is_kill: bool) -> None:
        crash = self.files.kill if is_kill else self.files.crash
        self.files = crash(self.random)
        store = self._open()
        seen = observe(store)
        assert self.oracle.violations(seen) == []
        self.oracle.adopt(seen)
        self.owner.resume(store)

    def _payload(self, size: int) -> bytes:
        self.counter += 1
        return b"%d:" % self.counter + bytes(size)

    def _alive(self, number: int) -> StreamId | None:
        stream = STREAMS[number]
        return stream if stream in self.owner.alive else None

    # Staging.

    @rule(number=st.integers(0, 3), is_document=st.booleans(), quota=st.sampled_from([0, 2]))
    @until_the_power_goes
    def create(self, number: int, is_document: bool, quota: int) -> None:
        if self._alive(number) is None:
            kind = StreamKind.DOCUMENT if is_document else StreamKind.QUEUE
            record = CreateStream(
                STREAMS[number], kind, 0 if is_document else quota, self.owner.clock()
            )
            self.owner.stage(record)

    @rule(number=st.integers(0, 3), size=st.sampled_from([0, 1, 100, 5_000, 30_000]))
    @until_the_power_goes
    def append(self, number: int, size: int) -> None:
        if (stream := self._alive(number)) is not None:
            self.owner.append(stream, self._payload(size))

    @rule(number=st.integers(0, 3), count=st.integers(1, 4))
    @until_the_power_goes
    def acknowledge(self, number: int, count: int) -> None:
        if (stream := self._alive(number)) is not None:
            first, end = self.owner.state(stream).first, self.owner.end_of_covered(stream)
            if first < end:
                self.owner.stage(TruncateStream(stream, min(first + count, end)))

    @rule(number=st.integers(0, 3))
    @until_the_power_goes
    def delete(self, number: int) -> None:
        if (stream := self._alive(number)) is not None:
            self.owner.stage(DeleteStream(stream))

    @rule(number=st.integers(0, 3), size=st.sampled_from([0, 3_000]))
    @until_the_power_goes
    def put_snapshot(self, number: int, size: int) -> None:
        if (stream := self._alive(number)) is not None:
            covered = self.owner.state(stream).next - 1
            record = PutSnapshot(stream, covered, self._payload(size), self.owner.clock())
            self.owner.stage(record)

    @rule(number=st.integers(0, 3), name=st.sampled_from(NAMES))
    @until_the_power_goes
    def move_cursor(self, number: int, name: bytes) -> None:
        if (stream := self._alive(number)) is not None:
            record = MoveCursor(stream, name, self.owner.state(stream).next)
            self.owner.stage(record)

    @rule(number=st.integers(0, 3), name=st.sampled_from(NAMES))
    @until_the_power_goes
    def drop_cursor(self, number: int, name: bytes) -> None:
        if (stream := self._alive(number)) is not None and name in self.owner.store.cursors(stream):
            self.owner.stage(DropCursor(stream, name))

    @rule(count=st.sampled_from([1, 30, 1_000]))
    @until_the_power_goes
    def note_events(self, count: int) -> None:
        if isinstance(self.owner.store, NotesEvents):
            for _ in range(count):
                self.owner.store.note_event(encode_event(EventKind.DELIVERED, self.owner.clock()))

    # Committing and upkeep.

    @rule(acknowledgements=st.booleans())
    @until_the_power_goes
    def commit(self, acknowledgements: bool) -> None:
        self.owner.commit(acknowledgements=acknowledgements)

    @rule()
    @until_the_power_goes
    def move_job(self) -> None:
        self.owner.move_job()

    @rule()
    @until_the_power_goes
    def do_jobs(self) -> None:
        self.owner.do_jobs()

    @rule(duration_ms=st.integers(0, 100), age_ms=st.integers(0, 100))
    @until_the_power_goes
    def expire(self, duration_ms: int, age_ms: int) -> None:
        self.owner.clock.advance(duration_ms)
        self.owner.expire(age_ms)

    @rule()
    @until_the_power_goes
    def reopen(self) -> None:
        self.owner.reopen()

    # Crashing.

    @rule(calls=st.integers(1, 40), seed=st.integers(0, 1 << 16))
    def loosen_the_plug(self, calls: int, seed: int) -> None:
        """The power goes with the call of this number from now."""
        self.random = Random(seed)
        self.files.crash_after(calls)

    @rule(is_kill=st.booleans(), seed=st.integers(0, 1 << 16))
    def crash(self, is_kill: bool, seed: int) -> None:
        self.random = Random(seed)
        self._recover(is_kill=is_kill)

    @invariant()
    @precondition(lambda self: hasattr(self, "owner"))
    @until_the_power_goes
    def what_is_staged_is_what_the_owner_meets(self) -> None:
        assert set(self.owner.store.streams()) == self.owner.alive


SEARCH = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["memory", "journal", "log", ARCHIVED, "tiny"])
def test_no_story_of_work_and_crashes_breaks_a_promise(kind: str) -> None:
    if kind == "memory":
        # Its disk lives with the files it was opened on, so its only crash is to be dropped.
        machine: type[CrashMachine] = type("Memory", (DroppedMachine,), {"kind": kind})
    else:
        machine = type("Story", (CrashMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=SEARCH)


class DroppedMachine(CrashMachine):
    def _recover(self, *, is_kill: bool) -> None:
        store = self._open()
        seen = observe(store)
        assert self.oracle.violations(seen) == []
        self.oracle.adopt(seen)
        self.owner.resume(store)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "ignored"),
    [
        ("early", frozenset[str]()),
        ("log", frozenset({"sync"})),
        ("journal", frozenset({"sync_folder"})),
    ],
)
def test_a_story_is_found_for_a_store_that_breaks_a_promise(
    kind: str, ignored: frozenset[str]
) -> None:
    machine = type("Broken", (CrashMachine,), {"kind": kind, "ignored": ignored})
    with pytest.raises((AssertionError, SynclineError)):
        run_state_machine_as_test(
            machine,
            # Finding it is the point; nobody will read it, so it need not be the shortest.
            settings=settings(
                SEARCH, max_examples=300, phases=[Phase.generate], print_blob=False, database=None
            ),
        )
