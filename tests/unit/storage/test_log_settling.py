"""The table is brought up to date before segments are sealed, and nobody waits for that."""

import pytest

from syncline.storage.base import StreamKind, commit, run_jobs
from syncline.storage.log.jobs import SealJob
from syncline.storage.log.residents import Residents
from syncline.storage.log.streams import OpenStream
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from tests.unit.storage.test_log_adopting import FOLDER, check, made, write


@pytest.mark.parametrize("is_quiet", [False, True])
def test_slots_are_brought_up_to_date_a_few_at_a_time_while_batches_come(
    is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a sealing every slot is written. Each of them takes microseconds of the loop."""
    files = SimulatedFiles()
    store = made(files)
    many = [StreamId(number.to_bytes(24, "big")) for number in range(1, 3_001)]
    for queue in many:
        store.create(queue, StreamKind.QUEUE, 0, 1)
        store.append(queue, b"x", 1)
    commit(store)
    saved: list[int] = [0]
    save = Residents._save

    def counted(self: Residents, opened: OpenStream) -> None:
        saved[-1] += 1
        save(self, opened)

    monkeypatch.setattr(Residents, "_save", counted)
    write(store, 20)
    for _ in range(200):
        if not is_quiet:
            saved.append(0)
            write(store, 1)
        saved.append(0)
        job = store.take_job()
        if isinstance(job, SealJob):
            break
        if job is not None:
            store.finish_job(job, store.run_job(job))
    else:
        pytest.fail("nothing is ever sealed")
    assert sum(saved) >= 3_000
    assert max(saved) > 1_000 if is_quiet else max(saved) < 400
    store.finish_job(job, store.run_job(job))
    check(store)


def test_many_streams_in_a_batch_do_not_put_off_the_sealing() -> None:
    """Else the log grows meanwhile, and a restart replays all of it."""
    store = made(SimulatedFiles())
    many = [StreamId(number.to_bytes(24, "big")) for number in range(1, 6_001)]
    for queue in many:
        store.create(queue, StreamKind.QUEUE, 0, 1)
    commit(store)
    batch_count = 0
    for turn in range(1_000):
        part = many[turn % 6 * 1_000 :][:1_000]
        assert len(store.append_many([(queue, b"x") for queue in part], 1)) == 1_000
        commit(store)
        batch_count += store._residents.is_settling
        job = store.take_job()
        if isinstance(job, SealJob):
            break
        if job is not None:
            store.finish_job(job, store.run_job(job))
    assert 0 < batch_count <= 6


def test_a_store_at_rest_has_one_table() -> None:
    """A table that grew is copied with every batch; where none comes, whenever upkeep looks."""
    files = SimulatedFiles()
    store = made(files)
    table_counts = [1]
    for number in range(1, 40_001):
        store.create(StreamId(number.to_bytes(24, "big")), StreamKind.QUEUE, 0, 1)
        if number % 1_000 == 0:
            commit(store)
            run_jobs(store)
            table_counts = [len(files.list(f"{FOLDER}/table"))]
            if number > 10_000 and table_counts == [2]:
                break
    for _ in range(100):
        run_jobs(store)
        table_counts.append(len(files.list(f"{FOLDER}/table")))
    assert (max(table_counts), table_counts[-1]) == (2, 1)
    check(store)
