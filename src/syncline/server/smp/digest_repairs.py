"""Digests of services that were wrong: each is told in the log and counted."""

from base64 import urlsafe_b64encode

from syncline.server.logs import Log
from syncline.server.smp.counters import SmpCounters
from syncline.storage.records.base import DigestMismatch


def tell_repair(mismatch: DigestMismatch, log: Log, counters: SmpCounters | None = None) -> None:
    """After it was repaired."""
    if counters is not None:
        counters.digests_repaired_count += 1
    kept, found = mismatch.kept, mismatch.found
    log.error(
        "the digest of a service was wrong and is repaired",
        service=urlsafe_b64encode(mismatch.service_id).decode(),
        role=mismatch.role.name.lower(),
        count=found.count,
        count_before=None if kept is None else kept.count,
    )
