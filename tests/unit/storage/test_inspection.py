"""What the contract alone tells of a store."""

from collections.abc import Generator

import pytest

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, StreamKind, StreamState, commit
from syncline.storage.files import DiskFiles
from syncline.storage.inspection import BacksUp, Findings, read_everything, report
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId


def run_out(steps: Generator[tuple[int, int], None, Findings]) -> Findings:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            findings: Findings = end.value
            return findings


def test_everything_is_read_however_much_it_is() -> None:
    store = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    for number, count in ((1, 0), (2, 3_000)):
        stream = StreamId(bytes([number]) * 24)
        store.create(stream, StreamKind.QUEUE, 0, 1)
        for _ in range(count):
            store.append(stream, b"12345", 1)
        commit(store)
    store.truncate_before(StreamId(bytes([2]) * 24), 11)
    commit(store)
    findings = run_out(read_everything(store))
    assert findings == Findings(2, 2_990, 2_990 * 5, 0, ())
    assert findings.is_whole


def test_what_should_be_there_and_is_not_is_counted() -> None:
    store = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    stream = StreamId(bytes(24))
    store.create(stream, StreamKind.QUEUE, 0, 1)
    store.append(stream, b"seen", 1)
    commit(store)
    # Staged and not durable: as good as lost to whoever reads.
    store.append(stream, b"not seen", 1)
    findings = run_out(read_everything(store))
    assert (findings.entry_count, findings.missing_count, findings.is_whole) == (1, 1, False)


def test_a_stream_that_cannot_be_read_is_damage_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    streams = [StreamId(bytes([number]) * 24) for number in (1, 2, 3)]
    for stream in streams:
        store.create(stream, StreamKind.QUEUE, 0, 1)
        store.append(stream, b"12345", 1)
    commit(store)
    state = store.state

    def damaged(stream: StreamId) -> StreamState:
        if stream == streams[1]:
            raise CorruptionError("table", 64, "a slot fails its checksum")
        return state(stream)

    monkeypatch.setattr(store, "state", damaged)
    lost = Damage("table", 64, "a slot fails its checksum", streams[1])
    findings = run_out(read_everything(store))
    assert findings == Findings(3, 2, 10, 0, (lost,))
    # A store that has noticed by itself does not make it two.
    monkeypatch.setattr(store, "damage", lambda: [lost])
    assert run_out(read_everything(store)).damage == (lost,)


def test_a_report_has_the_facts_that_a_store_offers() -> None:
    store = MemoryStore.open("x", DiskFiles(), StoreOptions(), now_ms=1, random_bytes=bytes)
    about = report("memory", store)
    assert (about.kind, dict(about.details), about.damage) == ("memory", {}, ())
    assert not isinstance(store, BacksUp)


def test_the_log_can_be_copied_hot() -> None:
    assert issubclass(LogStore, BacksUp)
