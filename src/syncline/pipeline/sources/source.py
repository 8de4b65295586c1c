"""The Spark data source `syncline`: logs of routers as rows, once or as a stream.

    spark.read.format("syncline").load("/data/router")
    spark.readStream.format("syncline").option("paths", '["/data/a", "/data/b"]').load()

| option | |
|---|---|
| `path` | a data folder; what `load` is given |
| `paths` | several of them, as a JSON list |
| `tail` | `none`, `durable` or `stopped`: how much of the segment still written to is read |
| `bodies` | `false` leaves the bodies out |
| `starts`, `ends` | positions by store, as a JSON object: from where and up to where |
| `partition_bytes` | about how much of a log one task reads |

An offset of a stream is a position for each store, and a position is used once in the life of a
store: whatever happens in between, a restart goes on with the next record.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from syncline.errors import ConfigError
from syncline.pipeline.schemas import LOG_ROWS
from syncline.pipeline.sources.filters import COLUMNS, RowFilter, row_filter
from syncline.pipeline.sources.folders import (
    Piece,
    Tail,
    end_of,
    look_at,
    packed,
    pieces_between,
)
from syncline.pipeline.sources.reading import Wish, read_piece
from syncline.storage.files import DiskFiles, Files
from syncline.values.limits import MIB

FORMAT: Final = "syncline"
_PARTITION_BYTES_DEFAULT: Final = 64 * MIB

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    folders: tuple[str, ...]
    tail: Tail
    has_bodies: bool
    partition_bytes: int
    # By store id in hex.
    starts: Mapping[str, int]
    ends: Mapping[str, int]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Raises ConfigError."""
        try:
            folders = json.loads(options.get("paths", "[]"))
            starts = json.loads(options.get("starts", "{}"))
            ends = json.loads(options.get("ends", "{}"))
            if options.get("path"):
                folders = [options["path"], *folders]
            found = cls(
                tuple(str(folder).rstrip("/") for folder in folders),
                Tail(options.get("tail", Tail.NONE)),
                {"true": True, "false": False}[options.get("bodies", "true").lower()],
                int(options.get("partition_bytes", _PARTITION_BYTES_DEFAULT)),
                {str(store): int(position) for store, position in starts.items()},
                {str(store): int(position) for store, position in ends.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"an option of the source {FORMAT} is not understood: {error}"
            ) from error
        if not found.folders or found.partition_bytes <= 0:
            raise ConfigError(f"the source {FORMAT} needs a data folder and a size above 0 to read")
        return found


class LogPartition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...], wish: Wish) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.wish = wish


class SynclineSource(DataSource):
    """Registered under its name by `pipeline.session`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return LOG_ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(SourceOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return LogStreamReader(SourceOptions.of(self.options))


class LogReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters: tuple[RowFilter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take those that can be decided before bodies are read; the rest is left to Spark."""
        left: list[Filter] = []
        taken: list[RowFilter] = []
        for each in filters:
            found = as_row_filter(each)
            if found is None:
                left.append(each)
            else:
                taken.append(found)
        self._filters = tuple(taken)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        ends = available(options)
        return planned(options, options.starts, {**ends, **options.ends}, self._filters)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


class LogStreamReader(DataSourceStreamReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return dict(self._options.starts)

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
        """A store that is not there at the moment keeps its place, and none ever goes back."""
        found = available(self._options)
        return {store: max(start.get(store, 0), found.get(store, 0)) for store in {*start, *found}}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return planned(self._options, start, end, ())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


def available(options: SourceOptions, files: Files | None = None) -> dict[str, int]:
    """Up to which position each log can be read now, by store id in hex."""
    files = files or DiskFiles()
    found: dict[str, int] = {}
    for path in options.folders:
        folder = look_at(path, files)
        store = folder.store_id.hex()
        if store in found:
            raise ConfigError(
                f"two of the folders are copies of one log ({store}); give one of them"
            )
        found[store] = end_of(folder, options.tail, files)
    return found


def planned(
    options: SourceOptions,
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    filters: tuple[RowFilter, ...],
) -> list[LogPartition]:
    """Partitions for all positions between; of stores that have no end, nothing."""
    files = DiskFiles()
    pieces: list[Piece] = []
    for path in options.folders:
        folder = look_at(path, files)
        store = folder.store_id.hex()
        start, end = starts.get(store, 0), ends.get(store, 0)
        pieces += pieces_between(folder, start, end, options.partition_bytes)
    wish = Wish(filters, options.has_bodies)
    return [LogPartition(pack, wish) for pack in packed(pieces, options.partition_bytes)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LogPartition):
        # A stream without anything new is asked for a partition without a plan.
        return
    files = DiskFiles()
    for piece in partition.pieces:
        yield from read_piece(files, piece, partition.wish)


def as_row_filter(each: Filter) -> RowFilter | None:
    """None for what cannot be decided here."""
    column: tuple[str, ...] = getattr(each, "attribute", ())
    if len(column) != 1 or column[0] not in COLUMNS:
        return None
    if isinstance(each, In):
        return row_filter(column[0], "in", each.value)
    comparison = _COMPARISONS.get(type(each))
    if comparison is None:
        return None
    value: object = getattr(each, "value", None)
    return row_filter(column[0], comparison, (value,))
