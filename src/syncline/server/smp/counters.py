"""What queues and services did since the start: plain numbers, read when somebody asks.

Nothing here is worked out by looking at queues, so asking costs the same with a million of them.
"""

from collections import Counter
from dataclasses import dataclass, field

from syncline.values.digests import SetDigest
from syncline.values.reconciliation import SetHashes


@dataclass(slots=True)
class SmpCounters:
    # Queues.
    created_count: int = 0
    secured_count: int = 0
    suspended_count: int = 0
    deleted_count: int = 0
    blocked_count: int = 0
    unblocked_count: int = 0

    # Messages. Delivered ones may come more than once; received ones were acknowledged.
    sent_count: int = 0
    delivered_count: int = 0
    received_count: int = 0
    fetched_count: int = 0
    expired_count: int = 0
    # By the words of the error, for every command.
    refused: Counter[str] = field(default_factory=Counter[str])

    # Notifications.
    notified_count: int = 0

    # Subscriptions of single queues and notifiers, and how many were lost to others.
    subscribed_count: int = 0
    notifier_subscribed_count: int = 0
    ended_count: int = 0

    # Services: what became of associations.
    associations_new_count: int = 0
    associations_moved_count: int = 0
    associations_removed_count: int = 0
    associations_repeated_count: int = 0

    # Bulk subscriptions: what is on record, against what the client believed: as many and the same,
    # more than that, fewer, as many and others. Clients before version 19 do not say.
    bulk_count: int = 0
    bulk_repeated_count: int = 0
    bulk_equal_count: int = 0
    bulk_more_count: int = 0
    bulk_fewer_count: int = 0
    bulk_different_count: int = 0
    bulk_unknown_count: int = 0
    displaced_count: int = 0
    fold_count: int = 0
    fold_failed_count: int = 0
    fold_message_count: int = 0

    # Drift: openings that came with SOKS, and those that it went without; questions by their name;
    # ids that services let go of; digests on record that were not those of their sets.
    openings_count: int = 0
    openings_failed_count: int = 0
    questions: Counter[str] = field(default_factory=Counter[str])
    questions_refused_count: int = 0
    dissociated_count: int = 0
    digests_repaired_count: int = 0
    # Rounds over all sets that compare them with their digests, and ids read by these.
    walk_round_count: int = 0
    walked_id_count: int = 0

    # Services themselves.
    services_created_count: int = 0
    services_rotated_count: int = 0
    services_deleted_count: int = 0
    services_refused_count: int = 0

    # Sessions.
    opened_count: int = 0
    closed_count: int = 0
    stalled_count: int = 0
    reading_paused_count: int = 0

    def count_association(self, former: bytes | None, service: bytes | None) -> None:
        """A queue, or a notifier, that belonged to `former` was subscribed to for `service`."""
        if service is None:
            self.associations_removed_count += former is not None
        elif former is None:
            self.associations_new_count += 1
        elif former == service:
            self.associations_repeated_count += 1
        else:
            self.associations_moved_count += 1

    def count_bulk(
        self,
        count: int | None,
        ids_hash: bytes | None,
        digest: SetDigest,
        hashes: SetHashes | None = None,
        *,
        is_new: bool,
    ) -> None:
        """`count`, `ids_hash` and `hashes` as the client said."""
        self.bulk_count += 1
        self.bulk_repeated_count += not is_new
        if count is None or count < 0:
            self.bulk_unknown_count += 1
        elif digest.count > count:
            self.bulk_more_count += 1
        elif digest.count < count:
            self.bulk_fewer_count += 1
        elif digest.xor_md5 != ids_hash or hashes not in (
            None,
            SetHashes(digest.xor_xxh3, digest.sum128),
        ):
            self.bulk_different_count += 1
        else:
            self.bulk_equal_count += 1
