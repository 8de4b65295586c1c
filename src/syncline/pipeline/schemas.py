"""The columns of every table, spelled out (docs/formats/tables.md).

A table has exactly these. A new column is a new version of the schema, not something that a job
happens to write. Ids are 24 bytes; halves and parts of hashes are signed, as SQL has no other.
"""

from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from syncline.errors import TableError
from syncline.pipeline.arrow import schema_of
from syncline.pipeline.sources.rows import SCHEMA
from syncline.pipeline.tables import TableSpec


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark."""
    return cast(StructType, cast(Any, from_arrow_schema)(schema))


# What the source `syncline` gives.
LOG_ROWS: Final = spark_schema(SCHEMA)

# Every record of the logs, and every stretch of them that could not be read.
EVENTS: Final = TableSpec("events", SCHEMA, ("day",), ("position", "kind", "seq", "time_ms"))

# A set is named by the snapshot, the service and its role.
_SET: Final = (
    pa.field("snapshot", pa.string()),
    pa.field("service", pa.binary()),
    pa.field("role", pa.string()),
)
_DIGEST: Final = (
    pa.field("count", pa.int64()),
    pa.field("xor_high", pa.int64()),
    pa.field("xor_low", pa.int64()),
    pa.field("sum_3", pa.int64()),
    pa.field("sum_2", pa.int64()),
    pa.field("sum_1", pa.int64()),
    pa.field("sum_0", pa.int64()),
)
_MD5: Final = (pa.field("md5_high", pa.int64()), pa.field("md5_low", pa.int64()))

# The ids of every set, sorted by service, role and id.
ASSOCIATIONS: Final = TableSpec(
    "associations", schema_of([*_SET, pa.field("id", pa.binary())]), ("snapshot",)
)

# What the router itself kept of each set when the snapshot was taken.
CLAIMS: Final = TableSpec(
    "claims",
    schema_of([*_SET, *_DIGEST, *_MD5, pa.field("version", pa.int64())]),
    ("snapshot",),
)

# Count, XOR and sums of the ids that begin with the same `depth` bits.
RANGE_DIGESTS: Final = TableSpec(
    "range_digests",
    schema_of([*_SET, pa.field("depth", pa.int32()), pa.field("prefix", pa.int32()), *_DIGEST]),
    ("snapshot",),
)

# What the ids of each set come to, and whether that is what the router claimed.
SERVICE_DIGESTS: Final = TableSpec(
    "service_digests",
    schema_of(
        [
            *_SET,
            *_DIGEST,
            *_MD5,
            pa.field("claimed_count", pa.int64()),
            pa.field("matches", pa.bool_()),
        ]
    ),
    ("snapshot",),
)

# Ids that one of two snapshots has and the other has not.
DRIFT_ITEMS: Final = TableSpec(
    "drift_items",
    schema_of(
        [
            pa.field("run", pa.string()),
            pa.field("service", pa.binary()),
            pa.field("role", pa.string()),
            pa.field("id", pa.binary()),
            pa.field("verdict", pa.string()),
        ]
    ),
    ("run",),
)

# Of which log and stream, and in which run of a job: a run is named by the version of `events` that
# it has read up to.
_RUN: Final = (
    pa.field("run", pa.int64()),
    pa.field("store", pa.binary()),
    pa.field("stream", pa.binary()),
)

# What was settled of the messages that were appended in an hour. Rows of several runs add up.
DELIVERY_AUDIT: Final = TableSpec(
    "delivery_audit",
    schema_of(
        [
            *_RUN,
            pa.field("is_document", pa.bool_()),
            pa.field("hour_ms", pa.int64()),
            pa.field("day", pa.date32()),
            pa.field("appended", pa.int64()),
            pa.field("expected", pa.int64()),
            pa.field("delivered", pa.int64()),
            pa.field("lost", pa.int64()),
            pa.field("duplicate", pa.int64()),
            pa.field("resent", pa.int64()),
            pa.field("late", pa.int64()),
            pa.field("interrupted", pa.int64()),
            pa.field("unacknowledged", pa.int64()),
            pa.field("unknown", pa.int64()),
            # Sparse counts by bucket (kernels.latency), which add up as well.
            pa.field("latency", pa.binary()),
            pa.field("p50_ms", pa.int64()),
            pa.field("p95_ms", pa.int64()),
            pa.field("p99_ms", pa.int64()),
        ]
    ),
    ("day",),
    ("run", "hour_ms"),
)

# Single things that are wrong, or that say something about a peer.
DELIVERY_FINDINGS: Final = TableSpec(
    "delivery_findings",
    schema_of(
        [
            *_RUN,
            pa.field("rule", pa.string()),
            pa.field("is_fault", pa.bool_()),
            pa.field("seq", pa.int64()),
            pa.field("last_seq", pa.int64()),
            pa.field("session", pa.int64()),
            pa.field("position", pa.int64()),
            pa.field("appended_ms", pa.int64()),
            pa.field("found_ms", pa.int64()),
            pa.field("day", pa.date32()),
        ]
    ),
    ("day",),
    ("run",),
)

# The state of each document, folded from what the log has of it.
DOCUMENT_STATES: Final = TableSpec(
    "document_states",
    schema_of(
        [
            *_RUN,
            pa.field("name", pa.string()),
            pa.field("kind", pa.string()),
            pa.field("incarnation", pa.binary()),
            pa.field("is_deleted", pa.bool_()),
            pa.field("up_to_seq", pa.int64()),
            # Of the last row of the log that was about it.
            pa.field("position", pa.int64()),
            pa.field("state", pa.binary()),
            pa.field("update_count", pa.int64()),
            pa.field("bytes_in", pa.int64()),
            pa.field("bytes_out", pa.int64()),
            # The router's own snapshots that were compared, and how many were something else.
            pa.field("checked_count", pa.int64()),
            pa.field("mismatch_count", pa.int64()),
            # What is in the way of a state, or was.
            pa.field("waiting_count", pa.int64()),
            pa.field("gap_count", pa.int64()),
            pa.field("damaged_count", pa.int64()),
            pa.field("unfoldable_count", pa.int64()),
            pa.field("is_too_large", pa.bool_()),
            pa.field("problem", pa.string()),
        ]
    ),
    ("run",),
)

# Where each reader of a document was, and whether its place would be given up.
CONSUMER_HEALTH: Final = TableSpec(
    "consumer_health",
    schema_of(
        [
            pa.field("batch", pa.int64()),
            pa.field("as_of_ms", pa.int64()),
            pa.field("day", pa.date32()),
            pa.field("store", pa.binary()),
            pa.field("stream", pa.binary()),
            pa.field("session", pa.int64()),
            pa.field("joined_position", pa.int64()),
            pa.field("joined_ms", pa.int64()),
            pa.field("acked_seq", pa.int64()),
            pa.field("head_seq", pa.int64()),
            pa.field("lag_ms", pa.int64()),
            # healthy, relative, absolute, unknown or gone (pipeline.lag_state)
            pa.field("rule", pa.string()),
        ]
    ),
    ("day",),
    ("batch",),
)

# What could be truncated of each stream, and who holds the rest.
TRUNCATION_PLAN: Final = TableSpec(
    "truncation_plan",
    schema_of(
        [
            *_RUN,
            pa.field("is_document", pa.bool_()),
            pa.field("head_seq", pa.int64()),
            pa.field("truncated_seq", pa.int64()),
            pa.field("safe_seq", pa.int64()),
            # reader, snapshot, unread, or nothing
            pa.field("held_by", pa.string()),
            pa.field("session", pa.int64()),
            # How long that reader has owed an acknowledgement, as of the newest row of the log.
            pa.field("lag_ms", pa.int64()),
            pa.field("as_of_ms", pa.int64()),
            pa.field("reclaimable_count", pa.int64()),
            pa.field("reclaimable_bytes", pa.int64()),
            pa.field("held_bytes", pa.int64()),
            pa.field("oldest_held_ms", pa.int64()),
        ]
    ),
    ("run",),
)

# What the next run of the audit needs of the rows that were read: nothing old is read again.
DELIVERY_CARRY: Final = TableSpec(
    "delivery_carry",
    schema_of(
        [
            *_RUN,
            pa.field("code", pa.int16()),
            pa.field("session", pa.int64()),
            pa.field("position", pa.int64()),
            pa.field("time_ms", pa.int64()),
            pa.field("first", pa.int64()),
            pa.field("last", pa.int64()),
            pa.field("detail", pa.int64()),
        ]
    ),
    ("run",),
)

_TABLES: Final = {
    spec.name: spec
    for spec in (
        EVENTS,
        ASSOCIATIONS,
        CLAIMS,
        RANGE_DIGESTS,
        SERVICE_DIGESTS,
        DRIFT_ITEMS,
        DELIVERY_AUDIT,
        DELIVERY_FINDINGS,
        DOCUMENT_STATES,
        CONSUMER_HEALTH,
        TRUNCATION_PLAN,
        DELIVERY_CARRY,
    )
}


def table_named(name: str) -> TableSpec:
    """Raises TableError."""
    if name not in _TABLES:
        raise TableError(name, f"there is no such table; there are {', '.join(sorted(_TABLES))}")
    return _TABLES[name]
