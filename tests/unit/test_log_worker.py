"""The job process: does jobs beside the router, and never outlives it."""

import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.errors import (
    CorruptionError,
    DeviceError,
    StoreFullError,
    StoreLockedError,
    SynclineError,
)
from syncline.storage.files import DiskFiles
from syncline.storage.log import jobs
from syncline.storage.log.jobs import (
    LogJob,
    MeasureJob,
    MergeJob,
    MergeResult,
    PrepareSegmentJob,
    PrepareTableJob,
    SealJob,
)
from syncline.storage.log.run_writer import write_run
from syncline.storage.log.worker import JobProcess
from syncline.values.limits import MIB
from tests.log_files import entry_row, put, slot, stream_id, table_image, take

A = stream_id(1)
FILES = DiskFiles()
WORKER = [sys.executable, "-P", "-m", "syncline.storage.log.worker"]


@pytest.fixture
def process() -> Iterator[JobProcess]:
    made = JobProcess(timeout_s=15)
    yield made
    made.close()


def merge_job(folder: Path) -> MergeJob:
    put(FILES, f"{folder}/table", table_image([slot(A, first=2)]))
    write_run(FILES, f"{folder}/run", [entry_row(A, seq, b"%d" % seq) for seq in range(1, 6)])
    return MergeJob(str(folder), (f"{folder}/run",), (f"{folder}/table",), f"{folder}/merged")


def eventually(is_true: Callable[[], bool]) -> bool:
    for _ in range(1_000):
        if is_true():
            return True
        time.sleep(0.01)
    return False


def is_gone(process_id: int) -> bool:
    """Ended; one that nobody has waited for yet counts."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def hanging_job(folder: Path) -> MeasureJob:
    """Opens a pipe that nobody writes to, and waits."""
    put(FILES, f"{folder}/table", table_image([slot(A)]))
    os.mkfifo(f"{folder}/pipe")
    return MeasureJob((f"{folder}/pipe",), (f"{folder}/table",))


def test_a_job_is_done_elsewhere_with_the_same_result(tmp_path: Path, process: JobProcess) -> None:
    job = merge_job(tmp_path)
    result = process.run(job)
    made = take(FILES, f"{tmp_path}/merged")
    assert process.process_id not in (None, os.getpid())
    assert result == jobs.run(FILES, job)
    assert made == take(FILES, f"{tmp_path}/merged")
    assert isinstance(result, MergeResult)
    assert result.dropped_row_count == 1


def test_the_process_is_started_by_the_first_job_and_stays(
    tmp_path: Path, process: JobProcess
) -> None:
    assert process.process_id is None
    process.run(PrepareSegmentJob(f"{tmp_path}/segment", 8192))
    first = process.process_id
    process.run(PrepareTableJob(f"{tmp_path}/table", 64, 2))
    assert process.process_id == first
    assert take(FILES, f"{tmp_path}/segment") == bytes(8192)
    assert len(take(FILES, f"{tmp_path}/table")) == 4096 + 64 * 64


def resident_bytes(process: JobProcess) -> int:
    pages = Path(f"/proc/{process.process_id}/statm").read_text().split()[1]
    return int(pages) * mmap.PAGESIZE


def test_memory_for_a_segment_is_kept_for_the_next_and_given_back_at_rest(tmp_path: Path) -> None:
    size = 64 * MIB
    put(FILES, f"{tmp_path}/table", table_image([slot(A)]))
    FILES.open(f"{tmp_path}/{1:012d}.wal", create=True).truncate(size)
    job = SealJob(
        *(str(tmp_path), (f"{tmp_path}/{1:012d}.wal",), (1,), size),
        *((f"{tmp_path}/table",), f"{tmp_path}/run"),
    )
    for rest_s, gives_back in ((0.2, True), (600, False)):
        process = JobProcess(timeout_s=15, rest_s=rest_s)
        try:
            process.run(job)
            if gives_back:
                assert eventually(lambda: resident_bytes(process) < size)  # noqa: B023 called now
            else:
                assert resident_bytes(process) > size
        finally:
            process.close()


def test_a_process_that_is_not_kept_ends_with_each_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def started_one(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", started_one)
    process = JobProcess(is_kept=False)
    job = merge_job(tmp_path)
    assert process.run(job) == process.run(job)
    with pytest.raises(CorruptionError):
        process.run(MeasureJob((f"{tmp_path}/nowhere",), job.table_paths))
    assert process.process_id is None
    assert [ended.returncode for ended in started] == [0, 0, 0]
    process.close()


def test_an_error_of_the_job_comes_back_whole(tmp_path: Path, process: JobProcess) -> None:
    job = MergeJob(str(tmp_path), (), (f"{tmp_path}/none",), f"{tmp_path}/merged")
    with pytest.raises(CorruptionError) as caught:
        process.run(job)
    expected = CorruptionError(f"{tmp_path}/none", 0, "the queue table is missing")
    assert str(caught.value) == str(expected)
    assert vars(caught.value) == vars(expected)
    first = process.process_id
    assert process.run(merge_job(tmp_path)) is not None
    assert process.process_id == first


@pytest.mark.parametrize(
    "error",
    [
        StoreFullError("/data", "no space left on device"),
        DeviceError("/data", "syncing", "input/output error"),
        StoreLockedError("/data", "17"),
        CorruptionError("/data", 4096, "a reason"),
    ],
)
def test_errors_travel_with_their_facts(
    monkeypatch: pytest.MonkeyPatch, error: SynclineError
) -> None:
    from syncline.storage.log import worker

    def fail(files: object, job: LogJob) -> None:
        raise error

    monkeypatch.setattr(worker, "run", fail)
    answer = worker._answer_to(PrepareSegmentJob("/data", 1), FILES)
    with pytest.raises(type(error)) as caught:
        worker._result_of(pickle.loads(pickle.dumps(answer)))
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)


def test_a_missing_folder_is_an_error_of_the_job(tmp_path: Path, process: JobProcess) -> None:
    with pytest.raises(DeviceError) as caught:
        process.run(PrepareSegmentJob(f"{tmp_path}/none/segment", 1))
    assert caught.value.path == f"{tmp_path}/none/segment"


# --------------------------------------------------------------------------------- dying early


def test_a_process_that_died_is_started_anew(tmp_path: Path, process: JobProcess) -> None:
    job = merge_job(tmp_path)
    process.run(job)
    first = process.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: is_gone(first))
    result = process.run(job)
    assert isinstance(result, MergeResult)
    assert process.process_id != first


def test_a_process_that_dies_twice_is_a_device_error(
    tmp_path: Path, process: JobProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = PrepareSegmentJob(f"{tmp_path}/segment", "no number")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="died twice"):
        process.run(broken)
    assert capfd.readouterr().err.count("TypeError") == 2
    assert process.run(merge_job(tmp_path)) is not None


def test_a_process_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    process = JobProcess(timeout_s=1.5)
    with pytest.raises(DeviceError, match="no answer"):
        process.run(hanging_job(tmp_path))
    assert process.process_id is None
    process.close()


def test_close_cuts_off_a_job_under_way(tmp_path: Path, process: JobProcess) -> None:
    job = hanging_job(tmp_path)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            process.run(job)
        except DeviceError as error:
            caught.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert eventually(lambda: process.process_id is not None)
    process.close()
    asking.join(10)
    assert [str(error) for error in caught if "closed" in str(error)] != []


def test_close_ends_the_process(tmp_path: Path) -> None:
    process = JobProcess()
    process.close()
    process = JobProcess()
    process.run(merge_job(tmp_path))
    worker = process.process_id
    assert worker is not None
    process.close()
    process.close()
    assert is_gone(worker)
    with pytest.raises(DeviceError, match="closed"):
        process.run(merge_job(tmp_path))


# ------------------------------------------------------------------------- as a child and alone


def test_it_has_a_low_priority_and_nothing_of_the_routers_files(
    tmp_path: Path, process: JobProcess
) -> None:
    path = tmp_path / "open in the router"
    with path.open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        process.run(merge_job(tmp_path))
        worker = process.process_id
        assert worker is not None
        held = [os.readlink(link) for link in Path(f"/proc/{worker}/fd").iterdir()]
    assert str(path) not in held
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(19, own + 10)


def test_signals_of_the_terminal_do_not_end_it(tmp_path: Path, process: JobProcess) -> None:
    process.run(merge_job(tmp_path))
    worker = process.process_id
    assert worker is not None
    os.kill(worker, signal.SIGINT)
    os.kill(worker, signal.SIGTERM)
    process.run(merge_job(tmp_path))
    assert process.process_id == worker


def frame(job: LogJob) -> bytes:
    data = pickle.dumps(job)
    return struct.pack("<Q", len(data)) + data


def ask_worker(router_id: int, sent: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*WORKER, str(router_id), "60"], input=sent, capture_output=True, timeout=15, check=False
    )


def test_its_output_is_answers_and_nothing_else(tmp_path: Path) -> None:
    job = PrepareSegmentJob(f"{tmp_path}/segment", 4096)
    done = ask_worker(os.getpid(), frame(job) * 2)
    answer = pickle.dumps((None, None))
    assert done.stdout == (struct.pack("<Q", len(answer)) + answer) * 2
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("kept", [0, 3, 8, 20])
def test_it_ends_with_its_input(tmp_path: Path, kept: int) -> None:
    sent = frame(PrepareSegmentJob(f"{tmp_path}/segment", 4096))[:kept]
    done = ask_worker(os.getpid(), sent)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_length_beyond_all_bounds_is_not_believed() -> None:
    done = ask_worker(os.getpid(), struct.pack("<Q", 1 << 62) + b"x" * 100)
    assert (done.returncode, done.stdout) == (0, b"")


def test_an_orphan_changes_nothing(tmp_path: Path) -> None:
    """It is told that its router has another id than its parent has: as if the router had died."""
    put(FILES, f"{tmp_path}/there", b"there")
    done = ask_worker(1, frame(PrepareSegmentJob(f"{tmp_path}/segment", 4096)))
    assert (done.returncode, done.stdout) == (1, b"")
    done = ask_worker(1, frame(PrepareSegmentJob(f"{tmp_path}/there", 4096)))
    assert (done.returncode, done.stdout) == (1, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    assert take(FILES, f"{tmp_path}/there") == b"there"


ROUTER = """
import sys
from syncline.storage.log.jobs import PrepareSegmentJob
from syncline.storage.log.worker import JobProcess
from syncline.values.limits import MIB
process = JobProcess()
process.run(PrepareSegmentJob(sys.argv[1] + "/first", 4096))
print(process.process_id, flush=True)
process.run(PrepareSegmentJob(sys.argv[1] + "/second", int(sys.argv[2])))
sys.stdin.read()
"""


IDLE, BUSY = 4096, 2 << 30


@pytest.mark.parametrize("size", [IDLE, BUSY], ids=["idle", "busy"])
def test_it_does_not_outlive_a_killed_router(tmp_path: Path, size: int) -> None:
    router = subprocess.Popen(
        [sys.executable, "-c", ROUTER, str(tmp_path), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert router.stdin is not None
    assert router.stdout is not None
    worker = int(router.stdout.readline())
    assert eventually((tmp_path / "second").exists)
    router.send_signal(signal.SIGKILL)
    router.wait()
    assert eventually(lambda: is_gone(worker))
    assert size == IDLE or (tmp_path / "second").stat().st_size < size
    router.stdin.close()
    router.stdout.close()
