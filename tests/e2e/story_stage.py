"""Routers at work with something going wrong at each, and what an audit must find of it.

Everything is planted from outside: by a proxy, by a signal, by the verbs of an operator. What must
be found follows from accounts that are kept outside as well: those of the workload, of the proxy,
and of the operator's API.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from syncline.demo.faults import Honest, LosesAcknowledgements, LosesChanges, RepeatsChanges
from syncline.demo.proxy import Frame, Meddler, Proxy
from syncline.demo.router import RouterProcess
from syncline.demo.workload import Size, Workload
from syncline.pipeline.sources.folders import look_at
from syncline.storage.documents import stream_of
from syncline.storage.files import DiskFiles
from syncline.values.events import Face
from tests.e2e.router_process import run_cli

# Meets what is planted. The others are left in peace.
VICTIM = "bob"
# After so long a router sends again what was not acknowledged.
RESEND_SECONDS = 5


class Line:
    """Between the victim and the router, with whatever meddler is there now."""

    def __init__(self) -> None:
        self.meddler: Meddler = Honest()

    def to_router(self, frame: Frame) -> int:
        return self.meddler.to_router(frame)

    def to_client(self, frame: Frame) -> int:
        return self.meddler.to_client(frame)


@dataclass(frozen=True, slots=True, order=True)
class Planted:
    """What must be found, once. Without a session where it is nobody's."""

    rule: str
    stream: bytes
    seq: int
    session: int | None = None


@dataclass(slots=True)
class Stage:
    """One router with its workload, from its start to its end."""

    router: RouterProcess
    workload: Workload
    line: Line
    lag_seconds: int
    # Data folders, in the order in which they were used.
    folders: list[Path]
    planted: list[Planted] = field(default_factory=list[Planted])
    was_killed: bool = False
    # What the router had of each document in the end.
    states: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def logs(self) -> list[bytes]:
        """Their ids: one for each folder, as they go on there."""
        return [look_at(str(folder), DiskFiles()).log_id for folder in self.folders]

    def counted(self, life: int) -> dict[str, Counter[bytes]]:
        """By stream, what the workload itself has counted: appended, and delivered."""
        ledger = self.workload.ledger
        saved, applied = (
            Counter(bytes(stream_of(place.document)) for place, _ in places if place.life == life)
            for places in (ledger.saved, ledger.applied)
        )
        # All that were stored have been received, also those whose sender was not told; some once
        # more in the next life, if the backup was made before their acknowledgement was on disk.
        received = {letter.text for letter in ledger.received}
        sent = [each for each in (*ledger.sent, *ledger.unsure) if each.life == life]
        letters = Counter(letter.queue for letter in sent if letter.text in received)
        # An author gets a receipt where others get the change.
        return {"appended": saved + letters, "delivered": saved + applied + letters}

    async def session(self, document: str) -> int:
        """Of the victim, as the log has it."""
        number = (await self.workload.sessions(document))[VICTIM]
        return number << 4 | Face.DOCUMENTS

    def plant(self, rule: str, document: str, seq: int, session: int | None = None) -> None:
        self.planted.append(Planted(rule, bytes(stream_of(document)), seq, session))


Act = Callable[[Stage], Awaitable[None]]


async def played(
    title: str,
    folder: Path,
    acts: Sequence[Act],
    *,
    seed: int = 1,
    turn_count: int = 6,
    size: Size | None = None,
    lag_seconds: int = 30,
) -> Stage:
    """All of it: work, each act after the one before has settled, work again.

    `folder` is there, and empty.
    """
    settings = {"documents.relative_lag_seconds": str(lag_seconds)}
    router = RouterProcess(folder / "data", settings)
    async with router.running():
        workload = Workload(seed, router, folder, title=title, size=size)
        stage = Stage(router, workload, Line(), lag_seconds, [router.folder])
        async with (
            Proxy(lambda: router.url, stage.line).running() as proxy,
            workload.connected({VICTIM: proxy.url}),
        ):
            await workload.work(turn_count)
            await workload.settled()
            for act in acts:
                await act(stage)
                stage.line.meddler = Honest()
                await workload.settled()
            await workload.work(turn_count)
            await workload.settled()
            assert await workload.different() == []
            stage.states = await workload.states()
        await router.stop()
    return stage


# -------------------------------------------------------------------------------------------- acts


async def somebody_visits(stage: Stage) -> None:
    """Nothing goes wrong: one more client comes, and leaves again."""
    async with stage.workload.joined("zoe", stage.router.url):
        await stage.workload.work(4)
        await stage.workload.settled()
    await stage.workload.work(4)


async def changes_get_lost(stage: Stage) -> None:
    workload = stage.workload
    document, other = list(workload.documents)[:2]
    stage.line.meddler = meddler = LosesChanges([document], is_on=True)
    session = await stage.session(document)
    await workload.write("ann", [document, other], 3)
    # The router sends again by itself.
    await workload.settled()
    assert len(meddler.lost) == 3
    for _, seq in meddler.lost:
        stage.plant("resent", document, seq, session)


async def changes_come_twice(stage: Stage) -> None:
    workload = stage.workload
    stage.line.meddler = meddler = RepeatsChanges(is_on=True)
    await workload.write(VICTIM, workload.documents, 2)
    await workload.settled()
    clocks = workload.ledger.clocks(VICTIM)
    assert len(meddler.repeated) == 2 * len(workload.documents)
    for document, clock in meddler.repeated:
        session = await stage.session(document)
        stage.plant("repeated", document, clocks[document, clock].seq, session)


async def acknowledgements_get_lost(stage: Stage) -> None:
    workload = stage.workload
    document = list(workload.documents)[1]
    stage.line.meddler = meddler = LosesAcknowledgements([document], is_on=True)
    session = await stage.session(document)
    before = len(workload.ledger.saved)
    await workload.write("ann", [document], 3)
    # Given up by the router, the client comes back by itself, and is heard again.
    await workload.settled()
    [(evicted, acked)] = meddler.evicted
    assert evicted == document
    stage.plant("evicted", document, acked, session)
    for place, _ in workload.ledger.saved[before:]:
        stage.plant("unacknowledged", document, place.seq, session)
        if stage.lag_seconds > RESEND_SECONDS:
            stage.plant("resent", document, place.seq, session)


async def router_is_killed(stage: Stage) -> None:
    """In the middle of everything."""
    workload = stage.workload
    goal = len(workload.ledger.saved) + 20
    work = asyncio.create_task(workload.work(20))
    await workload.until(lambda ledger: len(ledger.saved) >= goal)
    assert not work.done()
    await stage.router.kill()
    await stage.router.start()
    await work
    stage.was_killed = True


async def backup_is_restored(stage: Stage) -> None:
    """What came after the backup is gone; all go on with what was there."""
    workload, router = stage.workload, stage.router
    ledger = workload.ledger
    backup, restored = (router.folder.with_name(name) for name in ("backup", "restored"))
    await router.back_up(backup)
    saved, received = len(ledger.saved), Counter(letter.queue for letter in ledger.received)
    await workload.work(4)
    await workload.settled()
    await router.stop()
    for place, _ in ledger.saved[saved:]:
        stage.plant("rolled_back", place.document, place.seq)
    for letter in ledger.received[received.total() :]:
        # One reader gets them in their order.
        received[letter.queue] += 1
        stage.planted.append(Planted("rolled_back", letter.queue, received[letter.queue]))
    done = await asyncio.to_thread(run_cli, "restore", backup, restored)
    assert done.returncode == 0, done.stderr
    ledger.life += 1
    await router.start(restored)
    stage.folders.append(restored)
