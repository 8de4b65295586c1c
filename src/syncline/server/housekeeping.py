"""What the router does by itself while it serves.

- Upkeep of the store, in a thread; the log has a process of its own for it. A job that takes long
  keeps none waiting that the store gives out beside it.
- Acknowledgements that nobody waits for reach the disk within a heartbeat.
- Messages past their age are dropped, a few at a time.
- Sealed files are read again at a low rate; new damage is reported.
- With too little free space, new messages are refused before the disk is full.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from syncline.errors import StoreFullError
from syncline.server.committer import Committer
from syncline.server.health import damage_facts
from syncline.server.logs import Log
from syncline.server.metrics import Metrics
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.storage.base import Job, Store
from syncline.values.limits import KIB

HEARTBEAT_SECONDS = 1.0
# How soon a job that became due is seen while batches are written. While none are, nothing becomes
# due by itself; it is looked at all the same, as are the room on the disk and damage.
_BUSY_SECONDS = 0.05
_IDLE_SECONDS = 10.0
_FULL_SECONDS = 5.0
_EXPIRY_SECONDS = 30.0
_EXPIRY_COUNT = 1_000
_SCRUB_BYTES = 64 * KIB
_SCRUB_PAUSE_SECONDS = 600.0


class Housekeeping:
    """`run` goes on until it is cancelled. Raises StorageError when the device fails."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        queues: Queues,
        free_bytes: Callable[[], int],
        settings: Settings,
        clock_ms: Callable[[], int],
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._committer = committer
        self._queues = queues
        self._free_bytes = free_bytes
        self._settings = settings
        self._clock_ms = clock_ms
        self._log = log
        self._metrics = metrics
        # Who waits for upkeep beside the queues of the operator's API, and who has some of their
        # own to do at every heartbeat.
        self.on_relief: list[Callable[[], None]] = []
        self.on_beat: list[Callable[[], None]] = []
        self._known_damage_count = 0
        # Jobs under way.
        self._job_count = 0
        self._job_ended = asyncio.Event()
        # Upkeep found no room: it is tried again from this time of the loop on.
        self._no_room_until = 0.0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._do_jobs(group))
            group.create_task(self._beat())
            if self._settings.queues_expire_after_seconds:
                group.create_task(self._expire())
            if self._settings.upkeep_scrub_bytes_per_second:
                group.create_task(self._scrub())

    # Jobs.

    async def _do_jobs(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        batch_count = -1
        while True:
            has_room = loop.time() >= self._no_room_until
            if has_room:
                while (job := self._store.take_job()) is not None:
                    self._job_count += 1
                    group.create_task(self._do_job(job))
            is_busy = self._committer.stats.batch_count != batch_count
            batch_count = self._committer.stats.batch_count
            if self._job_count or not has_room:
                # Whoever presses waits for that to end: to look again at once would be in vain.
                self._job_ended.clear()
                await _wait_for(self._job_ended, _BUSY_SECONDS)
            else:
                if not is_busy:
                    self._committer.tell_next_batch(self._queues.pressure.set)
                await _wait_for(self._queues.pressure, _BUSY_SECONDS if is_busy else _IDLE_SECONDS)
            # Whoever waits may find room by now, and asks for more upkeep if not.
            self._relieve()

    async def _do_job(self, job: Job) -> None:
        try:
            result = await asyncio.to_thread(self._store.run_job, job)
        except StoreFullError as error:
            # It is due again, and most others need room as well, which may come by itself.
            self._log.warning("no room for upkeep", job=job.name, reason=error.reason)
            self._no_room_until = asyncio.get_running_loop().time() + _FULL_SECONDS
        else:
            self._store.finish_job(job, result)
            self._metrics.count_job(job.name)
        self._job_count -= 1
        self._job_ended.set()

    def _relieve(self) -> None:
        self._queues.relieve()
        for relieve in self.on_relief:
            relieve()

    # Every second.

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        batch_count = -1
        look_at = 0.0
        while True:
            is_busy = self._committer.stats.batch_count != batch_count
            if is_busy or self._queues.shortage is not None or loop.time() >= look_at:
                batch_count = self._committer.stats.batch_count
                look_at = loop.time() + _IDLE_SECONDS
                self.watch_space()
                self._report_damage()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._committer.flush()
            for keep_house in self.on_beat:
                keep_house()

    def watch_space(self) -> None:
        """Refuse new messages below the reserve, take them again a little above it."""
        reserve = self._settings.store_free_bytes_min
        free = self._free_bytes()
        if self._queues.shortage is None and free < reserve:
            self._queues.shortage = StoreFullError(
                self._settings.store_folder, f"only {free} bytes are free, {reserve} are kept back"
            )
            self._log.warning("new messages are refused", free_bytes=free, reserve_bytes=reserve)
        elif self._queues.shortage is not None and free >= reserve + reserve // 8:
            self._queues.shortage = None
            self._log.info("new messages are taken again", free_bytes=free)

    def _report_damage(self) -> None:
        count = self._store.stats().damage_count
        if count > self._known_damage_count:
            for damage in self._store.damage()[self._known_damage_count : count]:
                self._log.error("damage found", **damage_facts(damage))
        self._known_damage_count = count

    # Slow work.

    async def _expire(self) -> None:
        age_ms = self._settings.queues_expire_after_seconds * 1_000
        while True:
            count = self._store.expire_before(self._clock_ms() - age_ms, _EXPIRY_COUNT)
            self._metrics.count_expired(count)
            await asyncio.sleep(0.0 if count == _EXPIRY_COUNT else _EXPIRY_SECONDS)

    async def _scrub(self) -> None:
        step_seconds = _SCRUB_BYTES / self._settings.upkeep_scrub_bytes_per_second
        while True:
            scrubbed = self._store.scrub(_SCRUB_BYTES)
            self._metrics.count_scrubbed(scrubbed)
            await asyncio.sleep(step_seconds if scrubbed else _SCRUB_PAUSE_SECONDS)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
