"""Goes round all services, slowly, and compares their sets with the digests that are kept of them.

Associations and digests change together, so a digest is wrong only if somebody changed the file by
hand, a disk did, or we did wrong. Whoever relies on digests would not notice for long: two peers
with equal digests never compare their sets.

- A set is read at one moment, on a thread, a piece of its prefixes at a time, so a change meanwhile
  is no mismatch. A moment is never held for long: what others write then cannot be brought into the
  file. So the pauses of a large set come behind it.
- A round takes as long as it is told to, whatever there is to read: it is the pauses that fill it.
- It begins anywhere, so that a router that is started often comes round as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from syncline.errors import StorageError
from syncline.server.logs import Log
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.digest_repairs import tell_repair
from syncline.server.threads import on_thread
from syncline.storage.records.base import DigestMismatch, Records
from syncline.values.ids import STREAM_ID_BYTES

# Ids read at once: some milliseconds of work.
PIECE_COUNT: Final = 4_096
# What a service costs beside its ids, in ids.
SERVICE_COST: Final = 256
# Pauses within one moment, all together.
MOMENT_SECONDS_MAX: Final = 10.0
# After the start there is enough to do, and where there is nothing to read a round takes no time.
_FIRST_PAUSE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 600.0


class DigestWalk:
    """`run` goes on until it is cancelled; then it ends within one piece."""

    def __init__(
        self,
        records: Records,
        counters: SmpCounters,
        round_seconds: float,
        random_bytes: Callable[[int], bytes],
        log: Log,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._records = records
        self._counters = counters
        self._round_seconds = round_seconds
        self._random_bytes = random_bytes
        self._log = log
        self._sleep = sleep

    async def run(self) -> None:
        await self._sleep(_FIRST_PAUSE_SECONDS)
        while True:
            await self.walk()
            await self._sleep(_PAUSE_SECONDS)

    async def walk(self) -> None:
        """Once round all services."""
        try:
            services = await on_thread(self._records.service_ids)
        except StorageError as error:
            self._log.error("the services cannot be read", reason=str(error))
            return
        start = self._random_bytes(STREAM_ID_BYTES)
        for service_id in sorted(services, key=lambda each: (each < start, each)):
            id_seconds = self._id_seconds()
            try:
                owed_seconds = await self._walk_service(service_id, id_seconds)
            except StorageError as error:
                # The others can be read perhaps; what is damaged is told in every round.
                self._log.error("the set of a service cannot be read", reason=str(error))
                owed_seconds = 0.0
            await self._sleep(owed_seconds + SERVICE_COST * id_seconds)
        self._counters.walk_round_count += 1

    def _id_seconds(self) -> float:
        """How long one id may take, so that all that are there take a round."""
        counts = self._records.counts()
        id_count = counts.association_count + counts.notifier_association_count
        return self._round_seconds / max(
            SERVICE_COST, id_count + SERVICE_COST * counts.service_count
        )

    async def _walk_service(self, service_id: bytes, id_seconds: float) -> float:
        """The pause that is owed for it at the end. Raises StorageError."""
        expected_count = max(1, self._records.digest(service_id).count)
        owed_seconds, left_seconds = 0.0, MOMENT_SECONDS_MAX
        with closing(self._records.walk_digest(service_id)) as steps:
            while True:
                piece = await on_thread(partial(_next_piece, steps))
                self._counters.walked_id_count += piece.id_count
                owed_seconds += piece.id_count * id_seconds
                if piece.is_last:
                    break
                share_seconds = MOMENT_SECONDS_MAX * piece.id_count / expected_count
                pause_seconds = min(owed_seconds, share_seconds, left_seconds)
                await self._sleep(pause_seconds)
                owed_seconds -= pause_seconds
                left_seconds -= pause_seconds
        if piece.mismatch is not None:
            # It looks again: what was wrong may have been repaired, or its service deleted.
            repaired = await on_thread(partial(self._records.repair_digest, service_id))
            if repaired is not None:
                tell_repair(repaired, self._log, self._counters)
        return owed_seconds


@dataclass(frozen=True, slots=True)
class _Piece:
    id_count: int
    is_last: bool = False
    mismatch: DigestMismatch | None = None


def _next_piece(steps: Generator[int, None, DigestMismatch | None]) -> _Piece:
    id_count = 0
    while id_count < PIECE_COUNT:
        try:
            id_count += next(steps)
        except StopIteration as end:
            return _Piece(id_count, is_last=True, mismatch=end.value)
    return _Piece(id_count)
