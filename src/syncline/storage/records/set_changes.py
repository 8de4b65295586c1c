"""What batches do to the sets of services, and whoever follows them is told.

- The changes of one set stand in the order in which they are made, one for each step of its
  version: an id that moves within a set, as when a notifier gets another id, goes and then comes.
- An operation holds the record as it was when it was staged, without services that were deleted
  before. So nothing is told of a service behind its deletion, unless it was created anew.
- Tidings are noted in the order of commits, and told by the owner when a batch is finished.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import assert_never

from syncline.storage.records.base import SetFollower, service_count_max
from syncline.storage.records.operations import (
    CreateQueue,
    CreateService,
    DeleteQueue,
    DeleteService,
    ForgetDeleted,
    Operation,
    RotateService,
    UpdateQueue,
)
from syncline.values.queue_records import QueueRecord
from syncline.values.reconciliation import Change

# What a follower is told at once.
SetNews = tuple[bytes, int, Sequence[Change]]
# A service and an id of its set.
_Member = tuple[bytes, bytes]


class SetChanges:
    """Of some operations: services that were deleted, then what changed since in each set."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.deleted: list[bytes] = []
        self.changes: dict[bytes, list[Change]] = {}
        for operation in operations:
            match operation:
                case CreateQueue(record=record):
                    self._move((None, None), _memberships(record))
                case UpdateQueue(before=before, record=record):
                    self._move(_memberships(before), _memberships(record))
                case DeleteQueue(before=before):
                    self._move(_memberships(before), (None, None))
                case DeleteService(before=service):
                    self.changes.pop(service.service_id, None)
                    self.deleted.append(service.service_id)
                case ForgetDeleted() | CreateService() | RotateService():
                    pass
                case _:
                    assert_never(operation)

    def _move(self, before: tuple[_Member | None, ...], after: tuple[_Member | None, ...]) -> None:
        for old, new in zip(before, after, strict=True):
            if old == new:
                continue
            if old is not None:
                self._add(old, is_added=False)
            if new is not None:
                self._add(new, is_added=True)

    def _add(self, member: _Member, *, is_added: bool) -> None:
        service_id, id_ = member
        self.changes.setdefault(service_id, []).append(Change(is_added, id_))


class Tidings:
    """What is to be told of the sets."""

    def __init__(self) -> None:
        self.follower: SetFollower | None = None
        # Held from the start of a transaction until it is noted what it did.
        self.order = Lock()
        self._untold: deque[SetNews] = deque()

    def add_batch(self, news: Iterable[SetNews]) -> None:
        self._untold.extend(news)

    def add_repair(self, service_id: bytes, version: int) -> None:
        # Without batches nobody takes these away. Who misses one sees a gap in the versions.
        if self.follower is not None and len(self._untold) < service_count_max:
            self._untold.append((service_id, version, ()))

    def tell(self) -> None:
        while self._untold:
            news = self._untold.popleft()
            if self.follower is not None:
                self.follower(*news)


def news_of(
    operations: Iterable[Operation], version_of: Callable[[bytes], int | None]
) -> list[SetNews]:
    """What is told of a batch. `version_of` gives the version of a set after it, if it has one."""
    found = SetChanges(operations)
    news: list[SetNews] = [(each, 0, ()) for each in found.deleted]
    for service_id, changes in found.changes.items():
        version = version_of(service_id)
        news.append((service_id, 0, ()) if version is None else (service_id, version, changes))
    return news


def _memberships(record: QueueRecord) -> tuple[_Member | None, _Member | None]:
    """Where the queue is a member, and where its notifier is."""
    messaging = notifying = None
    if record.service_id is not None:
        messaging = (record.service_id, record.recipient_id)
    notifier = record.notifier
    if notifier is not None and notifier.service_id is not None:
        notifying = (notifier.service_id, notifier.notifier_id)
    return messaging, notifying
