"""Folders written by a known scenario, to be damaged byte by byte, and the rules for what is left.

- Nothing is shown that was never staged: a damaged record is left out, not believed.
- A stream that shows less than it should is named by the store, or the damage is at the end of the
  log, where it cannot be told from the torn tail of a crash. A lost acknowledgement costs a
  redelivery and names nobody: one record has those of many streams.
- Every other stream is whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random

from syncline.errors import CorruptionError, UnknownQueueError
from syncline.storage.base import Store, StreamKind
from syncline.testing.files import SimulatedFiles
from syncline.testing.observation import Observation, StreamView, observe, view_stream
from syncline.testing.oracle import History, Oracle
from syncline.testing.workload import Workload, WorkloadShape
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.records import CreateStream, Record
from tests.crash.subjects import open_subject


class NothingSurvives(Random):
    """Draws the power cut after which nothing is left that was not synced."""

    def random(self) -> float:
        return 0.0


class _Touched:
    """Which streams each batch is about; `behind` are those of the last that was finished."""

    def __init__(self) -> None:
        self._staged: set[StreamId] = set()
        self._taken: set[StreamId] = set()
        self.behind: set[StreamId] = set()

    def staged(self, record: Record) -> None:
        self._staged.add(record.stream)

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        self._staged.add(stream)

    def batch_taken(self, *, acknowledgements: bool) -> None:
        self._taken, self._staged = self._staged, set()

    def batch_finished(self) -> None:
        self.behind = self._taken or self.behind


class _Both:
    """Tells two histories at once."""

    def __init__(self, *histories: History) -> None:
        self._histories = histories

    def staged(self, record: Record) -> None:
        for history in self._histories:
            history.staged(record)

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        for history in self._histories:
            history.marker_staged(stream, now_ms)

    def batch_taken(self, *, acknowledgements: bool) -> None:
        for history in self._histories:
            history.batch_taken(acknowledgements=acknowledgements)

    def batch_finished(self) -> None:
        for history in self._histories:
            history.batch_finished()


@dataclass(frozen=True, slots=True)
class Written:
    """A data folder and all that is known about it."""

    kind: str
    # As a kill leaves it, and as a power cut does that takes all it may.
    killed: SimulatedFiles
    bare: SimulatedFiles
    expected: Observation
    staged: Oracle
    at_the_end: frozenset[StreamId]

    def image(self, number: int) -> SimulatedFiles:
        """A copy to be damaged: by turns of the one and of the other."""
        source = self.killed if number % 2 else self.bare
        return source.kill(Random(0))


def write_folder(
    kind: str,
    seed: int,
    step_count: int,
    shape: WorkloadShape,
    *,
    is_sealed: bool = False,
    idle_count: int = 0,
) -> Written:
    """Do random work, and be killed.

    `is_sealed` does the jobs that are due before that. `idle_count` streams are created first and
    left alone: with enough work after them, nothing but the table knows them.
    """
    files = SimulatedFiles()
    staged, touched = Oracle(is_forgiving=True, expects_count=False), _Touched()
    numbers = count(1)
    workload = Workload(
        lambda: open_subject(kind, files, seed=next(numbers)),
        _Both(staged, touched),
        Random(seed),
        shape,
    )
    owner = workload.owner
    for number in range(idle_count):
        stream = StreamId(Random(number).randbytes(STREAM_ID_BYTES))
        owner.stage(CreateStream(stream, StreamKind.QUEUE, number, owner.clock()))
    workload.run(step_count)
    workload.commit(acknowledgements=True)
    if is_sealed:
        owner.do_jobs()
    # The last batch is about one stream alone: only that one may be shortened without a word.
    owner.append(min(owner.alive), b"the end")
    owner.commit()
    killed, bare = files.kill(Random(0)), files.crash(NothingSurvives())
    expected = observe(open_subject(kind, killed.kill(Random(0))))
    assert expected.streams == observe(open_subject(kind, bare.kill(Random(0)))).streams
    assert not staged.violations(expected)
    return Written(kind, killed, bare, expected, staged, frozenset(touched.behind))


@dataclass(frozen=True, slots=True)
class Look:
    """What a store on a damaged folder shows; `unreadable` streams are refused with an error."""

    seen: Observation
    unreadable: frozenset[StreamId]

    @property
    def named(self) -> frozenset[StreamId]:
        return self.unreadable | {
            damage.stream for damage in self.seen.damage if damage.stream is not None
        }

    def names(self, stream: StreamId) -> bool:
        """Whether the store says that this stream is damaged.

        Where the flipped bit is in the id itself, the store cannot know better than what it reads.
        """
        return any(_differing_bits(stream, named) <= 1 for named in self.named)


def _differing_bits(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def look(store: Store) -> Look:
    streams: dict[StreamId, StreamView] = {}
    unreadable: set[StreamId] = set()
    for stream in sorted(store.streams()):
        try:
            streams[stream] = view_stream(store, stream)
        except (CorruptionError, UnknownQueueError):
            # Unknown, though listed: a damaged id.
            unreadable.add(stream)
    while store.scrub(1 << 20):
        pass
    return Look(Observation(streams, len(streams), tuple(store.damage())), frozenset(unreadable))


def complaints(
    written: Written, shown: Look, excused: frozenset[StreamId] = frozenset()
) -> list[str]:
    """What the store should not have shown, or should have said."""
    seen = Observation(shown.seen.streams, len(shown.seen.streams), ())
    found = [
        f"wrongly accepted: {violation}"
        for violation in written.staged.violations(seen)
        if violation.rule in ("invented", "changed", "resurrected")
        or (violation.rule == "settings" and violation.stream not in shown.named)
    ]
    found += [
        f"silently different: {stream}"
        for stream in differing(written.expected.streams, seen.streams) - excused
        if not shown.names(stream)
        and not (shown.seen.damage and _is_redelivered(stream, written.expected, seen))
    ]
    return found


def _is_redelivered(stream: StreamId, expected: Observation, seen: Observation) -> bool:
    """Whether no more was lost of a stream than an acknowledgement."""
    before, after = expected.streams.get(stream), seen.streams.get(stream)
    if before is None or after is None or after.state.first > before.state.first:
        return False
    return (
        after.state.next == before.state.next
        and [entry for entry in after.entries if entry.seq >= before.state.first]
        == list(before.entries)
        and (after.snapshot, after.cursors) == (before.snapshot, before.cursors)
    )


def differing(
    expected: Mapping[StreamId, StreamView], seen: Mapping[StreamId, StreamView]
) -> set[StreamId]:
    return {
        stream
        for stream in expected.keys() | seen.keys()
        if expected.get(stream) != seen.get(stream)
    }


Damager = Callable[[SimulatedFiles], None]


def damaged(written: Written, number: int, damage: Damager) -> Look:
    """Damage a copy of the folder and look at what a store makes of it."""
    files = written.image(number)
    damage(files)
    return look(open_subject(written.kind, files))
