"""How much is measured: all of it, a first look in some minutes, or a proof that it runs."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    # How often all contestants run, in one order and then in the other; once is no measurement.
    turn_count: int
    # Ids of a snapshot, the smaller and the larger: growth is between them.
    digest_counts: tuple[int, int]
    # Ids on each side, the smaller and the larger; Spark's own join gets the smaller.
    reconcile_counts: tuple[int, int]
    # How many of them differ: from raw snapshots, and from stored range digests.
    difference_count: int
    stored_difference_count: int
    # Events of the audit, in documents, over hours.
    audit_event_count: int
    audit_document_count: int
    audit_hour_count: int
    # Updates of documents that are folded.
    compaction_document_count: int
    compaction_updates_each: int
    # Records of a log, in segments.
    journal_record_count: int
    journal_segment_count: int
    # Events of a batch of the stream, and how many batches.
    lag_events_each: int
    lag_batch_count: int


FULL = Plan(
    name="full",
    turn_count=2,
    digest_counts=(10_000_000, 100_000_000),
    reconcile_counts=(10_000_000, 50_000_000),
    difference_count=1_000,
    stored_difference_count=100,
    audit_event_count=20_000_000,
    audit_document_count=20_000,
    audit_hour_count=24,
    compaction_document_count=2_000,
    compaction_updates_each=300,
    journal_record_count=5_000_000,
    journal_segment_count=2_000,
    lag_events_each=20_000,
    lag_batch_count=20,
)

QUICK = replace(
    FULL,
    name="quick",
    digest_counts=(2_000_000, 20_000_000),
    reconcile_counts=(2_000_000, 10_000_000),
    audit_event_count=4_000_000,
    audit_document_count=4_000,
    compaction_document_count=500,
    journal_record_count=1_000_000,
    journal_segment_count=400,
    lag_batch_count=8,
)

SMOKE = replace(
    QUICK,
    name="smoke",
    turn_count=1,
    digest_counts=(10_000, 100_000),
    reconcile_counts=(20_000, 300_000),
    difference_count=40,
    stored_difference_count=3,
    audit_event_count=20_000,
    audit_document_count=40,
    audit_hour_count=3,
    compaction_document_count=20,
    compaction_updates_each=30,
    journal_record_count=4_000,
    journal_segment_count=4,
    lag_events_each=500,
    lag_batch_count=3,
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, SMOKE)}
