"""What a store of records offers: queues and services, made durable in batches.

A *record* says what is kept of a queue beside its messages, or of a service. A queue may be
*associated* with a service that receives its messages, its notifier with one that receives its
notifications. The ids that a service has are a set with a *digest*: recipient ids for a messaging
service, notifier ids for a notifier service.

Writing has the life of `storage.base.Store`: staged at once, taken as a batch, written on any
thread, finished by the owner.

Promises that the conformance, model and crash suites check on every backend:
- `queue`, `service` and their like show what is staged. `digest`, `page`, `services`,
  `deleted_queues` and `counts` show what is durable, and nothing else.
- A batch is durable as a whole or not at all.
- A digest changes in the same step as the set, and only if the set has changed; `version` goes up
  by one for each id that came or went.
- A batch that a full disk refuses is taken back as if it had never been staged. What was staged on
  top of it meanwhile fails with it if it touches the same queues, ids or services, and else stays.
- Whoever follows the sets is told of a batch once it is finished, and never of one that failed.
  What it is told makes the set of each version from that of any version before, in so far as it was
  told of every version between: one change for each step.
- The recipient id of a deleted queue is not given out again before it is forgotten: whoever deletes
  the messages must not meet those of a successor.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from syncline.core.reconciliation.sets import IdSet
from syncline.errors import StoreFullError
from syncline.storage.base import Batch, Commits
from syncline.values.digests import SetDigest
from syncline.values.ids import StreamId
from syncline.values.limits import KIB, MIB
from syncline.values.queue_records import QueueRecord, ServiceRecord, ServiceRole
from syncline.values.reconciliation import Change

# One record with its keys, its link and its certificates.
record_bytes_max = 64 * KIB
# What a record takes in memory beside the data of its link, roughly.
record_bytes_usual = 1 * KIB
page_count_max = 65_536
service_count_max = 65_536

# Is told of a service, the version of its set now, and the changes that led there, in order.
SetFollower = Callable[[bytes, int, Sequence[Change]], None]


@dataclass(frozen=True, slots=True)
class RecordsOptions:
    """Bounds of memory."""

    cache_bytes_max: int = 32 * MIB
    page_cache_bytes: int = 16 * MIB


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """From counters, never the result of a scan."""

    queue_count: int = 0
    notifier_count: int = 0
    link_count: int = 0
    association_count: int = 0
    notifier_association_count: int = 0
    service_count: int = 0
    deleted_count: int = 0


@dataclass(frozen=True, slots=True)
class DigestMismatch:
    """A digest that is not the one of its set. None: there is no digest at all."""

    service_id: bytes
    role: ServiceRole
    kept: SetDigest | None
    found: SetDigest


@dataclass(frozen=True, slots=True)
class RecordsReport:
    """What reading everything gave. `damage` is in the words of the database.

    Counts are None where they cannot be read. What was repaired is wrong no more.
    """

    kept_counts: RecordCounts | None
    found_counts: RecordCounts | None
    mismatches: tuple[DigestMismatch, ...] = ()
    damage: tuple[str, ...] = ()
    is_repaired: bool = False

    @property
    def is_whole(self) -> bool:
        """As it was found."""
        return not self.mismatches and not self.damage and self.kept_counts == self.found_counts

    @property
    def is_left_whole(self) -> bool:
        return self.is_whole or (self.is_repaired and not self.damage)


def never() -> bool:
    return False


class Records(Protocol):
    """See the module. Ids are 24 bytes."""

    # Looking, as staged.

    def queue(self, recipient_id: bytes) -> QueueRecord | None: ...

    def by_sender(self, sender_id: bytes) -> QueueRecord | None: ...

    def by_notifier(self, notifier_id: bytes) -> QueueRecord | None: ...

    def by_link(self, link_id: bytes) -> QueueRecord | None: ...

    def service(self, service_id: bytes) -> ServiceRecord | None: ...

    def service_by_fingerprint(self, fingerprint: bytes) -> ServiceRecord | None: ...

    # Writing: staged at once, durable with the batch. Each raises StoreBusyError while too much
    # waits for the disk, LimitExceededError for a record that is too large; then nothing is staged.

    def create_queue(self, record: QueueRecord) -> None:
        """Raises QueueExistsError if one of its ids is taken, ServiceMismatchError if a service of
        it does not exist or has another role."""
        ...

    def update_queue(self, record: QueueRecord) -> None:
        """Replace the record of that recipient id; its sender id must be the same.

        Raises UnknownQueueError, and what `create_queue` raises.
        """
        ...

    def delete_queue(self, recipient_id: bytes) -> None:
        """Raises UnknownQueueError. The id stays among `deleted_queues` until it is forgotten."""
        ...

    def forget_deleted(self, recipient_ids: Iterable[bytes]) -> None:
        """Their messages are gone as well. Ids that are not among the deleted change nothing."""
        ...

    def create_service(self, record: ServiceRecord) -> None:
        """Raises ServiceMismatchError if its id or its certificate is taken, LimitExceededError if
        there are too many services."""
        ...

    def rotate_service(self, service_id: bytes, chain: Sequence[bytes], fingerprint: bytes) -> None:
        """Give it other certificates; everything else stays. Raises ServiceMismatchError."""
        ...

    def delete_service(self, service_id: bytes) -> None:
        """Its associations and its digest go too. Raises ServiceMismatchError."""
        ...

    # Looking at what is durable.

    def digest(self, service_id: bytes) -> SetDigest:
        """Empty for a service that is unknown or not durable yet."""
        ...

    def page(self, service_id: bytes, after: bytes | None, count_max: int) -> list[bytes]:
        """Ids of the set in order, those behind `after`; fewer than `count_max` at the end."""
        ...

    def services(self) -> list[ServiceRecord]: ...

    def deleted_queues(self, count_max: int) -> list[StreamId]:
        """Some that are not forgotten; those whose forgetting is only staged are among them."""
        ...

    def counts(self) -> RecordCounts: ...

    def follow_sets(self, follower: SetFollower | None) -> None:
        """Call it from `finish_batch`, for each set that batches written from now on have changed.

        A service that is deleted, or whose digest is lost: version 0 and no changes. A digest that
        was repaired, of which the next finished batch tells: its version and no changes.
        """
        ...

    # Checking. These take their time, read only what is durable, and may run on any thread.

    def recompute(self, service_id: bytes) -> SetDigest:
        """The digest by reading the whole set; with the version of the digest that is kept."""
        ...

    def read_set(self, service_id: bytes) -> AbstractContextManager[IdSet]:
        """The ids of a service at one moment, counted and hashed from what is there.

        Its version is the one of the digest that is kept. Empty for a service that is unknown. The
        set may be handed from thread to thread and is used by one at a time.
        """
        ...

    def verify_digests(self) -> list[DigestMismatch]: ...

    def repair_digests(self) -> list[DigestMismatch]:
        """Set each wrong digest right, its version one up; what was wrong. Durable on return."""
        ...

    def repair_digest(self, service_id: bytes) -> DigestMismatch | None:
        """The same for one; None if it was right, or there is no such service."""
        ...

    def service_ids(self) -> list[bytes]:
        """Of all services, in order."""
        ...

    def walk_digest(self, service_id: bytes) -> Generator[int, None, DigestMismatch | None]:
        """Compare a set, read step by step at one moment, with its digest of that moment.

        Each step yields how many ids it read. Steps may be taken on any thread, one at a time.
        """
        ...

    def check(
        self, *, repairs: bool = False, is_stopped: Callable[[], bool] = never
    ) -> Generator[int, None, RecordsReport]:
        """Compare everything with everything, in steps as those of `walk_digest`.

        With `repairs`, digests and counts are set right where nothing is damaged. Raises
        StorageError, also when `is_stopped` says so, which is asked all the time.
        """
        ...

    def checkpoint(self) -> None:
        """Upkeep, every few seconds: then a batch need not wait for it. Raises StorageError."""
        ...

    # Committing.

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None: ...

    def write_batch(self, batch: Batch) -> None:
        """Raises StoreFullError, which `finish_batch` takes back, and else what is fatal."""
        ...

    def finish_batch(self, batch: Batch) -> None: ...

    @property
    def waiting_bytes(self) -> int: ...

    def close(self) -> None:
        """Make what is staged durable and let go of the file."""
        ...


def commit(records: Commits) -> None:
    """Make everything staged durable, here and now. For tools and tests.

    Raises StoreFullError: that batch is taken back.
    """
    while (batch := records.take_batch()) is not None:
        write(records, batch)


def write(records: Commits, batch: Batch) -> None:
    """Make a taken batch durable, or take it back and say so."""
    try:
        records.write_batch(batch)
    except StoreFullError:
        records.finish_batch(batch)
        raise
    records.finish_batch(batch)
