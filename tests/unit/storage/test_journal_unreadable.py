"""Blocks that the device cannot read cost the lines in them, and every queue is served."""

import pytest

from syncline.errors import CorruptionError, DeviceError
from syncline.storage.options import StoreOptions
from syncline.testing.handles import SimulatedFile
from tests.unit.storage.journal_subject import JournalSubject, stream_id

BLOCK_BYTES = 4_096
# Two of these lines lie in a block, and one in two.
BODY = b"x" * 1_000
OPTIONS = StoreOptions(file_message_count_max=100, state_line_count_max=8)


class Device:
    """Which blocks of which files cannot be read."""

    def __init__(self) -> None:
        self.bad: set[tuple[str, int]] = set()

    def check(self, path: str, offset: int, length: int) -> None:
        for bad_path, block in self.bad:
            is_met = offset < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < offset + length
            if path == bad_path and is_met:
                raise DeviceError(path, "reading", "input/output error")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    read = SimulatedFile.read

    def checked(file: SimulatedFile, offset: int, length: int) -> bytes:
        made.check(file.path, offset, length)
        return read(file, offset, length)

    monkeypatch.setattr(SimulatedFile, "read", checked)
    return made


def subject_with_two_queues() -> JournalSubject:
    subject = JournalSubject(options=OPTIONS)
    for number in (1, 2):
        queue = subject.create_queue(number, quota=100)
        for count in range(12):
            subject.store.append(queue, b"%d" % count + BODY, subject.now_ms)
        subject.commit()
    return subject


def sequences(subject: JournalSubject, number: int) -> list[int]:
    return [entry.seq for entry in subject.store.read(stream_id(number), 0, 100, 1 << 20)]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_unreadable_block_costs_the_messages_in_it(device: Device, is_open: bool) -> None:
    subject = subject_with_two_queues()
    queue = stream_id(1)
    device.bad.add((subject.message_path(queue, "write_file"), 1))
    if not is_open:
        subject.reopen()
    subject.store.expire_before(0, 100)
    while subject.store.scrub(1 << 20):
        pass
    assert sequences(subject, 1) == [1, 2, *range(7, 13)]
    assert {(stream, count) for stream, _, count in subject.lost()} <= {(queue, 4), (queue, 1)}
    assert sum(count for _, _, count in subject.lost()) == 4
    assert sequences(subject, 2) == list(range(1, 13))
    subject.append(queue, b"more")
    subject.reopen()
    assert sequences(subject, 1) == [1, 2, *range(7, 14)]


def test_a_queue_whose_state_cannot_be_read_is_made_of_its_messages(device: Device) -> None:
    subject = subject_with_two_queues()
    queue = stream_id(1)
    path = f"{subject.folder(queue)}/queue.log"
    device.bad.add((path, 0))
    subject.reopen()
    subject.store.expire_before(0, 100)
    assert sequences(subject, 1) == list(range(1, 13))
    assert [(damage.file, damage.stream) for damage in subject.store.damage()] == [(path, queue)]
    # The lines that cannot be read are replaced.
    subject.append(queue, b"more")
    device.bad.clear()
    subject.reopen()
    assert subject.payloads(queue)[-1] == b"more"
    assert subject.store.damage() == ()


def test_a_snapshot_that_cannot_be_read_is_told(device: Device) -> None:
    subject = JournalSubject()
    document = subject.create_document()
    subject.append(document, b"x")
    subject.store.put_snapshot(document, 1, BODY, subject.now_ms)
    subject.commit()
    device.bad.add((subject.path(document, "snapshot."), 0))
    subject.reopen()
    with pytest.raises(CorruptionError):
        subject.store.snapshot(document)
    assert [damage.stream for damage in subject.store.damage()] == [document]
    assert subject.payloads(document) == [b"x"]
