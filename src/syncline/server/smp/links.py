"""Short links: two opaque pieces of data behind an id, for whoever is to become a queue's sender.

- The fixed part never changes, the other may.
- The link of a contact address can be read by everybody who has it (LGET).
- That of a messaging queue is read by securing the queue (LKEY), again with the same key, until the
  first message by that sender. A secured messaging queue gets no link any more.
"""

from dataclasses import replace

from syncline.server.smp.creating import check_link_id
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import QueueCommands, check_not_blocked
from syncline.server.smp.replies import RECORDS, Reply
from syncline.values.queue_records import LinkRecord, QueueMode, QueueRecord
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Lset
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import PublicKey
from syncline.wire.smp.messages import Lnk, Ok

_OK = Ok()


class Links:
    """See the module. Every method raises FailureError, QueueExistsError or StorageError."""

    def __init__(self, parts: Parts, queue_commands: QueueCommands) -> None:
        self._parts = parts
        self._queue_commands = queue_commands

    def set_data(self, record: QueueRecord, command: Lset) -> Reply:
        check_not_blocked(record)
        check_link_id(command.link_id)
        if record.mode is QueueMode.MESSAGING and record.sender_key is not None:
            raise FailureError(failures.AUTH)
        link = LinkRecord(command.link_id, command.fixed, command.user)
        if record.link is not None and (
            record.link.link_id != link.link_id or record.link.fixed != link.fixed
        ):
            raise FailureError(failures.AUTH)
        if record.link == link:
            return Reply(_OK)
        self._parts.book.change(record, replace(record, link=link))
        return Reply(_OK, RECORDS)

    def delete(self, record: QueueRecord) -> Reply:
        check_not_blocked(record)
        if record.link is None:
            return Reply(_OK)
        self._parts.book.change(record, replace(record, link=None))
        return Reply(_OK, RECORDS)

    def secure(self, record: QueueRecord, key: PublicKey) -> Reply:
        check_not_blocked(record)
        if record.mode is not QueueMode.MESSAGING:
            raise FailureError(failures.AUTH)
        answer = _link(record)
        return Reply(answer, self._queue_commands.set_sender_key(record, key))

    def read(self, record: QueueRecord) -> Reply:
        check_not_blocked(record)
        if record.mode is not QueueMode.CONTACT:
            raise FailureError(failures.AUTH)
        return Reply(_link(record))


def _link(record: QueueRecord) -> Lnk:
    assert record.link is not None, "it was found by its link"
    return Lnk(record.sender_id, record.link.fixed, record.link.user)
