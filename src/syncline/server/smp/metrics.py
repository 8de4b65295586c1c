"""What `/metrics` shows of SMP: counters, and never the result of looking at queues."""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from syncline.server.metric_families import counter, counters, gauge
from syncline.server.smp.bounds import TransportStats
from syncline.server.smp.proxying import Proxying
from syncline.server.smp.router import SmpRouter
from syncline.storage.records.base import Records


class SmpCollector(Collector):
    def __init__(
        self, router: SmpRouter, records: Records, stats: TransportStats, proxying: Proxying
    ) -> None:
        self._router = router
        self._records = records
        self._stats = stats
        self._proxying = proxying

    def collect(self) -> Iterable[Metric]:
        yield from self._kept()
        yield from self._queues()
        yield from self._services()
        yield from self._drift()
        yield from self._transport()
        yield from self._proxy()

    def _kept(self) -> Iterable[Metric]:
        kept = self._records.counts()
        router = self._router
        yield gauge("smp_queues", "Queues on record.", kept.queue_count)
        yield gauge("smp_notifiers", "Queues with a notifier.", kept.notifier_count)
        yield gauge("smp_links", "Queues with a short link.", kept.link_count)
        yield gauge("smp_services", "Services on record.", kept.service_count)
        yield gauge("smp_associations", "Queues of services.", kept.association_count)
        yield gauge(
            "smp_notifier_associations", "Notifiers of services.", kept.notifier_association_count
        )
        yield gauge("smp_sessions", "Connected clients.", router.session_count)
        yield gauge(
            "smp_subscribed_queues",
            "Queues that a client reads, those of services left out.",
            router.subscribed_queue_count,
        )
        yield gauge(
            "smp_subscribed_services", "Services that are read.", router.subscribed_service_count
        )
        yield gauge(
            "smp_waiting_notifications",
            "Notifications that wait for a subscriber.",
            router.waiting_notification_count,
        )
        yield counter(
            "smp_dropped_notifications",
            "Notifications that waited too long or were too many.",
            router.dropped_notification_count,
        )

    def _queues(self) -> Iterable[Metric]:
        counted = self._router.counters
        changes = {
            "created": counted.created_count,
            "secured": counted.secured_count,
            "suspended": counted.suspended_count,
            "deleted": counted.deleted_count,
            "blocked": counted.blocked_count,
            "unblocked": counted.unblocked_count,
        }
        messages = {
            "sent": counted.sent_count,
            "delivered": counted.delivered_count,
            "received": counted.received_count,
            "fetched": counted.fetched_count,
            "expired": counted.expired_count,
            "notified": counted.notified_count,
        }
        subscriptions = {
            "queue": counted.subscribed_count,
            "notifier": counted.notifier_subscribed_count,
            "service": counted.bulk_count,
            "ended": counted.ended_count,
        }
        yield counters("smp_queue_changes", "What became of queues.", "change", changes)
        yield counters("smp_messages", "What became of messages.", "event", messages)
        yield counters("smp_subscriptions", "Subscriptions by kind.", "kind", subscriptions)
        yield counters("smp_refused", "Commands refused, by error.", "error", dict(counted.refused))

    def _services(self) -> Iterable[Metric]:
        counted = self._router.counters
        associations = {
            "new": counted.associations_new_count,
            "moved": counted.associations_moved_count,
            "removed": counted.associations_removed_count,
            "repeated": counted.associations_repeated_count,
        }
        bulk = {
            "equal": counted.bulk_equal_count,
            "more": counted.bulk_more_count,
            "fewer": counted.bulk_fewer_count,
            "different": counted.bulk_different_count,
            "unknown": counted.bulk_unknown_count,
        }
        changes = {
            "created": counted.services_created_count,
            "rotated": counted.services_rotated_count,
            "deleted": counted.services_deleted_count,
            "refused": counted.services_refused_count,
            "displaced": counted.displaced_count,
        }
        yield counters("smp_association_changes", "Associations.", "change", associations)
        yield counters(
            "smp_bulk_subscriptions",
            "What is on record against what the service believed.",
            "result",
            bulk,
        )
        yield counters("smp_service_changes", "What became of services.", "change", changes)
        yield counter("smp_folds", "Backlogs walked through.", counted.fold_count)
        yield counter("smp_failed_folds", "Backlogs cut off.", counted.fold_failed_count)
        yield counter("smp_fold_messages", "Messages sent by these.", counted.fold_message_count)

    def _drift(self) -> Iterable[Metric]:
        counted, followed = self._router.counters, self._router.followed_sets
        openings = {"sent": counted.openings_count, "failed": counted.openings_failed_count}
        questions = {name.lower(): count for name, count in counted.questions.items()}
        yield counters("smp_openings", "Openings for services that drifted.", "result", openings)
        yield counters("smp_questions", "Questions about sets answered.", "kind", questions)
        yield counter(
            "smp_refused_questions",
            "Questions refused because too many were asked.",
            counted.questions_refused_count,
        )
        yield counter(
            "smp_dissociated_ids",
            "Queues and notifiers that services let go of.",
            counted.dissociated_count,
        )
        yield counter(
            "smp_repaired_digests",
            "Digests on record that were not those of their sets.",
            counted.digests_repaired_count,
        )
        yield counter(
            "smp_digest_rounds", "Rounds over all sets and digests.", counted.walk_round_count
        )
        yield counter("smp_walked_ids", "Ids read by these.", counted.walked_id_count)
        yield gauge("smp_followed_sets", "Sets whose changes are followed.", followed.set_count)
        yield gauge("smp_followed_bytes", "Memory that their ids take.", followed.row_bytes)
        yield counter(
            "smp_set_scans", "Times that all ids of a set were read.", followed.scan_count
        )

    def _transport(self) -> Iterable[Metric]:
        stats, counted = self._stats, self._router.counters
        connections = {
            "accepted": stats.accepted_count,
            "refused": stats.refused_count,
            "half_open_cut": stats.half_open_cut_count,
            "tls_failed": stats.tls_failed_count,
            "hello_failed": stats.hello_failed_count,
            "service_refused": stats.service_refused_count,
            "session": stats.session_count,
            "slow": stats.slow_count,
            "damaged": stats.damaged_count,
            "stalled": counted.stalled_count,
        }
        yield counters("smp_connections", "What became of connections.", "event", connections)
        yield gauge(
            "smp_waiting_bytes", "Answers that connections have not taken.", stats.waiting_bytes
        )
        yield counter("smp_received_blocks", "Blocks received.", stats.received_block_count)
        yield counter("smp_sent_blocks", "Blocks sent.", stats.sent_block_count)

    def _proxy(self) -> Iterable[Metric]:
        proxying = self._proxying
        events = {
            "connected": proxying.counters.connected_count,
            "failed": proxying.counters.failed_count,
            "forwarded": proxying.counters.forwarded_count,
        }
        yield counters("smp_proxy", "What became of forwarding.", "event", events)
        yield gauge("smp_proxy_connections", "Routers connected.", proxying.connection_count)
        yield gauge("smp_proxy_waiting", "Commands on their way.", proxying.waiting_count)
