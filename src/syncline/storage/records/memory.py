"""The reference backend: the contract of `storage.records.base` in the simplest code that keeps it.

Other backends are checked against this one, operation by operation. It touches no file. Its "disk"
lives as long as the `files` it was opened with: closing the records, or dropping them as a crash
would, and opening the same folder again finds what was durable.

- What is seen is the disk with every operation done that is not durable yet, one after the other.
- After a batch has failed, what is seen is made anew in that way, without it.
- Digests are never kept: each is computed from the queues when it is asked for.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self, assert_never
from weakref import WeakKeyDictionary

from syncline.core.reconciliation.sets import IdSet, Snapshot
from syncline.errors import (
    LimitExceededError,
    QueueExistsError,
    ServiceMismatchError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    UnknownQueueError,
)
from syncline.storage.base import Batch
from syncline.storage.files import Files
from syncline.storage.records.base import (
    DigestMismatch,
    RecordCounts,
    RecordsReport,
    SetFollower,
    commit,
    never,
    page_count_max,
    service_count_max,
    write,
)
from syncline.storage.records.operations import (
    CreateQueue,
    CreateService,
    DeleteQueue,
    DeleteService,
    ForgetDeleted,
    Operation,
    RotateService,
    Touched,
    UpdateQueue,
    check_ids,
    operation_bytes,
)
from syncline.storage.records.set_changes import SetNews
from syncline.values import limits
from syncline.values.digests import EMPTY_DIGEST, SetDigest, digest_of
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueRecord, ServiceRecord, ServiceRole
from syncline.values.reconciliation import Change


@dataclass(slots=True)
class _State:
    """All records at one moment."""

    queues: dict[bytes, QueueRecord] = field(default_factory=dict[bytes, QueueRecord])
    services: dict[bytes, ServiceRecord] = field(default_factory=dict[bytes, ServiceRecord])
    deleted: set[StreamId] = field(default_factory=set[StreamId])
    # How many ids have come to a service and gone from it.
    versions: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def copy(self) -> "_State":
        return _State(
            dict(self.queues), dict(self.services), set(self.deleted), dict(self.versions)
        )

    def members(self, service_id: bytes) -> set[bytes]:
        """Recipient ids or notifier ids; a service has one kind of them, by its role."""
        queues = self.queues.values()
        found: set[bytes] = {each.recipient_id for each in queues if each.service_id == service_id}
        for each in queues:
            if each.notifier_id is not None and each.notifier_service_id == service_id:
                found.add(each.notifier_id)
        return found

    def apply(self, operation: Operation) -> dict[bytes, list[Change] | None]:
        """What it did to the sets. None: that one is no more."""
        before = {service_id: self.members(service_id) for service_id in self.services}
        self._change(operation)
        changes: dict[bytes, list[Change] | None] = {}
        for service_id in self.services:
            old, new = before.get(service_id, set()), self.members(service_id)
            made = [Change(False, each) for each in sorted(old - new)]
            made += [Change(True, each) for each in sorted(new - old)]
            self.versions[service_id] = self.versions.get(service_id, 0) + len(made)
            if made:
                changes[service_id] = made
        return changes | dict.fromkeys(before.keys() - self.services.keys())

    def _change(self, operation: Operation) -> None:
        match operation:
            case CreateQueue(record=record) | UpdateQueue(record=record):
                self.queues[record.recipient_id] = record
            case DeleteQueue(before=before):
                del self.queues[before.recipient_id]
                self.deleted.add(before.recipient_id)
            case ForgetDeleted(recipient_ids=ids):
                self.deleted -= set(ids)
            case CreateService(record=service) | RotateService(record=service):
                self.services[service.service_id] = service
            case DeleteService(before=service):
                del self.services[service.service_id]
                del self.versions[service.service_id]
                self._clear(service.service_id)
            case _:
                assert_never(operation)

    def _clear(self, service_id: bytes) -> None:
        for record in list(self.queues.values()):
            if record.service_id == service_id:
                record = replace(record, service_id=None)
            if record.notifier is not None and record.notifier.service_id == service_id:
                record = replace(record, notifier=replace(record.notifier, service_id=None))
            self.queues[record.recipient_id] = record


@dataclass(slots=True)
class _Disk:
    """What survives. The last to open it owns it."""

    state: _State = field(default_factory=_State)
    claim: object = None


_disks: WeakKeyDictionary[Files, dict[str, _Disk]] = WeakKeyDictionary()


@dataclass(slots=True)
class _OperationBatch:
    operations: list[Operation] = field(default_factory=list[Operation])
    relied_services: set[bytes] = field(default_factory=set[bytes])
    byte_count: int = 0
    failure: StorageError | None = None
    is_written: bool = False
    # Of the sets, once it is written: their versions and changes since.
    news: list[SetNews] = field(default_factory=list[SetNews])

    @property
    def record_count(self) -> int:
        return len(self.operations)

    @property
    def touched(self) -> Touched:
        return Touched(self.operations, self.relied_services)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.byte_count += operation_bytes(operation)


class MemoryRecords:
    """See the module, and `storage.records.base.Records` for each method."""

    def __init__(self, disk: _Disk) -> None:
        self._disk = disk
        self._claim = disk.claim = object()
        self._seen = disk.state.copy()
        self._staged = _OperationBatch()
        self._taken: _OperationBatch | None = None
        # For tests: set it, and the next batch that comes to the disk is refused. One that fails
        # with the batch before it does not come there.
        self.is_full = False
        self._follower: SetFollower | None = None

    @classmethod
    def open(cls, folder: str, files: Files) -> Self:
        """Find what `folder` held with the same `files`; whoever had it open is cut off."""
        return cls(_disks.setdefault(files, {}).setdefault(folder, _Disk()))

    # Looking.

    def queue(self, recipient_id: bytes) -> QueueRecord | None:
        return self._seen.queues.get(recipient_id)

    def by_sender(self, sender_id: bytes) -> QueueRecord | None:
        return self._first(lambda record: record.sender_id == sender_id)

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None:
        return self._first(lambda record: record.notifier_id == notifier_id)

    def by_link(self, link_id: bytes) -> QueueRecord | None:
        return self._first(lambda record: record.link_id == link_id)

    def service(self, service_id: bytes) -> ServiceRecord | None:
        return self._seen.services.get(service_id)

    def service_by_fingerprint(self, fingerprint: bytes) -> ServiceRecord | None:
        services = self._seen.services.values()
        return next((each for each in services if each.fingerprint == fingerprint), None)

    # Writing.

    def create_queue(self, record: QueueRecord) -> None:
        check_ids(record)
        is_known = record.recipient_id in self._seen.queues
        if is_known or record.recipient_id in self._seen.deleted or self._has_taken_id(record):
            raise QueueExistsError(str(record.recipient_id))
        self._check_services(record)
        self._stage(CreateQueue(record))

    def update_queue(self, record: QueueRecord) -> None:
        check_ids(record)
        before = self._find(record.recipient_id)
        if record.sender_id != before.sender_id:
            raise ValueError("a queue keeps its sender id")
        if record == before:
            return
        if self._has_taken_id(record):
            raise QueueExistsError(str(record.recipient_id))
        self._check_services(record)
        self._stage(UpdateQueue(before, record))

    def delete_queue(self, recipient_id: bytes) -> None:
        self._stage(DeleteQueue(self._find(recipient_id)))

    def forget_deleted(self, recipient_ids: Iterable[bytes]) -> None:
        if ids := tuple(map(StreamId, recipient_ids)):
            self._stage(ForgetDeleted(ids))

    def create_service(self, record: ServiceRecord) -> None:
        if record.service_id in self._seen.services:
            raise ServiceMismatchError("there is a service with this id")
        if self.service_by_fingerprint(record.fingerprint) is not None:
            raise ServiceMismatchError("another service has this certificate")
        if len(self._seen.services) >= service_count_max:
            count = len(self._seen.services) + 1
            raise LimitExceededError("the number of services", count, service_count_max)
        self._stage(CreateService(record))

    def rotate_service(self, service_id: bytes, chain: Sequence[bytes], fingerprint: bytes) -> None:
        before = self._find_service(service_id)
        if self.service_by_fingerprint(fingerprint) not in (None, before):
            raise ServiceMismatchError("another service has this certificate")
        record = replace(before, chain=tuple(chain), fingerprint=fingerprint)
        self._stage(RotateService(before, record))

    def delete_service(self, service_id: bytes) -> None:
        self._stage(DeleteService(self._find_service(service_id)))

    # Looking at what is durable.

    def digest(self, service_id: bytes) -> SetDigest:
        state = self._disk.state
        if service_id not in state.services:
            return EMPTY_DIGEST
        return digest_of(state.members(service_id), state.versions[service_id])

    def page(self, service_id: bytes, after: bytes | None, count_max: int) -> list[bytes]:
        if service_id not in self._disk.state.services:
            return []
        members = sorted(self._disk.state.members(service_id))
        return [each for each in members if after is None or each > after][
            : min(count_max, page_count_max)
        ]

    def services(self) -> list[ServiceRecord]:
        return [record for _, record in sorted(self._disk.state.services.items())]

    def deleted_queues(self, count_max: int) -> list[StreamId]:
        return sorted(self._disk.state.deleted)[:count_max]

    def counts(self) -> RecordCounts:
        state = self._disk.state
        queues = state.queues.values()
        return RecordCounts(
            len(queues),
            sum(each.notifier_id is not None for each in queues),
            sum(each.link_id is not None for each in queues),
            sum(each.service_id is not None for each in queues),
            sum(each.notifier_service_id is not None for each in queues),
            len(state.services),
            len(state.deleted),
        )

    def follow_sets(self, follower: SetFollower | None) -> None:
        self._follower = follower

    @contextmanager
    def read_set(self, service_id: bytes) -> Generator[IdSet]:
        state = self._disk.state
        if service_id not in state.services:
            yield Snapshot(b"")
        else:
            yield Snapshot(b"".join(state.members(service_id)), state.versions[service_id])

    def recompute(self, service_id: bytes) -> SetDigest:
        return self.digest(service_id)

    def verify_digests(self) -> list[DigestMismatch]:
        return []

    def repair_digests(self) -> list[DigestMismatch]:
        return []

    def repair_digest(self, service_id: bytes) -> DigestMismatch | None:
        return None

    def service_ids(self) -> list[bytes]:
        return sorted(self._disk.state.services)

    def walk_digest(self, service_id: bytes) -> Generator[int, None, DigestMismatch | None]:
        yield self.digest(service_id).count
        return None

    def check(
        self, *, repairs: bool = False, is_stopped: Callable[[], bool] = never
    ) -> Generator[int, None, RecordsReport]:
        for service_id in self.service_ids():
            yield from self.walk_digest(service_id)
        return RecordsReport(self.counts(), self.counts(), is_repaired=repairs)

    def checkpoint(self) -> None:
        """There is nothing to do."""

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        if self._taken is not None:
            raise ValueError("the batch taken before is not finished")
        if not self._staged.operations and self._staged.failure is None:
            return None
        self._taken, self._staged = self._staged, _OperationBatch()
        return self._taken

    def write_batch(self, batch: Batch) -> None:
        taken = self._checked(batch)
        if taken.failure is None and self.is_full:
            self.is_full = False
            taken.failure = StoreFullError("memory")
        taken.is_written = True
        if taken.failure is not None:
            raise taken.failure
        if self._disk.claim is self._claim:
            state = self._disk.state.copy()
            taken.news = _apply_all(state, taken.operations)
            self._disk.state = state

    def finish_batch(self, batch: Batch) -> None:
        taken = self._checked(batch)
        if not taken.is_written:
            raise ValueError("a batch is finished after it was written")
        self._taken = None
        if taken.failure is None:
            self._tell(taken.news)
            return
        self._seen = self._disk.state.copy()
        if self._staged.touched.depends_on(taken.touched):
            # The next batch fails with it, and all that is staged until then.
            self._staged = _OperationBatch(failure=taken.failure)
        _apply_all(self._seen, self._staged.operations)

    @property
    def waiting_bytes(self) -> int:
        return self._staged.byte_count + (self._taken.byte_count if self._taken else 0)

    def close(self) -> None:
        if self._disk.claim is not self._claim:
            return
        if self._taken is not None and self._taken.is_written:
            self.finish_batch(self._taken)
        elif self._taken is not None:
            write(self, self._taken)
        commit(self)
        self._disk.claim = None

    def _checked(self, batch: Batch) -> _OperationBatch:
        if not isinstance(batch, _OperationBatch) or batch is not self._taken:
            raise ValueError("only the batch that was taken last can be written and finished")
        return batch

    def _tell(self, news: Iterable[SetNews]) -> None:
        for each in news:
            if self._follower is not None:
                self._follower(*each)

    def _stage(self, operation: Operation) -> None:
        waiting_bytes = self.waiting_bytes + operation_bytes(operation)
        if waiting_bytes > limits.waiting_bytes_max:
            raise StoreBusyError(waiting_bytes, limits.waiting_bytes_max)
        if self._taken is not None:
            # It may have been decided on a record that had lost its service by that batch.
            self._staged.relied_services.update(
                each.before.service_id
                for each in self._taken.operations
                if isinstance(each, DeleteService)
            )
        self._staged.add(operation)
        self._seen.apply(operation)

    def _first(self, matches: Callable[[QueueRecord], bool]) -> QueueRecord | None:
        return next(filter(matches, self._seen.queues.values()), None)

    def _find(self, recipient_id: bytes) -> QueueRecord:
        found = self.queue(recipient_id)
        if found is None:
            raise UnknownQueueError(str(StreamId(recipient_id)))
        return found

    def _find_service(self, service_id: bytes) -> ServiceRecord:
        found = self.service(service_id)
        if found is None:
            raise ServiceMismatchError("there is no such service")
        return found

    def _has_taken_id(self, record: QueueRecord) -> bool:
        """Whether another queue has one of its ids."""

        def shares_one(other: QueueRecord) -> bool:
            return other.recipient_id != record.recipient_id and (
                other.sender_id == record.sender_id
                or (other.notifier_id is not None and other.notifier_id == record.notifier_id)
                or (other.link_id is not None and other.link_id == record.link_id)
            )

        return any(map(shares_one, self._seen.queues.values()))

    def _check_services(self, record: QueueRecord) -> None:
        for service_id, role in (
            (record.service_id, ServiceRole.MESSAGING),
            (record.notifier_service_id, ServiceRole.NOTIFIER),
        ):
            if service_id is not None and self._find_service(service_id).role is not role:
                raise ServiceMismatchError(f"that service does not have the role {role}")


def _apply_all(state: _State, operations: Iterable[Operation]) -> list[SetNews]:
    deleted: list[SetNews] = []
    changes: dict[bytes, list[Change]] = {}
    for operation in operations:
        for service_id, made in state.apply(operation).items():
            if made is None:
                changes.pop(service_id, None)
                deleted.append((service_id, 0, ()))
            else:
                changes.setdefault(service_id, []).extend(made)
    return deleted + [(each, state.versions[each], made) for each, made in changes.items()]
