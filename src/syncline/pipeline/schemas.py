"""The columns of every table, spelled out (docs/formats/tables.md).

A table has exactly these. A new column is a new version of the schema, not something that a job
happens to write.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from syncline.pipeline.sources.rows import SCHEMA

# What the source `syncline` gives.
LOG_ROWS: Final[StructType] = from_arrow_schema(SCHEMA)


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark."""
    found: StructType = from_arrow_schema(schema)
    return found
