"""Tables and Spark: a version as a DataFrame, a DataFrame into the files of a load."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from syncline.pipeline.arrow import names_and_types
from syncline.pipeline.expectations import Expectation, Observed, checked, observed
from syncline.pipeline.schemas import spark_schema
from syncline.pipeline.tables import Load, TableSpec, Version


def read_version(spark: SparkSession, spec: TableSpec, version: Version) -> DataFrame:
    """The rows of a version, or of those of its files that were not skipped."""
    schema = spark_schema(spec.schema)
    if not version.files:
        return spark.createDataFrame([], schema)
    # The files lie below the table, each in the folder of its partition.
    depth = len(spec.partition_by) + 1
    root = version.files[0].path.parents[depth - 1]
    paths = [str(each.path) for each in version.files]
    found = spark.read.schema(schema).option("basePath", str(root)).parquet(*paths)
    return found.select(*schema.names)


def write_rows(
    rows: DataFrame,
    load: Load,
    expectations: Sequence[Expectation],
    *,
    sorted_by: Sequence[str] = (),
) -> Observed:
    """Write the rows of a load, and count. Raises ExpectationError; nothing is committed here."""
    spec = load.table.spec
    counted, observation = observed(
        rows.select(*(name for name, _ in names_and_types(spec.schema))), expectations
    )
    # By partition first: a task then has the file of one partition open at a time.
    order = [*spec.partition_by, *sorted_by]
    sorted_rows = counted.sortWithinPartitions(*order) if order else counted
    writer = sorted_rows.write.mode("append")
    if spec.partition_by:
        writer = writer.partitionBy(*spec.partition_by)
    writer.parquet(str(load.folder))
    return checked(spec.name, observation, expectations)


def lineage_of(job: str, inputs: Mapping[str, object], found: Observed) -> dict[str, object]:
    """What a commit says of where its rows came from."""
    return {"job": job, "inputs": dict(inputs), "observed": found.counts}
