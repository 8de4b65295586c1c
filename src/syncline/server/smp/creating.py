"""NEW: a queue is created, with the ids, keys and secrets that go with it.

- What the client may choose itself shows nothing of other queues: a sender id follows from the
  correlation id, and one that is taken is refused like a wrong password.
- In the session of a service the queue belongs to the service from the start, and is subscribed to.
- Repeating the command makes another queue: only its answer names the first one.
"""

from functools import partial
from hmac import compare_digest

from syncline.errors import MalformedMessageError
from syncline.server.smp.book import day_of
from syncline.server.smp.calls import Call
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.parts import Parts
from syncline.server.smp.replies import ORDER, RECORDS, Reply
from syncline.values.ids import STREAM_ID_BYTES, StreamId
from syncline.values.queue_records import (
    LinkRecord,
    NotifierRecord,
    QueueMode,
    QueueRecord,
)
from syncline.wire.smp import failures
from syncline.wire.smp.bodies import sender_id_of
from syncline.wire.smp.boxes import SECRET_BYTES, shared_secret, x25519_public
from syncline.wire.smp.commands import LinkRequest, New, NotifierKeys
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Ids, Nid


class Creating:
    """See the module."""

    def __init__(self, parts: Parts, delivering: Delivering) -> None:
        self._parts = parts
        self._delivering = delivering

    def create(self, call: Call, command: New) -> Reply:
        """Raises FailureError, QueueExistsError, StorageError."""
        self._check(call, command)
        outside = self._parts.outside
        queue = StreamId(self.new_id())
        dh_key, secret = self.agree(command.dh_key)
        request = command.request
        link = None if request is None else request.link
        notifier, nid = self.make_notifier(command.notifier)
        record = QueueRecord(
            recipient_id=queue,
            recipient_keys=(command.auth_key.encoded,),
            secret=secret,
            sender_id=self.new_id() if link is None else link.sender_id,
            # A client that does not say, or is too old to, has a queue that its sender leaves be.
            mode=QueueMode.CONTACT if request is None else request.mode,
            link=None if link is None else self._link_record(link),
            notifier=notifier,
            service_id=call.service_id,
            used_day=day_of(outside.clock_ms()),
        )
        self._parts.book.create(record)
        self._parts.counters.created_count += 1
        if record.service_id is not None:
            self._parts.counters.associations_new_count += 1
        if command.subscribes:
            if self._parts.outside.events is not None:
                self._parts.outside.events.subscribed(queue, call.number, 1)
            self._parts.connections.add_effects(
                self._parts.deliveries.subscribe(call.number, queue, record.service_id)
            )
        ids = Ids(
            queue,
            record.sender_id,
            dh_key,
            None if request is None else request.mode,
            None if record.link is None else record.link.link_id,
            record.service_id,
            nid,
        )
        # A sender that knows the id by itself may have been quicker than the answer.
        look = partial(self._delivering.look_after, call.number, queue, record.service_id)
        # Of a service it tells that the session speaks for it.
        waits_for = RECORDS if call.service_id is None else RECORDS | ORDER
        return Reply(ids, waits_for, look, then_always=True)

    def new_id(self) -> bytes:
        return self._parts.outside.random_bytes(STREAM_ID_BYTES)

    def agree(self, theirs: PublicKey) -> tuple[PublicKey, bytes]:
        """A new key of ours, and the secret that it makes with theirs. Raises FailureError."""
        private = self._parts.outside.random_bytes(SECRET_BYTES)
        try:
            secret = shared_secret(private, theirs.raw)
        except MalformedMessageError as error:
            raise FailureError(failures.SYNTAX) from error
        return PublicKey(KeyKind.X25519, x25519_public(private)), secret

    def make_notifier(
        self, keys: NotifierKeys | None
    ) -> tuple[NotifierRecord, Nid] | tuple[None, None]:
        """Raises FailureError."""
        if keys is None:
            return None, None
        dh_key, secret = self.agree(keys.dh_key)
        record = NotifierRecord(self.new_id(), keys.auth_key.encoded, secret)
        return record, Nid(record.notifier_id, dh_key)

    def _check(self, call: Call, command: New) -> None:
        options = self._parts.outside.options
        if not options.creates_queues or not _knows(options.password, command.password):
            raise FailureError(failures.AUTH)
        if call.service_id is not None and not command.subscribes:
            raise FailureError(failures.PROHIBITED)
        link = None if command.request is None else command.request.link
        if link is not None:
            if link.sender_id != sender_id_of(call.transmission.corr_id):
                raise FailureError(failures.PROHIBITED)
            check_link_id(link.link_id)
        shortage = self._parts.outside.shortage()
        if shortage is not None:
            raise shortage

    def _link_record(self, link: LinkRequest) -> LinkRecord:
        return LinkRecord(link.link_id or self.new_id(), link.fixed, link.user)


def check_link_id(link_id: bytes | None) -> None:
    """Raises FailureError for one that a client made, and not as long as ids are."""
    if link_id is not None and len(link_id) != STREAM_ID_BYTES:
        raise FailureError(failures.SYNTAX)


def _knows(password: str, given: bytes | None) -> bool:
    return not password or compare_digest(password.encode(), given or b"")
