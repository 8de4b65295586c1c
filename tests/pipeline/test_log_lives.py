"""Folders that are backed up, restored and read in any order: no record twice, and none missing."""

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from syncline.cli import keeping
from syncline.errors import CorruptionError
from syncline.pipeline.sources.folders import Tail, look_at
from syncline.pipeline.sources.source import (
    SourceOptions,
    available,
    bounded,
    planned,
    read_partition,
)
from syncline.server.hot_backup import HotBackup
from syncline.storage.base import commit
from syncline.storage.files import DiskFiles
from syncline.storage.life import LIFE_NAME, log_id, read_lives
from syncline.values.events import EventKind, encode_event
from syncline.values.limits import MIB
from tests.e2e.router_process import running
from tests.pipeline.routers import Router, stream_id

FILES = DiskFiles()
QUEUE = stream_id(1)
# Column by which a row is known for ever, and what was written.
Key = tuple[bytes, int, int]


class Reader:
    """Keeps what `ingest` does: how far it has come with each log, and the rows."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}
        self.rows: list[tuple[Key, int, bytes | None]] = []

    def read(self, *folders: str, tail: Tail, batch_bytes: int = 256 * MIB) -> None:
        options = SourceOptions.of({"paths": json.dumps(folders), "tail": tail})
        found = available(options)
        while True:
            ends = {log: max(end, self.starts.get(log, 0)) for log, end in found.items()}
            ends = bounded(options, self.starts, ends, batch_bytes)
            for part in planned(options, self.starts, ends, ()):
                for batch in read_partition(part):
                    for row in batch.to_pylist():
                        key = (row["store"], row["position"], row["part"])
                        self.rows.append((key, row["kind"], row["body"]))
            if ends == {log: self.starts.get(log, 0) for log in ends}:
                # However little is read at once, it comes to an end, and that is everything.
                assert all(self.starts.get(log, 0) >= end for log, end in found.items())
                return
            self.starts |= ends

    @property
    def messages(self) -> Counter[bytes | None]:
        return Counter(body for _, kind, body in self.rows if kind == 1)


@dataclass
class Folder:
    """A router and what was ever sent to it, in this life and before."""

    router: Router
    sent: list[bytes]


@dataclass
class World:
    root: Path
    seed: int
    folders: list[Folder] = field(default_factory=list[Folder])
    backups: list[tuple[Path, list[bytes]]] = field(default_factory=list[tuple[Path, list[bytes]]])
    reader: Reader = field(default_factory=Reader)
    count: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        router = Router(self.root / "0", self.seed, archive_bytes_max=1 << 30)
        router.create(1)
        self.folders.append(Folder(router, []))

    def steps(self) -> Iterator[str]:
        """Work is most of what happens; reading and restoring come in between."""
        for _ in range(60):
            step = self.chance.choice(
                ["work"] * 6 + ["seal", "restart", "back_up", "restore", "read", "read", "give_up"]
            )
            getattr(self, step)(self.chance.choice(self.folders))
            yield step

    def work(self, folder: Folder) -> None:
        for _ in range(self.chance.randrange(1, 25)):
            self.count += 1
            body = f"{self.count} ".encode() + self.chance.randbytes(self.chance.randrange(3_000))
            folder.router.now_ms += 1
            folder.router.store.append(QUEUE, body, folder.router.now_ms)
            folder.sent.append(body)
            if self.chance.random() < 0.3:
                row = encode_event(EventKind.DELIVERED, folder.router.now_ms, QUEUE, 18, 1, 1)
                folder.router.store.note_event(row)
                commit(folder.router.store)
        commit(folder.router.store)

    def seal(self, folder: Folder) -> None:
        folder.router.seal()

    def restart(self, folder: Folder) -> None:
        folder.router.restart()

    def back_up(self, folder: Folder, is_hot: bool | None = None) -> None:
        target = self.root / f"backup-{len(self.backups)}"
        router = folder.router
        if self.chance.random() < 0.5 if is_hot is None else is_hot:
            hot = HotBackup(router.store, FILES, router.folder, lambda: router.now_ms)
            lines = asyncio.run(run_out(hot, str(target)))
            assert json.loads(lines[-1])["done"]
        else:
            router.stop()
            keeping.backup(target, folder=Path(router.folder), is_json=True)
            router.start()
        self.backups.append((target, list(folder.sent)))

    def restore(self, _: Folder, which: int | None = None) -> None:
        if not self.backups or len(self.folders) > 3:
            return
        source, sent = self.chance.choice(self.backups) if which is None else self.backups[which]
        self.count += 1
        target = self.root / f"restored-{self.count}"
        keeping.restore(source, target, is_json=True)
        router = Router(target, self.count, archive_bytes_max=1 << 30)
        self.folders.append(Folder(router, list(sent)))

    def give_up(self, folder: Folder) -> None:
        """Its machine is gone, and with it whatever nobody has read."""
        if len(self.folders) > 1:
            self.folders.remove(folder)
            folder.router.stop()
            shutil.rmtree(folder.router.folder)

    def read(self, _: Folder) -> None:
        some = self.chance.sample(self.folders, self.chance.randrange(1, len(self.folders) + 1))
        tail = self.chance.choice([Tail.NONE, Tail.DURABLE])
        batch_bytes = self.chance.choice([1, 200_000, 256 * MIB])
        self.reader.read(*(each.router.folder for each in some), tail=tail, batch_bytes=batch_bytes)


async def run_out(backup: HotBackup, target: str) -> list[bytes]:
    return [line async for line in backup.run(target)]


@pytest.mark.parametrize("seed", range(5))
def test_every_record_comes_once_whatever_is_restored(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    taken = list(world.steps())
    for folder in world.folders:
        folder.router.stop()
    folders = [each.router.folder for each in world.folders]
    world.reader.read(*folders, tail=Tail.STOPPED)
    reader = world.reader
    keys = [key for key, kind, _ in reader.rows if kind >= 0]
    assert len(keys) == len(set(keys)), taken
    assert max(reader.messages.values(), default=1) == 1, taken
    for folder in world.folders:
        missing = [body[:8] for body in folder.sent if not reader.messages[body]]
        assert not missing, (taken, missing)
    # Nothing is new: neither read once more, nor with another tail.
    count = len(reader.rows)
    reader.read(*folders, tail=Tail.STOPPED)
    assert len(reader.rows) == count


def test_a_restored_folder_is_another_log_from_its_branch_on(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    first = world.folders[0]
    world.work(first)
    world.back_up(first)
    world.work(first)
    world.restore(first)
    second = world.folders[1]
    world.work(second)
    for folder in world.folders:
        folder.router.stop()
    reader = world.reader
    reader.read(second.router.folder, tail=Tail.STOPPED)
    (life,) = read_lives(FILES, second.router.folder)
    store_id = first.router.store_id
    positions: dict[bytes, list[int]] = {}
    for (log, position, _), _, _ in reader.rows:
        positions.setdefault(log, []).append(position)
    assert set(positions) == {store_id, log_id(store_id, (life,))}
    assert life.former == store_id
    assert max(positions[store_id]) < life.branch <= min(positions[log_id(store_id, (life,))])
    # A place in the log before that only its own folder has: nothing here passes for it.
    options = SourceOptions.of({"path": second.router.folder, "tail": Tail.STOPPED})
    asked = planned(options, {}, {store_id.hex(): 1 << 40}, ())
    found = [row for part in asked for batch in read_partition(part) for row in batch.to_pylist()]
    assert [row["position"] for row in found] == positions[store_id]
    # What the first one went on to do has the same positions, and is another log.
    reader.read(first.router.folder, tail=Tail.STOPPED)
    assert all(reader.messages[body] == 1 for body in {*first.sent, *second.sent})


@pytest.mark.parametrize("is_hot", [True, False])
def test_a_backup_of_a_restored_folder_keeps_its_history(tmp_path: Path, is_hot: bool) -> None:
    world = World(tmp_path, 5)
    for _ in range(3):
        newest = world.folders[-1]
        world.work(newest)
        world.back_up(newest, is_hot)
        # It goes on: each of its positions is used by the next one as well.
        world.work(newest)
        world.restore(newest, -1)
        world.work(world.folders[-1])
    for folder in world.folders:
        folder.router.stop()
    reader = world.reader
    for folder in world.folders[::-1]:
        reader.read(folder.router.folder, tail=Tail.STOPPED)
    keys = [key for key, kind, _ in reader.rows if kind >= 0]
    assert len(keys) == len(set(keys))
    assert len({log for log, _, _ in keys}) == 4
    sent = {body for folder in world.folders for body in folder.sent}
    assert reader.messages == dict.fromkeys(sent, 1)


def test_a_router_notes_its_start_and_what_its_api_gives_out(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        queue = router.create()
        router.append(queue, b"one")
        assert router.stop() == 0
    keeping.backup(tmp_path / "copy", folder=tmp_path / "data", is_json=True)
    keeping.restore(tmp_path / "copy", tmp_path / "back", is_json=True)
    with running(tmp_path / "back") as router:
        router.append(queue, b"two")
        assert router.seqs(queue) == [1, 2]
        answer = router.client.post(f"/api/queues/{queue}/acknowledge", json={"seq": 1})
        assert answer.status_code == 200
        assert router.stop() == 0
    options = SourceOptions.of({"path": str(tmp_path / "back"), "tail": Tail.STOPPED})
    (life,) = read_lives(FILES, str(tmp_path / "back"))
    former, store = life.former, log_id(life.former, (life,))
    rows = [
        row
        for part in planned(options, {}, available(options), ())
        for batch in read_partition(part)
        for row in batch.to_pylist()
        if row["kind"] == 10
    ]
    told = [(row["store"], EventKind(row["event"]).name, row["session"]) for row in rows]
    assert told == [
        (former, "STARTED", 0),
        (former, "CONNECTED", 19),
        (store, "STARTED", 0),
        (store, "CONNECTED", 19),
        (store, "DELIVERED", 19),
        (store, "ACKNOWLEDGED", 19),
    ]
    starts = [(row["first"], row["stream"]) for row in rows if row["event"] == EventKind.STARTED]
    assert starts == [(0, None), (life.branch, former + bytes(8))]
    assert [(row["first"], row["seq"]) for row in rows[-2:]] == [(1, 2), (0, 1)]


def test_a_folder_restored_twice_goes_on_from_the_log_that_has_records(tmp_path: Path) -> None:
    first = Router(tmp_path / "0")
    first.create(1)
    first.append(1, 3)
    first.stop()
    for number in range(2):
        copy = tmp_path / f"copy-{number}"
        keeping.backup(copy, folder=tmp_path / str(number), is_json=True)
        keeping.restore(copy, tmp_path / str(number + 1), is_json=True)
    with running(tmp_path / "2") as router:
        assert router.stop() == 0
    options = SourceOptions.of({"path": str(tmp_path / "2"), "tail": Tail.STOPPED})
    rows = [
        row
        for part in planned(options, {}, available(options), ())
        for batch in read_partition(part)
        for row in batch.to_pylist()
    ]
    stores = {row["store"] for row in rows}
    (former,) = {row["stream"][:16] for row in rows if row["event"] == EventKind.STARTED}
    assert former == first.store_id
    assert former in stores


def test_what_two_folders_hold_of_one_log_is_read_once(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    first = world.folders[0]
    for _ in range(10):
        world.work(first)
    world.back_up(first)
    for _ in range(2):
        world.restore(first)
    world.work(first)
    folders = [each.router.folder for each in world.folders]
    for order in (folders, folders[::-1]):
        reader = Reader()
        # None of them gives its open segment: what is before the branch is in that as well.
        reader.read(*order, tail=Tail.NONE)
        reader.read(*order[1:], tail=Tail.DURABLE)
        reader.read(*order, tail=Tail.DURABLE)
        assert max(reader.messages.values()) == 1
        assert all(reader.messages[body] == 1 for body in world.backups[0][1])
    for folder in world.folders:
        folder.router.stop()


def test_a_damaged_life_stops_the_reader_and_names_the_file(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.work(world.folders[0])
    world.back_up(world.folders[0])
    world.restore(world.folders[0])
    restored = Path(world.folders[1].router.folder)
    data = bytearray((restored / LIFE_NAME).read_bytes())
    data[20] ^= 1
    (restored / LIFE_NAME).write_bytes(data)
    with pytest.raises(CorruptionError, match="LIFE"):
        look_at(str(restored), FILES)
    for folder in world.folders:
        folder.router.stop()
