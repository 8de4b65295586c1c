"""What `/metrics` shows: counters of the committer, the store and the HTTP face.

Nothing is counted twice: the numbers are read where they are kept, when somebody asks.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from syncline.server.committer import Committer
from syncline.server.documents import Documents
from syncline.server.metric_families import counter, gauge
from syncline.server.smp.assembly import Smp
from syncline.server.smp.metrics import SmpCollector
from syncline.storage.base import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A registry of its own, so that two routers in one process do not share numbers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "syncline_http_requests",
            "Answered requests by method, route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._jobs = Counter(
            "syncline_upkeep_jobs", "Finished pieces of upkeep.", ["job"], registry=self._registry
        )
        self._expired = Counter(
            "syncline_expired_messages", "Messages dropped by age.", registry=self._registry
        )
        self._scrubbed = Counter(
            "syncline_scrubbed_bytes", "Sealed bytes read again.", registry=self._registry
        )

    def watch(
        self,
        store: Store,
        committer: Committer,
        free_bytes: Callable[[], int],
        waiting_reader_count: Callable[[], int],
    ) -> None:
        self._registry.register(_StoreCollector(store, committer, free_bytes, waiting_reader_count))

    def watch_documents(self, documents: Documents) -> None:
        self._registry.register(_DocumentCollector(documents))

    def watch_smp(self, smp: Smp) -> None:
        self._registry.register(
            SmpCollector(smp.router, smp.records, smp.stats, smp.forwarding.proxying)
        )

    def count_request(self, method: str, route: str, status: int) -> None:
        self._requests.labels(method, route, str(status)).inc()

    def count_job(self, name: str) -> None:
        self._jobs.labels(name).inc()

    def count_expired(self, count: int) -> None:
        self._expired.inc(count)

    def count_scrubbed(self, byte_count: int) -> None:
        self._scrubbed.inc(byte_count)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    def __init__(
        self,
        store: Store,
        committer: Committer,
        free_bytes: Callable[[], int],
        waiting_reader_count: Callable[[], int],
    ) -> None:
        self._store = store
        self._committer = committer
        self._free_bytes = free_bytes
        self._waiting_reader_count = waiting_reader_count

    def collect(self) -> Iterable[Metric]:
        stats = self._committer.stats
        pace = self._committer.pace
        kept = self._store.stats()
        yield counter("commit_batches", "Batches made durable.", stats.batch_count)
        yield counter(
            "commit_inline_batches", "Batches written in the loop.", stats.inline_batch_count
        )
        yield counter(
            "commit_refused_batches", "Batches that a full disk refused.", stats.refused_batch_count
        )
        yield counter("commit_records", "Records made durable.", stats.record_count)
        yield counter("commit_bytes", "Bytes made durable.", stats.byte_count)
        yield counter("commit_seconds", "Time spent writing and syncing.", stats.write_seconds)
        yield gauge(
            "commit_slowest_seconds", "Slowest write of late, fading.", pace.slowest_seconds
        )
        yield gauge("commit_batch_bytes_max", "Learnt cap on a batch.", pace.batch_bytes_max)
        yield gauge("waiting_bytes", "Bytes on their way to the disk.", self._store.waiting_bytes)
        yield gauge(
            "waiting_readers", "Readers that wait for a message.", self._waiting_reader_count()
        )
        yield gauge("streams", "Queues and documents.", kept.stream_count)
        yield gauge("disk_bytes", "Bytes that the data folder takes.", kept.disk_bytes)
        yield gauge("disk_files", "Files in the data folder.", kept.file_count)
        yield gauge("disk_free_bytes", "Bytes free on its device.", self._free_bytes())
        yield counter("torn_tails", "Torn ends of the log, cut at a start.", kept.torn_tail_count)
        yield gauge("damaged_places", "Known damage in the data folder.", kept.damage_count)


class _DocumentCollector(Collector):
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def collect(self) -> Iterable[Metric]:
        counters = self._documents.counters
        yield gauge("documents_open", "Documents that are open.", len(self._documents))
        yield gauge(
            "document_connections",
            "Connections to documents.",
            self._documents.connection_count,
        )
        yield counter("document_mutations", "Mutations stored.", counters.mutation_count)
        yield counter(
            "document_repeated_mutations",
            "Mutations sent again and known already.",
            counters.repeated_count,
        )
        yield counter(
            "document_refused_mutations", "Mutations refused for good.", counters.refused_count
        )
        yield counter("document_evictions", "Connections too far behind.", counters.evicted_count)
        yield counter(
            "document_resends", "Times that a connection was sent again.", counters.resent_count
        )
        yield counter("document_snapshots", "Snapshots written.", counters.snapshot_count)
        yield counter(
            "document_unreadable_snapshots",
            "Snapshots not written, since nobody could have read them.",
            counters.unreadable_snapshot_count,
        )
