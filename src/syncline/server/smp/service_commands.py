"""Services: one certificate, one id, and one command for all queues that belong to it.

- A certificate is known by its fingerprint. The first time it is seen it becomes a service, with a
  random id that stays; its role is what it said then.
- SUBS takes all queues of the service at once, NSUBS all its notifiers. The answer tells how many
  those are and the digest of their ids, as they are durable; whether the client believed the same
  is counted and changes nothing, but that in an extended session it comes with the answer how to
  find out what differs (`syncline.server.smp.openings`).
- Whoever subscribed for the service before is told that it has lost it, last of all, and may take
  it back.
"""

from collections.abc import Callable
from functools import partial

from syncline.certificates import identity_of_chain
from syncline.core.deliveries import Fold
from syncline.errors import LimitExceededError, RefusedError, StorageError
from syncline.server.smp.calls import Call
from syncline.server.smp.connections import Connection
from syncline.server.smp.faces import SessionService
from syncline.server.smp.folding import Folding
from syncline.server.smp.notifying import Notifying
from syncline.server.smp.openings import Openings
from syncline.server.smp.parts import Parts
from syncline.server.smp.replies import RECORDS, Late, Reply
from syncline.values.ids import STREAM_ID_BYTES
from syncline.values.queue_records import ServiceRecord, ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Nsubs, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Soks

BAD_SERVICE = "HANDSHAKE BAD_SERVICE"


class ServiceCommands:
    """See the module."""

    def __init__(
        self, parts: Parts, folding: Folding, notifying: Notifying, openings: Openings
    ) -> None:
        self._parts = parts
        self._folding = folding
        self._notifying = notifying
        self._openings = openings
        # Services that are on their way to the disk, where they are not counted yet.
        self._new_count = 0

    async def admit(self, chain: tuple[bytes, ...], role: ServiceRole) -> bytes | str:
        """The id of the service, or why it is turned away. Raises StorageError."""
        outside = self._parts.outside
        fingerprint = identity_of_chain(chain)
        known = outside.records.service_by_fingerprint(fingerprint)
        if known is None:
            known = self._create(chain, fingerprint, role)
        if known is None or known.role is not role:
            self._parts.counters.services_refused_count += 1
            return BAD_SERVICE
        if not self._parts.book.is_settled(known.service_id):
            await outside.records_committer.durable()
        return known.service_id

    def subscribe(self, call: Call, service: SessionService, command: Subs) -> Reply | None:
        """Raises FailureError."""
        self._check_exists(service)
        subscribed = self._parts.deliveries.subscribe_service(call.number, service.service_id)
        if self._parts.outside.events is not None:
            self._parts.outside.events.subscribed(service.service_id, call.number)
        self._parts.connections.add_effects(subscribed.effects)
        begin = partial(self._begin_fold, call.connection, subscribed.fold)
        return self._reply(call, service, command, begin, is_new=subscribed.is_new)

    def subscribe_notifiers(
        self, call: Call, service: SessionService, command: Nsubs
    ) -> Reply | None:
        """Raises FailureError."""
        self._check_exists(service)
        subscribed = self._parts.notifications.subscribe_service(call.number, service.service_id)
        if self._parts.outside.events is not None:
            self._parts.outside.events.subscribed(service.service_id, call.number)
        self._parts.connections.add_effects(subscribed.effects)
        flush = partial(self._notifying.flush_soon, call.number)
        return self._reply(call, service, command, flush, is_new=subscribed.is_new)

    def _create(
        self, chain: tuple[bytes, ...], fingerprint: bytes, role: ServiceRole
    ) -> ServiceRecord | None:
        """None: it is one too many. Raises StorageError."""
        outside, options = self._parts.outside, self._parts.outside.options
        service_count = outside.records.counts().service_count + self._new_count
        if not options.creates_services or service_count >= options.service_count_max:
            return None
        record = ServiceRecord(
            outside.random_bytes(STREAM_ID_BYTES),
            role,
            chain,
            fingerprint,
            outside.clock_ms() // 1_000,
        )
        try:
            outside.records.create_service(record)
        except (RefusedError, LimitExceededError) as error:
            outside.log.warning("a service cannot be created", reason=str(error))
            return None
        self._parts.book.unsettle(record.service_id)
        self._new_count += 1
        outside.records_committer.when_durable(self._is_counted)
        self._parts.counters.services_created_count += 1
        return record

    def _is_counted(self, _: StorageError | None) -> None:
        """Or it was refused."""
        self._new_count -= 1

    def _check_exists(self, service: SessionService) -> None:
        """An operator may have deleted it since the session began."""
        if self._parts.outside.records.service(service.service_id) is None:
            raise FailureError(failures.SERVICE)

    def _reply(
        self,
        call: Call,
        service: SessionService,
        command: Subs | Nsubs,
        then: Callable[[], object],
        *,
        is_new: bool,
    ) -> Reply | None:
        if command.hashes is not None:
            self._openings.answer(call, service, command, then, is_new=is_new)
            return None
        message = self._counted(service, command, is_new=is_new)
        return Reply(message, RECORDS, then, then_always=True)

    def _counted(self, service: SessionService, command: Subs | Nsubs, *, is_new: bool) -> Late:
        def make() -> Soks:
            digest = self._parts.outside.records.digest(service.service_id)
            self._parts.counters.count_bulk(command.count, command.ids_hash, digest, is_new=is_new)
            return Soks(digest.count, digest.xor_md5)

        return Late(make)

    def _begin_fold(self, connection: Connection, fold: Fold | None) -> None:
        if fold is not None:
            self._folding.begin(connection, fold)
