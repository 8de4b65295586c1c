"""What the tasks of the generator share: waiting, counting, a full window, a look at the end."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.documents.links import Collector, Door, Reader, Writer
from bench.documents.updates import text_of, typed_text
from bench.support.processes import BenchError, cpu_seconds

Task = dict[str, Any]
Result = dict[str, Any]

# The author of everything in a document; further documents count up from here.
CLIENT = 1000
_POLL_SECONDS = 0.005
_DRAIN_SECONDS_MAX = 60


class Meter:
    """Deliveries, and CPU and time of the server since it was started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = self._time = 0.0
        self._before = self.delivery_count = 0

    def delivered(self, client: int, first: int, end: int) -> None:
        self.delivery_count += end - first

    def start(self) -> None:
        self._before = self.delivery_count
        self._cpu, self._time = cpu_seconds(self._pid), time.perf_counter()

    def result(self, seconds: float) -> Result:
        """With the CPU until now, and deliveries per second over `seconds`."""
        count = self.delivery_count - self._before
        cpu = cpu_seconds(self._pid) - self._cpu
        return {
            "delivery_count": count,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "per_second": count / seconds,
            "per_cpu_second": count / cpu,
            "cpu_us": cpu / count * 1e6,
        }

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._time


class Pump:
    """Keeps `window` updates under way: the next ones go when readers got the earlier ones."""

    def __init__(self, writer: Writer, frames: list[bytes], window: int, reader_count: int) -> None:
        self.sent = 0
        self.emptied = asyncio.Event()
        self._writer, self._frames = writer, frames
        self._window, self._reader_count = window, reader_count
        self._delivery_count = 0
        self._is_due = self._is_stopped = False
        self._loop = asyncio.get_running_loop()

    def delivered(self, client: int, first: int, end: int) -> None:
        self._delivery_count += end - first
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        self._is_due = False
        if self._is_stopped:
            return
        arrived = self._delivery_count // self._reader_count
        end = min(arrived + self._window, len(self._frames))
        for frame in self._frames[self.sent : end]:
            self._writer.send(frame)
        self.sent = max(self.sent, end)
        if self.sent == len(self._frames):
            self.emptied.set()

    def stop(self) -> None:
        self._is_stopped = True


async def until(
    condition: Callable[[], bool],
    what: str,
    seconds_max: float,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    deadline = time.perf_counter() + seconds_max
    while not condition():
        if time.perf_counter() > deadline:
            raise BenchError(f"after {seconds_max:.0f} s: {what}")
        await asyncio.sleep(poll_seconds)


async def open_readers(
    door: Door, document: str, count: int, delivered: Callable[[int, int, int], None]
) -> list[Reader]:
    return await asyncio.gather(*(door.open_reader(document, delivered) for _ in range(count)))


async def drain(readers: list[Reader], sent: int) -> None:
    """Until every reader has every update."""
    try:
        await until(
            lambda: all(reader.update_count >= sent for reader in readers),
            "not everything arrived",
            _DRAIN_SECONDS_MAX,
        )
    except BenchError as error:
        fewest = min(reader.update_count for reader in readers)
        raise BenchError(f"{error}: a reader has {fewest} of {sent} updates") from error


async def collected(door: Door, document: str, quiet_seconds: float = 0.3) -> list[bytes]:
    """What a newcomer gets, until nothing came for a while."""
    collector = Collector(door.framing(document))
    await door.open(document, collector)
    await until(
        lambda: time.perf_counter() - collector.updates[-1][0] > quiet_seconds,
        "the server did not stop sending",
        _DRAIN_SECONDS_MAX,
    )
    collector.close()
    return [update for _, update in collector.updates]


async def check_text(door: Door, document: str, client: int, sent: int) -> None:
    """A newcomer must read what was written."""
    if not door.framing(document).answers_opening:
        return
    found = text_of(await collected(door, document))
    if found != typed_text(client, sent):
        raise BenchError(f"{document} holds {len(found)} characters, not the {sent} written")
