"""A damaged snapshot is never passed over in silence: an older one stands in, or an error."""

import random

import pytest

from syncline.errors import CorruptionError
from syncline.storage.base import Snapshot, StreamKind, commit, run_jobs
from syncline.storage.log.format import RUN_KEY_BYTES
from syncline.storage.log.runs import Run
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min

DOCUMENT = StreamId(bytes(range(24)))
FILLER = StreamId(bytes(range(1, 25)))
OLD, NEW = b"the old state", b"the new state"


class Subject:
    """A store with one document of four updates."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self.files.make_folder("/data")
        self.store = self._opened()
        self.store.create(DOCUMENT, StreamKind.DOCUMENT, 0, 1)
        self.store.create(FILLER, StreamKind.QUEUE, 0, 1)
        for _ in range(4):
            self.store.append(DOCUMENT, b"update", 1)
        commit(self.store)

    def _opened(self) -> LogStore:
        options = StoreOptions(segment_bytes=segment_bytes_min)
        chance = random.Random(5).randbytes
        return LogStore.open("/data", self.files, options, now_ms=1, random_bytes=chance)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._opened()

    def put(self, up_to_seq: int, state: bytes) -> None:
        self.store.put_snapshot(DOCUMENT, up_to_seq, state, 1)
        self.store.truncate_before(DOCUMENT, up_to_seq + 1)
        commit(self.store)

    def seal(self) -> None:
        """Until all that was written so far is in runs."""
        for _ in range(200):
            self.store.append(FILLER, bytes(1_000), 1)
            commit(self.store)
        run_jobs(self.store)

    def damage(self, state: bytes) -> None:
        """Flip a bit of every copy."""
        found = 0
        for folder in ("/data/wal", "/data/runs"):
            for name in self.files.list(folder):
                path = f"{folder}/{name}"
                offset = self.files.read_all(path).find(state)
                if offset != -1:
                    self.files.flip_bit(path, offset)
                    found += 1
        assert found

    def mislead(self, state: bytes) -> None:
        """The key in the middle of the index, where each search begins, gets the lowest of all."""
        (path,) = (
            path for path in self.files.paths("/data/runs") if state in self.files.read_all(path)
        )
        run = Run.open(self.files, path)
        key = run.row_at(run.row_count // 2)[:RUN_KEY_BYTES]
        run.close()
        assert key.startswith(b"\1\2"), "of the filler"
        offset = self.files.read_all(path).rindex(key)
        self.files.flip_bit(path, offset, 0)
        self.files.flip_bit(path, offset + 1, 1)

    def damage_of_document(self) -> list[tuple[int | None, int]]:
        found = [damage for damage in self.store.damage() if damage.stream == DOCUMENT]
        return [(damage.first_lost_seq, damage.lost_count) for damage in found]


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_an_older_snapshot_in_the_log_stands_in(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.put(3, NEW)
    subject.damage(NEW)
    for _ in range(2):
        assert subject.store.snapshot(DOCUMENT) == Snapshot(1, 1, OLD)
    # Updates 2 and 3 were let go of, since the newer snapshot covered them.
    assert subject.damage_of_document() == [(2, 2)]


def test_an_older_snapshot_in_a_run_stands_in_for_one_in_the_log(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.seal()
    subject.put(2, NEW)
    subject.damage(NEW)
    assert subject.store.snapshot(DOCUMENT) == Snapshot(1, 1, OLD)
    assert subject.damage_of_document() == [(2, 1)]


def test_an_older_snapshot_in_a_run_stands_in_for_one_in_another(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.seal()
    subject.put(2, NEW)
    subject.seal()
    subject.damage(NEW)
    for _ in range(2):
        assert subject.store.snapshot(DOCUMENT) == Snapshot(1, 1, OLD)
    assert subject.damage_of_document() == [(None, 0)]


@pytest.mark.parametrize("older", [0, 1])
def test_a_damaged_key_of_another_stream_hides_no_snapshot(subject: Subject, older: int) -> None:
    if older:
        subject.put(1, OLD)
        subject.seal()
    subject.put(3, NEW)
    subject.seal()
    subject.mislead(NEW)
    assert subject.store.snapshot(DOCUMENT) == Snapshot(3, 1, NEW)
    assert subject.damage_of_document() == []
    assert [damage.reason for damage in subject.store.damage()] == ["the index fails its checksum"]


def test_who_truncates_beyond_a_snapshot_misses_nothing(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.store.truncate_before(DOCUMENT, 4)
    subject.seal()
    for _ in range(2):
        assert subject.store.snapshot(DOCUMENT) == Snapshot(1, 1, OLD)
    assert subject.store.damage() == []


def test_mending_keeps_the_older_snapshot(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.seal()
    subject.put(2, NEW)
    subject.seal()
    subject.damage(NEW)
    while subject.store.scrub(1 << 20):
        pass
    assert run_jobs(subject.store) > 0
    assert subject.store.snapshot(DOCUMENT) == Snapshot(1, 1, OLD)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_without_an_older_one_the_error_names_the_document(
    subject: Subject, is_sealed: bool
) -> None:
    subject.put(2, NEW)
    if is_sealed:
        subject.seal()
    subject.damage(NEW)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=str(DOCUMENT)):
            subject.store.snapshot(DOCUMENT)
    assert subject.damage_of_document()
    # A new one heals the document, whatever the lost one covered.
    subject.put(2, b"made anew")
    assert subject.store.snapshot(DOCUMENT) == Snapshot(2, 1, b"made anew")


def test_a_document_whose_snapshot_is_lost_takes_a_new_one_after_a_restart(
    subject: Subject,
) -> None:
    subject.put(2, NEW)
    subject.seal()
    subject.damage(NEW)
    subject.reopen()
    subject.put(2, b"made anew")
    assert subject.store.snapshot(DOCUMENT) == Snapshot(2, 1, b"made anew")


def test_the_snapshot_that_mending_let_go_of_is_missed(subject: Subject) -> None:
    subject.put(2, NEW)
    subject.seal()
    subject.damage(NEW)
    while subject.store.scrub(1 << 20):
        pass
    run_jobs(subject.store)
    with pytest.raises(CorruptionError, match=str(DOCUMENT)):
        subject.store.snapshot(DOCUMENT)


def test_a_snapshot_of_an_earlier_document_does_not_stand_in(subject: Subject) -> None:
    subject.put(1, OLD)
    subject.store.delete(DOCUMENT)
    commit(subject.store)
    subject.store.create(DOCUMENT, StreamKind.DOCUMENT, 0, 1)
    subject.store.append(DOCUMENT, b"update", 1)
    subject.put(1, NEW)
    subject.damage(NEW)
    with pytest.raises(CorruptionError, match=str(DOCUMENT)):
        subject.store.snapshot(DOCUMENT)


def test_a_first_snapshot_that_is_not_durable_yet_is_none(subject: Subject) -> None:
    subject.store.put_snapshot(DOCUMENT, 1, NEW, 1)
    assert subject.store.snapshot(DOCUMENT) is None


def test_a_queue_that_was_read_past_its_snapshot_is_not_damaged(subject: Subject) -> None:
    subject.store.put_snapshot(FILLER, 0, OLD, 1)
    commit(subject.store)
    subject.seal()
    subject.store.truncate_before(FILLER, 100)
    commit(subject.store)
    for _ in range(2):
        assert subject.store.snapshot(FILLER) == Snapshot(0, 1, OLD)
        assert subject.store.damage() == []
        subject.reopen()
