"""The Spark data source `syncline`: logs of routers as rows, once or as a stream.

    spark.read.format("syncline").load("/data/router")
    spark.readStream.format("syncline").option("paths", '["/data/a", "/data/b"]').load()

| option | |
|---|---|
| `path` | a data folder; what `load` is given |
| `paths` | several of them, as a JSON list |
| `tail` | `none`, `durable` or `stopped`: how much of the segment still written to is read |
| `bodies` | `false` leaves the bodies out |
| `columns` | only these, by name and with commas: Spark does not tell a source which it needs |
| `starts`, `ends` | positions by log id, as a JSON object: from where and up to where |
| `partition_bytes` | about how much of a log one task reads |
| `batch_bytes` | about how much of all logs a trigger of a stream reads |

An offset of a stream is a position for each log, and a position is used once in the life of a log:
whatever happens in between, a restart goes on with the next record. A folder that was restored
holds parts of several logs (`sources.folders`); what several folders hold is read from one of them.
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from syncline.errors import ConfigError
from syncline.pipeline.schemas import LOG_ROWS
from syncline.pipeline.sources.filters import COLUMNS, RowFilter, row_filter
from syncline.pipeline.sources.folders import (
    LogFolder,
    Piece,
    Tail,
    end_of,
    look_at,
    packed,
    pieces_between,
)
from syncline.pipeline.sources.reading import Wish, read_pieces
from syncline.storage.files import DiskFiles, Files
from syncline.storage.life import LogPart
from syncline.values.limits import MIB

FORMAT: Final = "syncline"
_PARTITION_BYTES_DEFAULT: Final = 64 * MIB
_BATCH_BYTES_DEFAULT: Final = 256 * MIB

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
    # In the order of the rows; none is all.
    columns: tuple[str, ...]
    partition_bytes: int
    batch_bytes: int
    # By log id in hex.
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
                _tail(options.get("tail", Tail.NONE)),
                {"true": True, "false": False}[options.get("bodies", "true").lower()],
                _columns(options.get("columns", "")),
                int(options.get("partition_bytes", _PARTITION_BYTES_DEFAULT)),
                int(options.get("batch_bytes", _BATCH_BYTES_DEFAULT)),
                {str(store): int(position) for store, position in starts.items()},
                {str(store): int(position) for store, position in ends.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"an option of the source {FORMAT} is not understood: {error}"
            ) from error
        if not found.folders or found.partition_bytes <= 0 or found.batch_bytes <= 0:
            raise ConfigError(f"the source {FORMAT} needs a data folder and a size above 0 to read")
        return found


def _tail(text: str) -> Tail:
    if text not in list(Tail):
        raise ValueError(f"{text!r} is no choice of a tail; take {', '.join(Tail)}")
    return Tail(text)


def _columns(text: str) -> tuple[str, ...]:
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    known = LOG_ROWS.names
    if unknown := wanted.difference(known):
        raise ValueError(f"there is no column {', '.join(sorted(unknown))}")
    return tuple(name for name in known if name in wanted)


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
        wanted = SourceOptions.of(self.options).columns
        return (
            StructType([each for each in LOG_ROWS if each.name in wanted]) if wanted else LOG_ROWS
        )

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


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # Where a query ends that wants what is there when it starts.
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return dict(sorted(self._options.starts.items()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = available(self._options)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """A log that is not there at the moment keeps its place, and none ever goes back."""
        found = available(self._options) if self._target is None else self._target
        # Spark compares the text of offsets: in another order it would be a new one, without end.
        logs = sorted({*start, *found})
        ends = {log: max(start.get(log, 0), found.get(log, 0)) for log in logs}
        if isinstance(limit, ReadAllAvailable):
            return ends
        bytes_max = (
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.batch_bytes
        )
        return bounded(self._options, start, ends, bytes_max)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return planned(self._options, start, end, ())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


def available(options: SourceOptions, files: Files | None = None) -> dict[str, int]:
    """Up to which position each log can be read now, by log id in hex."""
    files = files or DiskFiles()
    found: dict[str, int] = {}
    for folder in _folders(options, files):
        end = end_of(folder, options.tail, files)
        for part in folder.parts:
            reached = end if part.end is None else min(end, part.end)
            log = part.log_id.hex()
            if reached > part.start:
                found[log] = max(reached, found.get(log, 0))
    return found


def planned(
    options: SourceOptions,
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    filters: tuple[RowFilter, ...],
) -> list[LogPartition]:
    """Partitions for all positions between; of logs that have no end, nothing."""
    pieces = [piece for found in _pieces(options, starts, ends).values() for piece in found]
    wish = Wish(filters, options.has_bodies, options.columns)
    return [LogPartition(pack, wish) for pack in packed(pieces, options.partition_bytes)]


def bounded(
    options: SourceOptions, starts: Mapping[str, int], ends: Mapping[str, int], bytes_max: int
) -> dict[str, int]:
    """How far to go when not more than `bytes_max` are to be read at once.

    Each log that has something new gets an equal share of it, and at least its next piece: none
    waits for another. So it may be as much more as there are logs, a segment each.
    """
    reached = dict(ends)
    behind = {log: found for log, found in _pieces(options, starts, ends).items() if found}
    for log, pieces in behind.items():
        room = bytes_max // len(behind)
        for number, piece in enumerate(pieces):
            room -= piece.byte_count
            if room < 0 and number:
                reached[log] = piece.start
                break
    return reached


def _pieces(
    options: SourceOptions, starts: Mapping[str, int], ends: Mapping[str, int]
) -> dict[str, list[Piece]]:
    """What to read of each log, in the order of its positions."""
    files = DiskFiles()
    found: dict[str, list[Piece]] = {}
    for log, holders in _holders(_folders(options, files)).items():
        start, end = starts.get(log, 0), ends.get(log, 0)
        found[log] = []
        for number, (folder, part) in enumerate(holders):
            reached = end
            if number + 1 < len(holders):
                # Another may have what this one cannot give yet.
                reached = min(end, end_of(folder, options.tail, files))
                reached = reached if part.end is None else min(reached, part.end)
            found[log] += pieces_between(folder, part, start, reached, options.partition_bytes)
            start = max(start, reached)
    return found


def _folders(options: SourceOptions, files: Files) -> list[LogFolder]:
    """Raises ConfigError if two of them are the same log as it is now."""
    folders = [look_at(path, files) for path in options.folders]
    seen: set[bytes] = set()
    for folder in folders:
        if folder.log_id in seen:
            raise ConfigError(
                f"two of the folders are copies of one log ({folder.log_id.hex()}); "
                "give one of them"
            )
        seen.add(folder.log_id)
    return folders


def _holders(folders: Sequence[LogFolder]) -> dict[str, list[tuple[LogFolder, LogPart]]]:
    """Who has something of each log: first whoever writes to it, then who has most of it."""
    found: dict[str, list[tuple[LogFolder, LogPart]]] = {}
    for folder in folders:
        for part in folder.parts:
            found.setdefault(part.log_id.hex(), []).append((folder, part))
    for holders in found.values():
        holders.sort(key=lambda each: (each[1].end is not None, -(each[1].end or 0)))
    return found


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LogPartition):
        # A stream without anything new is asked for a partition without a plan.
        return
    files = DiskFiles()
    yield from read_pieces(files, partition.pieces, partition.wish)


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
