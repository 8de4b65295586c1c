"""The SMP router: blocks of commands come in, are carried out in order, and are answered.

A block is worked through when it comes, in one turn of the loop and in the order of its commands:
the next command meets what the one before it staged, in the same block or another. Answers go out
when what they tell is durable, those of one block together where they wait for the same.

A command for which the disk has no room waits, and with it everything behind it of the same
session, which is not read from meanwhile. So the commands of a session are never carried out in
another order than they came.

A command that meets a mistake of ours is answered with INTERNAL and reported; those before and
behind it are carried out as if it had not been there.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb

from syncline.errors import (
    LimitExceededError,
    QueueExistsError,
    ServiceMismatchError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    UnknownQueueError,
)
from syncline.server.smp.calls import Call
from syncline.server.smp.connections import NO_ID, Connection
from syncline.server.smp.dispatching import Dispatch, Relay
from syncline.server.smp.faces import Answer, SmpSession
from syncline.server.smp.followed_sets import FollowedSets
from syncline.server.smp.operating import Operating
from syncline.server.smp.parts import Parts, Surroundings
from syncline.server.smp.replies import RECORDS, Releases, Reply, Turn, refusal_text
from syncline.server.smp.tasks import Tasks
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.commands import decode_command
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.messages import Err, RouterMessage
from syncline.wire.smp.transmissions import Damaged, Transmission

# How soon a command that waits for room tries again if nobody says that there is some.
_BUSY_SECONDS = 0.05
# Of the way to a mistake, as many calls are told.
_PLACE_COUNT = 4


class SmpRouter:
    """Implements `faces.RouterFace`; see the module. Lives in the event loop of the stores."""

    def __init__(self, outside: Surroundings, relay: Relay | None = None) -> None:
        self._outside = outside
        parts = self._parts = Parts.made_for(outside)
        self._connections = parts.connections
        self._tasks = Tasks(outside.log)
        self._dispatch = Dispatch(parts, self._tasks, relay)
        self._releases = Releases(
            outside.committer, outside.records_committer, parts.connections, outside.log
        )
        self._relief = asyncio.Event()
        # Sessions whose commands wait for room.
        self._stalled: set[int] = set()
        self.counters = parts.counters
        self.operating = Operating(
            parts,
            self._dispatch.queue_commands,
            self._dispatch.delivering,
            self._dispatch.notifying,
        )
        # Of deletions that a crash cut off, the first ones; `keep_house` has the rest.
        self._dispatch.erasing.finish_some()
        self._erased_batch_count = -1

    # For the transport.

    async def admit_service(self, chain: tuple[bytes, ...], role: ServiceRole) -> bytes | str:
        return await self._dispatch.services.admit(chain, role)

    def opened(self, session: SmpSession) -> None:
        self._connections.open(session, self._outside.clock_ms())
        service = session.service
        if service is not None and self._outside.records.service(service.service_id) is None:
            session.close("its service was deleted")

    def received(
        self, session: SmpSession, transmissions: Sequence[Transmission | Damaged]
    ) -> None:
        connection = self._connections.get(session.number)
        if connection is None:
            return
        if connection.number in self._stalled:
            connection.backlog.extend(transmissions)
        else:
            self.work(connection, transmissions)

    def drained(self, session: SmpSession) -> None:
        connection = self._connections.get(session.number)
        if connection is not None:
            self._dispatch.delivering.resume(connection)
            self._dispatch.notifying.resume(connection.number)

    def closed(self, session: SmpSession) -> None:
        self._connections.close(session.number)
        self._dispatch.reconciling.forget_session(session.number)

    # For the process.

    @property
    def session_count(self) -> int:
        return len(self._connections)

    @property
    def subscribed_queue_count(self) -> int:
        """Queues that a session reads by itself, those of services left out."""
        return self._parts.deliveries.queue_count

    @property
    def subscribed_service_count(self) -> int:
        return self._parts.deliveries.service_count + self._parts.notifications.service_count

    @property
    def waiting_notification_count(self) -> int:
        return self._parts.notifications.waiting_count

    @property
    def dropped_notification_count(self) -> int:
        return self._parts.notifications.dropped_count

    @property
    def followed_sets(self) -> FollowedSets:
        """For what is counted there."""
        return self._dispatch.reconciling.sets

    def is_session_subscribed(self, number: int) -> bool:
        """Whether it reads anything; one that does not may be closed when it is silent for long."""
        return self._parts.deliveries.has_subscriptions(
            number
        ) or self._parts.notifications.has_subscriptions(number)

    def relieve(self) -> None:
        """Some upkeep is done: commands that wait for room may try again."""
        self._relief.set()
        self._relief.clear()

    def expire(self, queue: StreamId, now_ms: int) -> None:
        """Let go of messages of the queue that are past their age."""
        self._dispatch.sending.expire(queue, now_ms)

    def keep_house(self) -> None:
        """Every second or so: what nobody waits for reaches the disk, and what is left is done."""
        self._parts.notifications.expire(self._outside.steady_ms())
        batch_count = self._outside.records_committer.stats.batch_count
        if batch_count != self._erased_batch_count and not self._dispatch.erasing.finish_some():
            # No deletion is left, and none comes without a batch.
            self._erased_batch_count = batch_count
        self._dispatch.reconciling.keep_house()
        self._outside.records_committer.flush()

    async def close(self) -> None:
        """Cut off what is under way; what is staged stays with the committers."""
        await self._tasks.close()
        await self._dispatch.reconciling.close()

    # For what answers later (`dispatching.Relay`).

    def hold(self, call: Call) -> None:
        """The command is not answered yet; `answer` will be called once."""
        self._connections.hold(call.connection, 1, len(call.transmission.signed))

    def answer(self, call: Call, message: RouterMessage) -> None:
        transmission = call.transmission
        if isinstance(message, Err):
            self._count(message.failure)
        self._connections.let_go(call.connection, 1, len(transmission.signed))
        answer = Answer(transmission.corr_id, transmission.entity_id, message)
        self._connections.send(call.connection, [answer])

    # Working.

    def work(self, connection: Connection, transmissions: Sequence[Transmission | Damaged]) -> None:
        """Carry out commands in order; stall at the first for which there is no room."""
        turn = Turn()
        for index, transmission in enumerate(transmissions):
            try:
                self._answer(connection, transmission, turn)
            except StoreBusyError:
                connection.backlog.extendleft(reversed(transmissions[index:]))
                self._stall(connection)
                break
        self._releases.release(connection, turn)
        self._connections.tell_effects()

    def _answer(
        self, connection: Connection, transmission: Transmission | Damaged, turn: Turn
    ) -> None:
        """Raises StoreBusyError if it has to be tried again."""
        if isinstance(transmission, Damaged):
            self._count(transmission.failure)
            turn.add(transmission.corr_id, NO_ID, Reply(Err(transmission.failure)), 0)
            return
        entity_id = transmission.entity_id
        try:
            reply = self._carry_out(connection, transmission)
        except FailureError as error:
            self._count(error.failure)
            reply = Reply(Err(error.failure))
        except StoreBusyError:
            raise
        except Exception as mistake:  # noqa: BLE001 (it costs this command, not its session)
            self._report(mistake)
            self._count(failures.INTERNAL)
            reply = Reply(Err(failures.INTERNAL))
        if reply is None:
            return
        unsettled = self._parts.book.unsettled(entity_id)
        if unsettled is not None:
            # It tells of a record, if only between the lines, that is not durable.
            waits_for = reply.waits_for | RECORDS
            reply = Reply(reply.message, waits_for, reply.then, reply.then_always)
        turn.add(transmission.corr_id, entity_id, reply, len(transmission.signed), unsettled)

    def _carry_out(self, connection: Connection, transmission: Transmission) -> Reply | None:
        """Raises FailureError with what the command is answered with, StoreBusyError."""
        command = decode_command(connection.session.version, transmission.body)
        try:
            return self._dispatch.carry_out(Call(connection, transmission, command))
        except StoreBusyError:
            raise
        except (QueueExistsError, UnknownQueueError) as error:
            raise FailureError(failures.AUTH) from error
        except ServiceMismatchError as error:
            raise FailureError(failures.SERVICE) from error
        except (StorageError, LimitExceededError) as error:
            if not isinstance(error, StoreFullError):
                self._outside.log.error("a command failed", reason=str(error))
            raise FailureError(_store_failure(error)) from error

    def _report(self, mistake: Exception) -> None:
        """Ours, for whoever can mend it: what and where, and nothing of what the peer said."""
        places = extract_tb(mistake.__traceback__)[-_PLACE_COUNT:]
        self._outside.log.error(
            "a command met a mistake of the router",
            kind=type(mistake).__name__,
            place=" > ".join(f"{Path(each.filename).name}:{each.lineno}" for each in places),
        )

    def _count(self, failure: Failure) -> None:
        self.counters.refused[failure.code] += 1

    # Waiting for room.

    def _stall(self, connection: Connection) -> None:
        self._connections.pause_reading(connection)
        if connection.number not in self._stalled:
            self._stalled.add(connection.number)
            self.counters.stalled_count += 1
            self._tasks.start(self._outwait(connection), "waiting for room")

    async def _outwait(self, connection: Connection) -> None:
        """Try again until everything is done, and refuse what waits for too long."""
        try:
            while connection.backlog and not self._has_failed():
                waiting = connection.backlog[0]
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._outside.options.busy_seconds_max):
                        await self._try_again(connection, waiting)
                if connection.backlog and connection.backlog[0] is waiting:
                    self._refuse_busy(connection)
        finally:
            self._stalled.discard(connection.number)
            if self._connections.get(connection.number) is connection:
                self._connections.resume_reading(connection)

    def _has_failed(self) -> bool:
        """Nothing will be told any more."""
        outside = self._outside
        return (outside.committer.failure or outside.records_committer.failure) is not None

    async def _try_again(self, connection: Connection, waiting: Transmission | Damaged) -> None:
        """Until the first that waits could be carried out, or the session is gone."""
        while connection.backlog and connection.backlog[0] is waiting and not self._has_failed():
            self._outside.press()
            await self._wait_for_relief()
            backlog = list(connection.backlog)
            connection.backlog.clear()
            self.work(connection, backlog)

    async def _wait_for_relief(self) -> None:
        for committer in (self._outside.committer, self._outside.records_committer):
            committer.when_durable(lambda _: self.relieve())
        with suppress(TimeoutError):
            async with asyncio.timeout(_BUSY_SECONDS):
                await self._relief.wait()

    def _refuse_busy(self, connection: Connection) -> None:
        transmission = connection.backlog.popleft()
        assert isinstance(transmission, Transmission), "only what was sound can have to wait"
        failure = failures.store("the disk is busy, try again later")
        self._count(failure)
        turn = Turn()
        turn.add(transmission.corr_id, transmission.entity_id, Reply(Err(failure)), 0)
        self._releases.release(connection, turn)


def _store_failure(error: StorageError | LimitExceededError) -> Failure:
    if isinstance(error, StorageError):
        return failures.store(refusal_text(error))
    return failures.store("that is more than the store takes")
