"""What an operator left in the data folder of a journal stays there and ends no router."""

from pathlib import Path

from syncline.storage.base import run_jobs
from tests.storage.under_test import StoreUnderTest


def test_strange_files_and_folders_in_a_journal_disturb_nobody(tmp_path: Path) -> None:
    subject = StoreUnderTest("journal", tmp_path / "data")
    queues = [subject.create_queue(number) for number in range(3)]
    for queue in queues:
        subject.append(queue, b"x")
    subject.commit()
    root = tmp_path / "data" / "messages"
    (root / "no").write_bytes(b"a file of the length of a branch")
    for found in root.glob("*/*/*/queue.log"):
        (found.parent / "copies").mkdir()
        (found.parent / "copies" / "queue.log").write_bytes(b"copied by hand")
        (found.parent / "old.log").mkdir()
    subject.crash()
    run_jobs(subject.store)
    assert [subject.payloads(queue) for queue in queues] == [[b"x"]] * 3
    assert subject.store.stats().stream_count == 3
    assert subject.store.damage() == ()
    subject.store.delete(queues[0])
    subject.store.delete(queues[1])
    subject.create_queue(1)
    subject.commit()
    assert set(subject.store.streams()) == set(queues[1:])
    subject.end()
