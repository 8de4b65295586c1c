"""Events in the log: they come back whole and in order, and no stream notices them."""

import re
from dataclasses import replace
from random import Random

import pytest

from syncline.storage.base import NotesEvents, StreamKind, commit, run_jobs
from syncline.storage.files import Files
from syncline.storage.log.format import RECORD_HEADER_BYTES, RecordKind, store_tag
from syncline.storage.log.scan import WholeBatch, batches, records_of
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedCrashError, SimulatedFiles
from syncline.testing.observation import observe
from syncline.values import limits
from syncline.values.events import Event, EventKind, decode_events, encode_event
from syncline.values.ids import StreamId

FOLDER = "/data"
SEGMENT_BYTES = limits.segment_bytes_min
OPTIONS = StoreOptions(segment_bytes=SEGMENT_BYTES)
KEEPING = replace(OPTIONS, archive_bytes_max=64 * SEGMENT_BYTES)
QUEUE = StreamId(b"q" * 24)
NOW_MS = 1_700_000_000_000


def opened(files: Files, options: StoreOptions = OPTIONS, seed: int = 0) -> LogStore:
    return LogStore.open(FOLDER, files, options, now_ms=NOW_MS, random_bytes=Random(seed).randbytes)


def delivered(number: int) -> bytes:
    return encode_event(EventKind.DELIVERED, NOW_MS, QUEUE, 7, number, number)


def history(files: SimulatedFiles, since: int = 0) -> list[Event]:
    """Every event on the disk, of the archive and of the live log, from a segment on."""
    store_id = bytes.fromhex(files.read_all(f"{FOLDER}/FORMAT").split()[-1].decode())
    found: dict[int, list[Event]] = {}
    for folder in (f"{FOLDER}/archive", f"{FOLDER}/wal"):
        names = files.list(folder) if files.exists(folder) else []
        for name in names:
            if re.fullmatch(r"\d{12}\.wal", name):
                number = int(name.partition(".")[0])
                if number < since:
                    continue
                data = files.read_all(f"{folder}/{name}")
                found[number] = events_of(data, number * SEGMENT_BYTES, store_tag(store_id))
    return [event for number in sorted(found) for event in found[number]]


def events_of(data: bytes, start: int, tag: int) -> list[Event]:
    found: list[Event] = []
    for part in batches(data, start, None, tag=tag):
        if not isinstance(part, WholeBatch):
            continue
        for position, kind, length, *_ in records_of(data, start, part):
            if kind == RecordKind.EVENTS:
                at = position - start + RECORD_HEADER_BYTES
                found += decode_events(data[at : at + length])
    return found


def sequences(events: list[Event]) -> list[int]:
    return [event.first for event in events if event.kind == EventKind.DELIVERED]


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


def test_the_log_alone_keeps_events(files: SimulatedFiles) -> None:
    assert isinstance(opened(files), NotesEvents)
    assert not issubclass(MemoryStore, NotesEvents)


def test_events_go_with_the_next_batch_behind_what_it_holds(files: SimulatedFiles) -> None:
    store = opened(files)
    store.create(QUEUE, StreamKind.QUEUE, 0, NOW_MS)
    store.note_event(delivered(1))
    store.append(QUEUE, b"hello", NOW_MS)
    store.note_event(delivered(2))
    batch = store.take_batch(acknowledgements=False)
    assert batch is not None
    assert batch.record_count == 3
    store.write_batch(batch)
    store.finish_batch(batch)
    assert sequences(history(files)) == [1, 2]
    assert store.take_batch(acknowledgements=True) is None


def test_alone_they_wait_until_all_is_to_be_written(files: SimulatedFiles) -> None:
    store = opened(files)
    store.note_event(delivered(1))
    assert store.take_batch(acknowledgements=False) is None
    commit(store)
    assert sequences(history(files)) == [1]


def test_many_do_not_wait(files: SimulatedFiles) -> None:
    store = opened(files)
    for number in range(limits.event_batch_count):
        assert store.take_batch(acknowledgements=False) is None
        store.note_event(delivered(number))
    while (batch := store.take_batch(acknowledgements=False)) is not None:
        store.write_batch(batch)
        store.finish_batch(batch)
    # What is left is fewer than that again.
    assert len(history(files)) > 0
    commit(store)
    assert sequences(history(files)) == list(range(limits.event_batch_count))


def test_more_than_a_segment_of_them_is_cut_into_batches(files: SimulatedFiles) -> None:
    store = opened(files, KEEPING)
    for number in range(5_000):
        store.note_event(delivered(number))
    store.close()
    assert sequences(history(files)) == list(range(5_000))


def test_those_beyond_the_bound_are_left_out_and_counted(
    files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "waiting_event_count_max", 10)
    store = opened(files)
    for number in range(25):
        store.note_event(delivered(number))
    commit(store)
    store.note_event(delivered(25))
    commit(store)
    found = history(files)
    assert sequences(found) == [*range(10), 25]
    assert [(event.kind, event.first) for event in found[10:11]] == [(EventKind.DROPPED, 15)]


def test_nothing_of_a_stream_depends_on_them(files: SimulatedFiles) -> None:
    plain = SimulatedFiles()
    with_events, without = opened(files), opened(plain)
    random = Random(5)
    for store in (with_events, without):
        store.create(QUEUE, StreamKind.QUEUE, 0, NOW_MS)
    for number in range(1, 400):
        body = random.randbytes(random.choice([3, 700]))
        for store in (with_events, without):
            store.append(QUEUE, body, NOW_MS)
            if number % 3 == 0:
                store.truncate_before(QUEUE, number - 1)
        with_events.note_event(delivered(number))
        if number % 7 == 0:
            for store in (with_events, without):
                commit(store)
                run_jobs(store)
    for store in (with_events, without):
        store.close()
    seen = observe(opened(files, seed=1))
    assert seen.streams == observe(opened(plain, seed=1)).streams
    assert opened(files.kill(Random(1)), seed=2).damage() == []


@pytest.mark.parametrize("seed", range(20))
def test_history_is_whole_or_says_where_it_is_not(seed: int) -> None:
    """Through sealing, recycling and crashes at any call."""
    random = Random(seed)
    files = SimulatedFiles()
    options = replace(OPTIONS, archive_bytes_max=random.choice([2, 5]) * SEGMENT_BYTES)
    noted = 0
    safe: list[int] = []
    for life in range(4):
        files.crash_after(random.randrange(200, 900))
        waiting: list[int] = []
        try:
            store = opened(files, options, seed=life)
            if QUEUE not in set(store.streams()):
                store.create(QUEUE, StreamKind.QUEUE, 0, NOW_MS)
            for _ in range(200):
                noted += 1
                waiting.append(noted)
                store.note_event(delivered(noted))
                seq = store.append(QUEUE, random.randbytes(random.choice([10, 6_000])), NOW_MS)
                store.truncate_before(QUEUE, max(1, seq - 3))
                if random.random() < 0.2:
                    commit(store)
                    safe += waiting
                    waiting = []
                    run_jobs(store)
        except SimulatedCrashError:
            pass
        files = files.crash(random)
    store = opened(files, options, seed=99)
    numbers = {int(name[:12]) for name in files.list(f"{FOLDER}/archive") if name[0].isdigit()}
    numbers |= {int(name[:12]) for name in files.list(f"{FOLDER}/wal") if name[0].isdigit()}
    # What was let go of may have a last trace; behind it nothing is missing.
    oldest = max(numbers)
    while oldest - 1 in numbers:
        oldest -= 1
    assert len(numbers) >= options.archive_bytes_max // SEGMENT_BYTES or oldest == 1
    found = sequences(history(files, oldest))
    assert found == sorted(found)
    if oldest == 1:
        assert set(safe) <= set(found)
    assert [number for number in safe if number >= found[0]] == [
        number for number in safe if number in set(found)
    ]
