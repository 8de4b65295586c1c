"""Repairs of associations that an operator asks for, while the router serves.

- Each is judged by the records as they are by then. What is so already is left alone; what cannot
  be done is refused with a reason, and those beside it are done all the same.
- They are answered once they are durable. Digests, sketches and events follow as they do when a
  peer subscribes or lets go: it is the same change of the same record.
- A queue that becomes a service's is read by whoever speaks for it, from what waits in it on. Who
  read it before is told that this is over, as is a session whose service loses a queue.
- Whoever asked may go away meanwhile: what is staged is finished, and told, all the same.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from syncline.core.subscriptions import Effect
from syncline.errors import StorageError, StoreBusyError
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.notifying import Notifying
from syncline.server.smp.parts import Parts
from syncline.storage.records.base import record_bytes_max
from syncline.values import limits
from syncline.values.queue_records import QueueRecord, ServiceRole
from syncline.values.repairs import (
    Action,
    Reason,
    Repair,
    State,
    Verdict,
    service_of,
    with_service,
)

# In one request: as many ids as one BUS has.
REPAIR_COUNT_MAX: Final = 512
# In one turn of the loop; others have theirs in between.
_PAGE_COUNT: Final = 64

_DONE: Final = Verdict(State.DONE)
_ALREADY: Final = Verdict(State.ALREADY)


@dataclass(frozen=True, slots=True)
class _Staged:
    repair: Repair
    effects: Sequence[Effect]


class Associating:
    """See the module."""

    def __init__(self, parts: Parts, delivering: Delivering, notifying: Notifying) -> None:
        self._parts = parts
        self._delivering = delivering
        self._notifying = notifying
        self._records = parts.outside.records
        self._committer = parts.outside.records_committer

    async def judge_all(self, repairs: Sequence[Repair]) -> list[Verdict]:
        """What `carry_out` would answer to each alone; nothing is changed. Raises StorageError."""
        verdicts = [self.judge(each) for each in repairs]
        # Nobody is told of what is not durable.
        await self._committer.durable()
        return verdicts

    async def carry_out(self, repairs: Sequence[Repair]) -> list[Verdict]:
        """In order, at most `REPAIR_COUNT_MAX`.

        Raises StorageError. Some may be done then; asking again finds those as they are.
        """
        assert len(repairs) <= REPAIR_COUNT_MAX, "whoever asks keeps the bound"
        verdicts: list[Verdict] = []
        failures: list[StorageError] = []
        while len(verdicts) < len(repairs):
            page = repairs[len(verdicts) : len(verdicts) + _PAGE_COUNT]
            judged = self._stage(page, failures)
            if not judged:
                await self._wait_for_room()
                judged = self._stage(page, failures)
            if not judged:
                raise self._busy()
            verdicts += judged
            await asyncio.sleep(0)
        await self._committer.durable()
        if failures:
            # Of a page before the last one.
            raise failures[0]
        counted = Counter(each.state.value for each in verdicts)
        self._parts.outside.log.info("an operator repaired associations", **counted)
        return verdicts

    def judge(self, repair: Repair) -> Verdict:
        """Done: it can be."""
        service = self._records.service(repair.service)
        record = self._record(repair)
        current = None if record is None else service_of(record, repair.role)
        if service is not None and service.role is not repair.role:
            return _refused(Reason.OTHER_ROLE)
        if repair.action is Action.DISSOCIATE:
            # It is not among the ids of the service, for whatever reason: that is what is wanted.
            return _DONE if current == repair.service else _ALREADY
        if service is None:
            return _refused(Reason.UNKNOWN_SERVICE)
        if record is None:
            return _refused(Reason.UNKNOWN_ID)
        if current is not None:
            return _ALREADY if current == repair.service else _refused(Reason.OTHER_SERVICE)
        if record.block is not None and repair.role is ServiceRole.MESSAGING:
            # Its service could not subscribe to it either.
            return _refused(Reason.BLOCKED)
        return _DONE

    # Staging.

    def _stage(self, repairs: Sequence[Repair], failures: list[StorageError]) -> list[Verdict]:
        """Those of the first ones for which there is room; `failures` hears what became of them."""
        verdicts: list[Verdict] = []
        staged: list[_Staged] = []
        try:
            with suppress(StoreBusyError):
                for repair in repairs:
                    verdict = self.judge(repair)
                    if verdict is _DONE:
                        staged.append(self._change(repair))
                    verdicts.append(verdict)
        finally:
            # Also for what was so already: it may be so for a change that is not durable.
            self._committer.when_durable(partial(self._settle, staged, failures))
        return verdicts

    def _change(self, repair: Repair) -> _Staged:
        """Raises StoreBusyError; then nothing is changed."""
        parts, record = self._parts, self._record(repair)
        assert record is not None, "it was judged a moment ago"
        associates = repair.action is Action.ASSOCIATE
        after = with_service(record, repair.role, repair.service if associates else None)
        parts.book.change(record, after)
        is_notifier = repair.role is ServiceRole.NOTIFIER
        reading = parts.notifications if is_notifier else parts.deliveries
        if associates:
            parts.counters.count_association(None, repair.service)
            return _Staged(repair, reading.associated(repair.id, repair.service))
        parts.counters.count_association(repair.service, None)
        return _Staged(repair, reading.dissociated(repair.id, repair.service))

    async def _wait_for_room(self) -> None:
        """Raises StorageError."""
        try:
            async with asyncio.timeout(self._parts.outside.options.busy_seconds_max):
                await self._committer.room(record_bytes_max)
        except TimeoutError:
            raise self._busy() from None

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(self._records.waiting_bytes, limits.waiting_bytes_max)

    # Telling.

    def _settle(
        self,
        staged: Sequence[_Staged],
        failures: list[StorageError],
        failure: StorageError | None,
    ) -> None:
        if failure is not None:
            failures.append(failure)
        if failure is not None and self._committer.failure is not None:
            # Nobody knows what is on the disk: nothing is told any more.
            return
        for each in staged:
            # What a full disk refused is the service's still, and nobody has lost it.
            if failure is None or each.repair.action is Action.ASSOCIATE:
                self._parts.connections.add_effects(each.effects)
        self._parts.connections.tell_effects()
        for each in staged:
            self._look(each.repair)

    def _look(self, repair: Repair) -> None:
        """Whoever reads it by now gets what waits."""
        if repair.role is not ServiceRole.NOTIFIER:
            self._delivering.look(repair.id)
            return
        record = self._record(repair)
        service_id = None if record is None else record.notifier_service_id
        reader = self._parts.notifications.reader_of(repair.id, service_id)
        if reader is not None:
            self._notifying.flush_soon(reader.session)

    def _record(self, repair: Repair) -> QueueRecord | None:
        if repair.role is ServiceRole.NOTIFIER:
            return self._records.by_notifier(repair.id)
        return self._records.queue(repair.id)


def _refused(reason: Reason) -> Verdict:
    return Verdict(State.REFUSED, reason)
