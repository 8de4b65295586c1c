"""A log that is read while its router works, seals and restarts: every record once, or in a gap."""

import json
import random
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from syncline.pipeline.sources.folders import Tail, look_at, segment_path
from syncline.pipeline.sources.rows import Unread
from syncline.pipeline.sources.source import (
    LogStreamReader,
    SourceOptions,
    available,
    planned,
    read_partition,
)
from syncline.storage.base import commit
from syncline.storage.files import DiskFiles
from tests.pipeline.log_rows import Row, as_rows
from tests.pipeline.routers import Router, stream_id

FILES = DiskFiles()
STREAMS = 4


class Follower:
    """Reads on from where it was, as a stream or `ingest` does."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._starts: dict[str, int] = {}
        self.rows: list[Row] = []

    def read(self, tail: Tail) -> None:
        options = SourceOptions.of({"path": self._folder, "tail": tail})
        found = available(options)
        ends = {store: max(end, self._starts.get(store, 0)) for store, end in found.items()}
        for part in planned(options, self._starts, ends, ()):
            self.rows += as_rows(read_partition(part))
        self._starts = ends


class Work:
    """What a router was asked to do: the messages, and how far each stream was acknowledged."""

    def __init__(self, router: Router, seed: int) -> None:
        self.router = router
        self.messages: dict[tuple[bytes, int], bytes] = {}
        self.acknowledged = dict.fromkeys(range(STREAMS), 0)
        self._next = dict.fromkeys(range(STREAMS), 1)
        self._random = random.Random(seed)
        router.create(*range(STREAMS))

    def step(self) -> None:
        number = self._random.randrange(STREAMS)
        for _ in range(self._random.randrange(1, 12)):
            payload = self._random.randbytes(self._random.randrange(50, 1_500))
            self.router.now_ms += 10
            self.router.store.append(stream_id(number), payload, self.router.now_ms)
            self.messages[stream_id(number), self._next[number]] = payload
            self._next[number] += 1
        commit(self.router.store)
        if self._random.random() < 0.4:
            reached = self._random.randrange(self.acknowledged[number], self._next[number])
            self.acknowledged[number] = reached
            self.router.acknowledge(number, reached)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("reads_often", "has_archive"), [(True, False), (False, False), (False, True)]
)
def test_every_record_comes_once_whatever_the_router_does(
    tmp_path: Path, seed: int, reads_often: bool, has_archive: bool
) -> None:
    router = Router(tmp_path / "data", seed, archive_bytes_max=(1 << 30) * has_archive)
    work = Work(router, seed)
    follower = Follower(router.folder)
    chance = random.Random(seed)
    for step in range(150):
        work.step()
        # Who reads before each sealing misses nothing.
        if reads_often or chance.random() < 0.02:
            follower.read(chance.choice([Tail.NONE, Tail.DURABLE]) if step % 7 else Tail.DURABLE)
        if chance.random() < 0.2:
            router.seal()
        if chance.random() < 0.03:
            router.restart()
    router.stop()
    follower.read(Tail.STOPPED)

    keys = [(row[0], row[1]) for row in follower.rows if row[2] >= 0]
    assert len(keys) == len(set(keys))
    gaps = [row for row in follower.rows if row[2] == Unread.GAP]
    assert all(row[2] in (1, 3, 5, Unread.GAP) for row in follower.rows)
    found = {(row[4], row[5]): row[-1] for row in follower.rows if row[2] == 1}
    assert found.items() <= work.messages.items()
    missing = work.messages.keys() - found.keys()
    if reads_often or has_archive:
        assert not gaps
        assert not missing
    else:
        # What a gap costs is what nobody wanted any more.
        assert gaps
        for number, reached in work.acknowledged.items():
            assert all(seq <= reached for stream, seq in missing if stream == stream_id(number))


@pytest.mark.parametrize("torn_bytes", [0, 30, 4_096])
def test_a_segment_whose_first_batch_was_never_written_does_not_close_the_one_before(
    tmp_path: Path, torn_bytes: int
) -> None:
    router = Router(tmp_path / "data")
    work = Work(router, 1)
    while len(look_at(router.folder, FILES).closed) < 2:
        work.step()
    size = look_at(router.folder, FILES).segment_bytes
    while router.store.describe()["log_end"] % size > size // 2:
        work.step()
    router.stop()
    # A crash while the next segment was begun: there is room left in this one for small batches.
    found = look_at(router.folder, FILES)
    assert found.open_segment is not None
    begun = Path(segment_path(router.folder, found.open_segment)).read_bytes()
    number = found.open_segment + 1
    torn = bytearray(begun[:torn_bytes])
    torn[16:24] = (number * size).to_bytes(8, "little")[: max(0, torn_bytes - 16)]
    Path(segment_path(router.folder, number)).write_bytes(bytes(torn).ljust(size, b"\0"))
    assert look_at(router.folder, FILES).open_segment == found.open_segment
    follower = Follower(router.folder)
    for tail in (Tail.NONE, Tail.DURABLE, Tail.STOPPED):
        follower.read(tail)
    router.start()
    for _ in range(20):
        work.step()
    router.stop()
    follower.read(Tail.STOPPED)
    assert {(row[4], row[5]): row[-1] for row in follower.rows if row[2] == 1} == work.messages
    keys = [(row[0], row[1]) for row in follower.rows if row[2] >= 0]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxBytes(1 << 20)])
def test_an_offset_is_one_text_whatever_the_order_of_the_logs(
    tmp_path: Path, limit: ReadLimit
) -> None:
    routers = [Router(tmp_path / str(seed), seed) for seed in (1, 2)]
    for router in routers:
        router.create(1)
        router.append(1, 10)
        router.stop()
    chance = random.Random(1)
    # Of logs that are not there at the moment: enough of them that some collide in a set.
    starts = {chance.randbytes(16).hex(): 65_536 for _ in range(50)}
    paths = json.dumps([router.folder for router in routers])
    options = {"paths": paths, "tail": Tail.STOPPED, "starts": json.dumps(starts)}
    reader = LogStreamReader(SourceOptions.of(options))
    known = json.dumps(reader.latestOffset(reader.initialOffset(), limit))
    assert list(json.loads(known)) == sorted(json.loads(known))
    assert json.loads(known).keys() == starts.keys() | {router.store_id.hex() for router in routers}
    for _ in range(5):
        logs = list(json.loads(known).items())
        chance.shuffle(logs)
        assert json.dumps(reader.latestOffset(dict(logs), limit)) == known


def test_where_a_stream_starts_is_one_text_too() -> None:
    options = {"path": "data", "starts": '{"b": 2, "a": 1}'}
    reader = LogStreamReader(SourceOptions.of(options))
    assert json.dumps(reader.initialOffset()) == '{"a": 1, "b": 2}'
