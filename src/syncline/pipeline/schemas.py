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

_TABLES: Final = {
    spec.name: spec
    for spec in (EVENTS, ASSOCIATIONS, CLAIMS, RANGE_DIGESTS, SERVICE_DIGESTS, DRIFT_ITEMS)
}


def table_named(name: str) -> TableSpec:
    """Raises TableError."""
    if name not in _TABLES:
        raise TableError(name, f"there is no such table; there are {', '.join(sorted(_TABLES))}")
    return _TABLES[name]
