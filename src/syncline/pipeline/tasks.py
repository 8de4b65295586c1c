"""Tasks that Spark only hands out: what is read and made of it is the worker's own affair.

Spark sees numbers go in and what comes of them come out. So rows go from a file to NumPy in the
worker, and never through the JVM.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from syncline.pipeline.schemas import spark_schema

_Task = TypeVar("_Task")


def worked_off(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    part_count: int,
) -> DataFrame:
    """What `work` makes of each of the tasks, which are spread over so many parts at most."""
    known = list(tasks)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast(list[int], cast(Any, batch.column(0)).to_pylist()):
                yield from work(known[number])

    numbers = spark.range(0, len(known), 1, min(len(known), part_count) or 1)
    return numbers.mapInArrow(cast(Any, run), spark_schema(schema))
