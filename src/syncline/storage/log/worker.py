"""The job process: does upkeep on the disk beside the router, so that no connection waits for it.

    python -m syncline.storage.log.worker <process id of the router> <seconds until it rests>

The router writes jobs to its standard input and reads results from its standard output. Either is a
pickle behind its length in 8 bytes, and each end is the other's own program: nobody else can write
there. The process works at a low priority and ends with its input.

It must not outlive its router: the next one would meet its half-made files. So it looks whose child
it is before each change to the disk, and ends at once when the router is gone.
"""

import ctypes
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Timer
from typing import IO, Final, cast

from syncline.errors import DeviceError, SynclineError
from syncline.storage.files import DiskFiles, File, Files, MappedFile
from syncline.storage.log.jobs import LogJob, LogResult, run

_LENGTH: Final = struct.Struct("<Q")
_FRAME_BYTES_MAX: Final = 64 << 20
_NICENESS: Final = 10
# A merge of everything on a slow disk; whoever takes longer hangs.
TIMEOUT_S_DEFAULT: Final = 3600.0
_CLOSE_TIMEOUT_S: Final = 5.0
# Without a job for so long, it gives back memory that it does not use.
REST_S_DEFAULT: Final = 10.0
_THIS_PROCESS: Final = "the job process"

_ENVIRONMENT: Final = {
    # The jobs do no linear algebra: threads for it would only take memory.
    "OPENBLAS_NUM_THREADS": "1",
    # Memory for a segment is kept for the next one: to get it anew takes five times as long as to
    # read a segment into it (bench: log). What is free beyond this goes back to the system at once.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}

# The class of an error, what it was made with, and its fields: an error whose constructor takes
# other arguments than its text cannot be pickled as it is.
_PackedError = tuple[type[SynclineError], tuple[object, ...], dict[str, object]]
_Answer = tuple[LogResult, _PackedError | None]


# ---- In the router ----


class JobProcess:
    """The router's end. The process is started by the first job, and anew if it has died.

    One that is not kept ends with each job.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        rest_s: float = REST_S_DEFAULT,
        is_kept: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._rest_s = rest_s
        self._is_kept = is_kept
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process else None

    def run(self, job: LogJob) -> LogResult:
        """Have the job done and wait for it; for a thread that may block.

        Raises what the job raises, or DeviceError if the process dies twice or does not answer.
        """
        with self._lock:
            for _ in range(2):
                if self._is_closed:
                    raise DeviceError(_THIS_PROCESS, f"the job '{job.name}'", "it was closed")
                answer = self._ask(job)
                if answer is None or not self._is_kept:
                    self._end()
                if answer is not None:
                    return _result_of(answer)
            reason = "it was closed" if self._is_closed else "it died twice"
            raise DeviceError(_THIS_PROCESS, f"the job '{job.name}'", reason)

    def close(self) -> None:
        """End the process. A job under way in another thread is cut off and raises DeviceError."""
        self._is_closed = True
        process = self._process
        if process is None:
            return
        if self._lock.acquire(blocking=False):
            # Nobody waits for an answer: it ends by itself when its input does.
            self._end()
            self._lock.release()
        else:
            process.kill()

    def _ask(self, job: LogJob) -> _Answer | None:
        """None if the process died."""
        process = self._started()
        if self._is_closed:
            # Closed while it was being started.
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        timed_out: list[bool] = []

        def give_up() -> None:
            timed_out.append(True)
            process.kill()

        # A timer ends the wait by ending the process: reading from a pipe has no limit of its own.
        timer = Timer(self._timeout_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            _write_frame(process.stdin, pickle.dumps(job))
            frame = _read_frame(process.stdout)
        except BrokenPipeError:
            frame = None
        finally:
            timer.cancel()
        if frame is None and timed_out:
            self._end()
            reason = f"no answer in {self._timeout_s:.0f} s"
            raise DeviceError(_THIS_PROCESS, f"the job '{job.name}'", reason)
        return cast(_Answer, pickle.loads(frame)) if frame is not None else None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            module = "syncline.storage.log.worker"
            self._process = subprocess.Popen(
                # -P: never import what happens to lie in the working folder.
                [sys.executable, "-P", "-m", module, str(os.getpid()), str(self._rest_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **_ENVIRONMENT},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _result_of(answer: _Answer) -> LogResult:
    result, packed = answer
    if packed is not None:
        kind, arguments, fields = packed
        # Past the constructor, which would make the sentence anew.
        error = kind.__new__(kind, *arguments)
        error.__dict__.update(fields)
        raise error
    return result


# ---- In the job process ----


def main() -> None:
    """Do jobs until the input ends."""
    router_id, rest_s = int(sys.argv[1]), float(sys.argv[2])
    os.nice(_NICENESS)
    # A terminal sends its signals to both; the router decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    jobs = sys.stdin.buffer
    # Whatever prints from here on, prints to standard error: the answers have the output alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    files = _ChildFiles(router_id)
    while (frame := _next_frame(jobs, rest_s)) is not None:
        answer = _answer_to(cast(LogJob, pickle.loads(frame)), files)
        try:
            _write_frame(answers, pickle.dumps(answer))
        except BrokenPipeError:
            return


def _next_frame(jobs: IO[bytes], rest_s: float) -> bytes | None:
    # The router sends no job before it has the answer to the last: nothing waits in the buffer.
    is_there, _, _ = select.select([jobs], [], [], rest_s)
    if not is_there:
        _give_memory_back()
    return _read_frame(jobs)


def _give_memory_back() -> None:
    """Where the C library keeps it and can be told."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _answer_to(job: LogJob, files: Files) -> _Answer:
    try:
        return run(files, job), None
    except SynclineError as error:
        return None, _packed(error)
    except OSError as error:
        # A folder is missing, for one. What is no OSError is our own mistake, and ends the process.
        path = str(error.filename or _THIS_PROCESS)
        return None, _packed(DeviceError(path, f"the job '{job.name}'", str(error.strerror)))


def _packed(error: SynclineError) -> _PackedError:
    return type(error), error.args, error.__dict__


class _ChildFiles(DiskFiles):
    """The disk, for as long as the router lives."""

    def __init__(self, router_id: int) -> None:
        self._router_id = router_id

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create:
            self.check()
        return _ChildFile(super().open(path, create=create, writable=writable), self.check)

    def rename(self, source: str, target: str) -> None:
        self.check()
        super().rename(source, target)

    def link(self, source: str, target: str) -> bool:
        self.check()
        return super().link(source, target)

    def remove(self, path: str) -> None:
        self.check()
        super().remove(path)

    def check(self) -> None:
        """End at once, without tidying up, if this process has been orphaned."""
        if os.getppid() != self._router_id:
            os._exit(1)


class _ChildFile:
    def __init__(self, file: File, check: Callable[[], None]) -> None:
        self.path = file.path
        self._file = file
        self._check = check

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self._check()
        self._file.write(offset, pieces)

    def write_blocks(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self._check()
        self._file.write_blocks(offset, blocks)

    def write_durably(self, offset: int, blocks: Sequence[memoryview]) -> None:
        self._check()
        self._file.write_durably(offset, blocks)

    def sync(self) -> None:
        self._check()
        self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._check()
        self._file.truncate(size)

    def reserve(self, size: int) -> None:
        self._check()
        self._file.reserve(size)

    def forget_cached(self, offset: int, length: int) -> None:
        self._file.forget_cached(offset, length)

    def expect_reads(self, offset: int, length: int) -> None:
        self._file.expect_reads(offset, length)

    def map(self, *, writable: bool) -> MappedFile:
        return self._file.map(writable=writable)

    def claim(self) -> bool:
        return self._file.claim()

    def close(self) -> None:
        self._file.close()


# ---- Between them ----


def _write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> bytes | None:
    """None at the end, also in the middle of a frame."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _FRAME_BYTES_MAX:
        return None
    data = pipe.read(length)
    return data if len(data) == length else None


if __name__ == "__main__":
    main()
