"""Every interleaving of staging, taking, writing and finishing, for a few writes.

The committer is driven by hand: a loop that runs one callback when told, a disk that makes a batch
durable when told and whose report arrives later. In each state that can be reached a crash is
possible, so in each the one promise must hold: whoever was told "durable" is durable.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from syncline.errors import DeviceError, StorageError, StoreFullError
from syncline.server.batch_thread import Written
from syncline.server.committer import Committer
from syncline.server.pace import COMPANY_RECORDS_MIN
from syncline.storage.base import Batch
from tests.unit.server.staged_store import CuttingStore, StagedStore

# W: a write with a waiter. A: an acknowledgement with a waiter. a: one that nobody waits for.
# J: a write of somebody who joins batches, and asks for one. S: a small write with a waiter, where
# batches wait for company.
PLANS = ["WWWW", "WAWA", "aWAA", "WaWA", "AWW", "JJJ", "WJJ", "JAJ", "SSS", "SAS", "SWJ"]


@dataclass
class ManualLoop:
    callbacks: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])

    def call_soon(self, callback: Callable[[], None], /) -> object:
        self.callbacks.append(callback)
        return None


@dataclass
class ManualWriter:
    """The disk and the way back from it, as two steps."""

    store: StagedStore
    loop: ManualLoop
    handed: deque[tuple[Batch, Written]] = field(default_factory=deque[tuple[Batch, Written]])

    def write(self, batch: Batch, written: Written) -> None:
        assert not self.handed, "two batches in flight"
        self.handed.append((batch, written))

    def close(self) -> None: ...

    def carry_out(self, failure: StorageError | None) -> None:
        batch, written = self.handed.popleft()
        if failure is None:
            self.store.write_batch(batch)
        self.loop.call_soon(lambda: written(0.1, failure))


class World:
    """One run of one plan. `moves` says what could happen next, `move` lets it happen."""

    def __init__(self, plan: str, store: StagedStore, committer_class: type[Committer]) -> None:
        self.plan = plan
        self.store = store
        self.loop = ManualLoop()
        self.writer = ManualWriter(store, self.loop)
        self.committer = committer_class(store.as_store(), self.loop, self.writer, lambda: 0.0)
        if "S" in plan:
            self.committer.pace.learn(1_000, COMPANY_RECORDS_MIN, 0.1)
        self.staged_count = 0
        self.failure_count = 0
        self.waited: list[str] = []
        # Staged by who joins batches, for the next one.
        self.joining: list[str] = []
        self.committer.join_batches(self._join)
        self.told: list[tuple[str, StorageError | None]] = []

    def moves(self) -> Iterator[str]:
        if self.staged_count < len(self.plan):
            yield "stage"
        if self.loop.callbacks:
            yield "turn"
        if self.writer.handed:
            yield "write"
            if self.failure_count == 0:
                yield "full"
                yield "break"

    def move(self, name: str) -> None:
        match name:
            case "stage":
                self._stage(self.plan[self.staged_count])
            case "turn":
                self.loop.callbacks.popleft()()
            case "write":
                self.writer.carry_out(None)
            case "full":
                self.failure_count += 1
                self.writer.carry_out(StoreFullError("data"))
            case "break":
                self.failure_count += 1
                self.writer.carry_out(DeviceError("data", "syncing", "input/output error"))
        self.check()

    def _stage(self, kind: str) -> None:
        name = f"{kind}{self.staged_count}"
        self.staged_count += 1
        if kind == "J":
            self.store.stage(name, 200_000)
            self.joining.append(name)
            self.committer.ask()
            return
        if kind in "WS":
            self.store.stage(name, 200_000 if kind == "W" else 1_000)
        else:
            self.store.acknowledge(name)
        if kind != "a":
            self.waited.append(name)
            self.committer.when_durable(
                lambda failure: self.told.append((name, failure)), acknowledgements=kind == "A"
            )

    def _join(self) -> Callable[[StorageError | None], None] | None:
        if not self.joining:
            return None
        names, self.joining = self.joining, []
        self.waited += names
        return lambda failure: self.told.extend((name, failure) for name in names)

    def check(self) -> None:
        durable = {name for name, failure in self.told if failure is None}
        assert durable <= set(self.store.durable), "told before it was durable"
        for kind in "WAJS":
            told = [name for name, _ in self.told if name[0] == kind]
            waited = [name for name in self.waited if name[0] == kind]
            assert told == waited[: len(told)], "out of order"

    def check_end(self) -> None:
        assert not self.joining, "somebody waits for ever"
        assert len(self.told) == len(self.waited), "somebody waits for ever"
        if self.failure_count == 0:
            assert all(failure is None for _, failure in self.told)


def explore(
    plan: str, make_store: Callable[[], StagedStore], committer_class: type[Committer]
) -> int:
    """Run every sequence of moves from the start; return how many ended."""
    end_count = 0
    paths: list[tuple[str, ...]] = [()]
    while paths:
        path = paths.pop()
        world = World(plan, make_store(), committer_class)
        for name in path:
            world.move(name)
        moves = list(world.moves())
        if not moves:
            world.check_end()
            end_count += 1
        paths += [(*path, name) for name in moves]
    return end_count


class OneWriteEach(CuttingStore):
    """Whatever the committer learns, a batch holds one write."""

    @property
    def batch_bytes_max(self) -> int:
        return 200_000

    @batch_bytes_max.setter
    def batch_bytes_max(self, value: int) -> None: ...


def cutting(*, room: int, carries: bool) -> Callable[[], StagedStore]:
    return lambda: OneWriteEach(acknowledgement_room=room, carries_acknowledgements=carries)


STORES = {
    "takes all": StagedStore,
    "cuts": cutting(room=9, carries=False),
    "cuts, little room": cutting(room=1, carries=False),
    "cuts, writes carry acknowledgements": cutting(room=9, carries=True),
}


@pytest.mark.parametrize("make_store", STORES.values(), ids=STORES)
@pytest.mark.parametrize("plan", PLANS)
def test_told_means_durable_in_every_interleaving(
    plan: str, make_store: Callable[[], StagedStore]
) -> None:
    assert explore(plan, make_store, Committer) > 50


def test_a_log_without_room_refuses_whoever_waits_for_acknowledgements() -> None:
    world = World("AW", OneWriteEach(acknowledgement_room=0), Committer)
    for name in ["stage", "turn", "stage", "turn", "write", "turn"]:
        world.move(name)
    assert [(name, type(failure)) for name, failure in world.told] == [
        ("A0", StoreFullError),
        ("W1", type(None)),
    ]


class TellsAtTaking(Committer):
    """Broken on purpose: the callbacks run when the batch goes to the disk."""

    def _start(self) -> None:
        super()._start()
        self._tell(self._waiters.pop_writes(), None)


class TellsLateComers(Committer):
    """Broken on purpose: a batch tells waiters that came after it was taken."""

    def _finish(self, batch: Batch, seconds: float, failure: StorageError | None) -> None:
        super()._finish(batch, seconds, failure)
        self._reached += 10_000_000


class ForgetsAcknowledgements(Committer):
    """Broken on purpose: whoever waits for an acknowledgement gets a batch without it."""

    def when_durable(
        self, told: Callable[[StorageError | None], None], *, acknowledgements: bool = False
    ) -> None:
        super().when_durable(told)


class PlacesTooEarly(Committer):
    """Broken on purpose: acknowledgements count as taken though the store held some back."""

    def _place_acknowledgements(self) -> None:
        self._waiters.place(self._reached + self._store.waiting_bytes)


class GoesOnAfterFailure(Committer):
    """Broken on purpose: a failed sync is tried again as if it could succeed."""

    def _stop(self, failure: StorageError) -> None:
        self._tell(self._waiters.pop_writes(), None)


class LosesItsTurn(Committer):
    """Broken on purpose: what came during a write is not started afterwards."""

    def _turn_over(self) -> None:
        self._is_busy = False


class JoinsTooLate(Committer):
    """Broken on purpose: who joins batches is asked when the batch is gone."""

    def _start(self) -> None:
        joining, self._joining = self._joining, []
        super()._start()
        self._joining = joining
        for joins in joining:
            if (told := joins()) is not None:
                self._add(told)


class ForgetsWhoAsked(Committer):
    """Broken on purpose: who asks while a batch is written is not served afterwards."""

    def ask(self) -> None:
        super().ask()
        self._is_asked = False


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (TellsAtTaking, "told before"),
        (TellsLateComers, "told before"),
        (ForgetsAcknowledgements, "told before"),
        (PlacesTooEarly, "told before"),
        (GoesOnAfterFailure, "told before"),
        (LosesItsTurn, "waits for ever"),
        (JoinsTooLate, "waits for ever"),
        (ForgetsWhoAsked, "waits for ever"),
    ],
)
def test_each_broken_committer_is_caught(broken: type[Committer], complaint: str) -> None:
    def explore_all() -> None:
        for plan in PLANS:
            for make_store in STORES.values():
                explore(plan, make_store, broken)

    with pytest.raises(AssertionError, match=complaint):
        explore_all()
