"""What an operator may do to queues, services and live sessions while the router serves.

Everything returns once it is durable. Whoever is affected is told as if a peer had done it: readers
of a deleted queue, also those of a service; readers of a blocked one with the reason; the session
of a deleted service, which is then closed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from syncline.certificates import identity_of_chain
from syncline.core.deliveries import SessionView
from syncline.core.subscriptions import Effect
from syncline.errors import ServiceMismatchError, StorageError, UnknownQueueError
from syncline.server.smp.associating import Associating
from syncline.server.smp.connections import NO_ID, Connection
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.examining import Examination
from syncline.server.smp.faces import Answer
from syncline.server.smp.notifying import Notifying
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import QueueCommands
from syncline.values.digests import SetDigest
from syncline.values.ids import StreamId
from syncline.values.queue_records import (
    BlockReason,
    QueueRecord,
    QueueStatus,
    ServiceRecord,
    ServiceRole,
)
from syncline.wire.smp import failures
from syncline.wire.smp.messages import Ends, Err


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    record: ServiceRecord
    digest: SetDigest
    # The number of the session that speaks for it.
    session: int | None


@dataclass(frozen=True, slots=True)
class SessionFacts:
    number: int
    remote: str
    version: int
    opened_ms: int
    service_id: bytes | None
    role: ServiceRole | None
    unanswered_count: int
    backlog_count: int
    deliveries: SessionView | None


class Operating:
    """See the module."""

    def __init__(
        self,
        parts: Parts,
        queue_commands: QueueCommands,
        delivering: Delivering,
        notifying: Notifying,
    ) -> None:
        self._parts = parts
        self._queue_commands = queue_commands
        self._delivering = delivering
        outside = parts.outside
        self.examination = Examination(outside.records, parts.counters, outside.log)
        self.associating = Associating(parts, delivering, notifying)

    # Queues.

    def find_queue(self, entity_id: bytes) -> QueueRecord | None:
        """By the id of its recipient or of its sender."""
        records = self._parts.outside.records
        return records.queue(entity_id) or records.by_sender(entity_id)

    async def delete_queue(self, recipient_id: bytes) -> None:
        """Raises UnknownQueueError, StorageError."""
        record = self._found(recipient_id)
        self._queue_commands.take_away(record)
        await self._settled(partial(self._queue_commands.finish_deletion, record, by=None))

    async def block_queue(self, recipient_id: bytes, reason: BlockReason) -> None:
        """Raises UnknownQueueError, StorageError. A block replaces the one before."""
        record = self._found(recipient_id)
        status = QueueStatus.OFF if record.status is QueueStatus.OFF else QueueStatus.BLOCKED
        self._parts.book.change(record, replace(record, block=reason, status=status))
        self._parts.counters.blocked_count += 1
        await self._settled(partial(self._finish_block, record, reason))

    async def unblock_queue(self, recipient_id: bytes) -> None:
        """Raises UnknownQueueError, StorageError."""
        record = self._found(recipient_id)
        if record.block is None:
            return
        status = QueueStatus.OFF if record.status is QueueStatus.OFF else QueueStatus.ACTIVE
        self._parts.book.change(record, replace(record, block=None, status=status))
        self._parts.counters.unblocked_count += 1
        # The session of its service reads it again without asking.
        await self._settled(partial(self._delivering.look, recipient_id))

    def _finish_block(self, record: QueueRecord, reason: BlockReason) -> None:
        """It is durable: tell its readers. Or it was refused: then they have their queue still."""
        queue = record.recipient_id
        found = self._parts.outside.records.queue(queue)
        if found is None or found.block != reason:
            self._delivering.look(queue)
            return
        blocked = Err(failures.blocked(reason.reason, reason.ttl_seconds))
        answer = Answer(NO_ID, queue, blocked)
        for reader in self._parts.deliveries.deleted(queue, found.service_id):
            if found.service_id is None:
                # The session of a service reads it again once it is not blocked any more.
                self._parts.connections.note_effect(reader)
            connection = self._parts.connections.get(reader.session)
            if connection is not None:
                self._parts.connections.send_in_lane(connection, lambda: (answer,))

    # Services.

    def services(self) -> list[ServiceFacts]:
        speakers = {
            connection.session.service.service_id: connection.number
            for connection in self._parts.connections.all()
            if connection.session.service is not None and self._speaks(connection)
        }
        records = self._parts.outside.records
        return [
            ServiceFacts(record, records.digest(record.service_id), speakers.get(record.service_id))
            for record in records.services()
        ]

    async def rotate_service(self, service_id: bytes, chain: tuple[bytes, ...]) -> None:
        """Give it another certificate and keep everything else.

        Sessions with the old one are closed. Raises ServiceMismatchError, StorageError.
        """
        records = self._parts.outside.records
        records.rotate_service(service_id, chain, identity_of_chain(chain))
        self._parts.book.unsettle(service_id)
        self._parts.counters.services_rotated_count += 1
        await self._durable()
        for connection in self._sessions_of(service_id):
            connection.session.close("the certificate of its service was replaced")

    async def delete_service(self, service_id: bytes) -> None:
        """With its associations; its queues stay. Raises ServiceMismatchError, StorageError."""
        records = self._parts.outside.records
        if records.service(service_id) is None:
            raise ServiceMismatchError("no such service is known")
        digest = records.digest(service_id)
        records.delete_service(service_id)
        self._parts.book.unsettle(service_id)
        self._parts.counters.services_deleted_count += 1
        ended = [
            *self._parts.deliveries.service_deleted(service_id),
            *self._parts.notifications.service_deleted(service_id),
        ]
        for effect in ended:
            self._parts.connections.note_effect(effect)
        try:
            await self._durable()
        finally:
            # Also if that was refused: then who has lost it may subscribe again.
            self._tell_ended(service_id, digest, ended)
        for connection in self._sessions_of(service_id):
            connection.session.close("its service was deleted")

    def _tell_ended(self, service_id: bytes, digest: SetDigest, ended: Sequence[Effect]) -> None:
        ends = Answer(NO_ID, service_id, Ends(digest.count, digest.xor_md5))
        for number in {effect.session for effect in ended}:
            if (connection := self._parts.connections.get(number)) is not None:
                self._parts.connections.send(connection, (ends,))

    def _speaks(self, connection: Connection) -> bool:
        service = connection.session.service
        if service is None:
            return False
        reading = (
            self._parts.notifications
            if service.role is ServiceRole.NOTIFIER
            else self._parts.deliveries
        )
        return reading.is_subscribed(connection.number, NO_ID, service.service_id)

    def _sessions_of(self, service_id: bytes) -> list[Connection]:
        return [
            connection
            for connection in self._parts.connections.all()
            if connection.session.service is not None
            and connection.session.service.service_id == service_id
        ]

    # Sessions.

    def sessions(self) -> list[SessionFacts]:
        return [self._facts(connection) for connection in self._parts.connections.all()]

    def close_session(self, number: int) -> bool:
        """Whether there was one."""
        connection = self._parts.connections.get(number)
        if connection is not None:
            connection.session.close("an operator closed it")
        return connection is not None

    def _facts(self, connection: Connection) -> SessionFacts:
        session = connection.session
        return SessionFacts(
            number=connection.number,
            remote=session.remote,
            version=session.version,
            opened_ms=connection.opened_ms,
            service_id=None if session.service is None else session.service.service_id,
            role=None if session.service is None else session.service.role,
            unanswered_count=connection.unanswered_count,
            backlog_count=len(connection.backlog),
            deliveries=self._parts.deliveries.view(connection.number),
        )

    def _found(self, recipient_id: bytes) -> QueueRecord:
        record = self._parts.outside.records.queue(recipient_id)
        if record is None:
            raise UnknownQueueError(str(StreamId(recipient_id)))
        return record

    async def _durable(self) -> None:
        await self._parts.outside.records_committer.durable()

    async def _settled(self, then: Callable[[], object]) -> None:
        """Wait until it is durable; `then` happens in any case, once the records are sure of it.

        Raises StorageError if they refused it.
        """
        committer = self._parts.outside.records_committer

        def told(_: StorageError | None) -> None:
            if committer.failure is None:
                then()
                self._parts.connections.tell_effects()

        committer.when_durable(told)
        await committer.durable()
