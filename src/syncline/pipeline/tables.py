"""Tables: Parquet files that a commit makes visible, all of them or none (docs/formats/tables.md).

    <table>/_delta_log/              the versions, written by `deltalake`
    <table>/_staging/<attempt>/      files that no version knows yet
    <table>/<partition>/<file>       files of one or more versions; never changed

A load goes: begin (which version is it based on?), write Parquet to the staging folder, check what
was written, move the files to their places, commit. Until then no reader sees anything of it.

- The commit names the version it is based on. If another one landed meanwhile, this one does not.
- Files and their names are on the disk before the commit names them, and so is the commit before
  `commit` returns. What a crash left in between, the next load makes up for: a version is durable
  before another is based on it. So whoever has begun a load may rely on what it is based on.
- With the files it stores, for each source, how far the table has come (an application
  transaction). So a load that is repeated after it has landed is known, and does nothing.
- A crash before the commit leaves files that no version names; `sweep` removes them.
- Only plain additions of files: whatever reads Delta tables reads these.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from syncline.errors import CommitConflictError, ExpectationError, SchemaError, TableError
from syncline.pipeline.arrow import as_schema, footer_of, names_and_types, rows_of, without
from syncline.pipeline.places import check_tables_path, writing_to

LOG_NAME: Final = "_delta_log"
STAGING_NAME: Final = "_staging"
# Under which lineage stands in the commit.
LINEAGE_KEY: Final = "syncline"
_NO_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"

Bound = int | str | None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """`statistics` are columns whose lowest and highest value is stored for each file."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @property
    def schema_hash(self) -> str:
        """Changes with any column, type or order."""
        text = "\n".join(f"{name} {kind}" for name, kind in names_and_types(self.schema))
        return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a version. `bounds` are the lowest and the highest value by column."""

    path: Path
    byte_count: int
    row_count: int
    partition: Mapping[str, str | None]
    bounds: Mapping[str, tuple[Bound, Bound]]

    def may_have(self, column: str, low: int | str, high: int | str) -> bool:
        """Whether a value from `low` to `high` can be in it, by what is stored of the file."""
        if column in self.partition:
            value = self.partition[column]
            return value is not None and str(low) <= value <= str(high)
        lowest, highest = self.bounds.get(column, (None, None))
        if lowest is None or highest is None:
            return True
        # The bounds have the type of the column; so have those that are asked for.
        return bool(cast(Any, lowest) <= high and cast(Any, highest) >= low)


@dataclass(frozen=True, slots=True)
class Version:
    """A table as of one version."""

    table: str
    number: int
    files: tuple[DataFile, ...]

    @property
    def row_count(self) -> int:
        return sum(each.row_count for each in self.files)

    def skipping(self, column: str, low: int | str, high: int | str) -> "Version":
        """Without the files that have no value of `column` from `low` to `high`."""
        kept = tuple(each for each in self.files if each.may_have(column, low, high))
        return Version(self.table, self.number, kept)


class Table:
    """`on_step` hears of every step of a load, before the next: tests stop there.

    Raises ConfigError for a path that is none for tables.
    """

    def __init__(
        self, root: Path, spec: TableSpec, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        check_tables_path(root)
        self.spec = spec
        self.path = root / spec.name
        self._on_step = on_step

    # Reading.

    def exists(self) -> bool:
        return (self.path / LOG_NAME).is_dir()

    def version(self, number: int | None = None) -> Version:
        """The newest, or an earlier one. Raises TableError if it cannot be read in full."""
        found = self._open(number)
        files = tuple(self._files(found))
        for each in files:
            if not each.path.is_file() or each.path.stat().st_size != each.byte_count:
                raise TableError(
                    self.spec.name,
                    f"{each.path.name} of version {found.version()} is missing or cut off",
                )
        return Version(self.spec.name, found.version(), files)

    def progress(self, source: str) -> int | None:
        """How far the newest version has come with a source; None if it has nothing of it."""
        return self._open(None).transaction_version(source) if self.exists() else None

    def lineage(self, number: int) -> dict[str, Any]:
        """What the commit of a version says of where its rows came from. Raises TableError."""
        try:
            text = (self.path / LOG_NAME / f"{number:020d}.json").read_text(encoding="utf-8")
            actions = [cast(dict[str, Any], json.loads(line)) for line in text.splitlines()]
            told = [action["commitInfo"] for action in actions if "commitInfo" in action]
            facts = cast(
                dict[str, Any], json.loads(told[0].get(LINEAGE_KEY, "{}") if told else "{}")
            )
            return dict(facts)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            said = f"the commit of version {number} cannot be read"
            raise TableError(self.spec.name, said) from error

    # Writing.

    @contextmanager
    def begin(self, progress: Mapping[str, int]) -> Generator["Load"]:
        """A load that will bring each source as far as `progress` says.

        The version that it is based on is durable. Raises SchemaError if the table that is there
        has other columns, PipelineError if it cannot be written.
        """
        with writing_to(self.path):
            found = self._open_or_create()
        is_done = all(
            (found.transaction_version(source) or 0) >= reached
            for source, reached in progress.items()
        )
        attempt = uuid.uuid4().hex
        load = Load(self, found, attempt, dict(progress), is_done and bool(progress), self._on_step)
        with writing_to(load.folder):
            load.folder.mkdir(parents=True)
        try:
            yield load
        finally:
            shutil.rmtree(load.folder, ignore_errors=True)

    def sync_version(self, number: int) -> None:
        """Durable on return, if those before it are: the commit and its name."""
        log = self.path / LOG_NAME
        # With some versions goes a checkpoint, from which readers start.
        for path in [*log.glob(f"{number:020d}.*"), *log.glob("_last_checkpoint")]:
            _sync(path)
        for folder in (log, self.path, self.path.parent):
            _sync(folder)

    def sweep(self, older_than_s: float, now_s: float) -> list[str]:
        """Remove what loads that were cut off have left, if it has not been touched since."""
        known = set(self._known_paths())
        gone: list[str] = []
        for path in sorted(self.path.rglob("*.parquet")):
            name = str(path.relative_to(self.path))
            is_staged = name.startswith(STAGING_NAME)
            if name.startswith(LOG_NAME) or (not is_staged and name in known):
                continue
            if now_s - path.stat().st_mtime >= older_than_s:
                path.unlink()
                gone.append(name)
        return gone

    # Inside.

    def _open(self, number: int | None) -> DeltaTable:
        try:
            found = DeltaTable(self.path, version=number)
        except TableNotFoundError as error:
            raise TableError(self.spec.name, f"there is none in {self.path.parent}") from error
        except DeltaError as error:
            which = "its newest version" if number is None else f"version {number}"
            said = f"{which} cannot be read ({_first_line(error)})"
            raise TableError(self.spec.name, said) from error
        self._check_commits(found.version())
        return found

    def _check_commits(self, newest: int) -> None:
        """Raises TableError for an empty commit, which `deltalake` takes for one that adds nothing.

        It is what a power cut leaves of a name whose contents did not reach the disk.
        """
        for path in sorted((self.path / LOG_NAME).glob("*.json")):
            if path.stem.isdecimal() and int(path.stem) <= newest and path.stat().st_size == 0:
                raise TableError(
                    self.spec.name,
                    f"the commit of version {int(path.stem)} is empty ({path}); "
                    "if it is the newest, remove that file and run the job again",
                )

    def _open_or_create(self) -> DeltaTable:
        if not self.exists():
            _make_folder(self.path)
            self._create()
        found = self._open(None)
        there = as_schema(found.schema().to_arrow())
        if names_and_types(there) != names_and_types(self.spec.schema):
            raise SchemaError(
                f"the table {self.spec.name} in {self.path} has other columns than agreed: "
                f"{_difference(there, self.spec.schema)}"
            )
        self.sync_version(found.version())
        return found

    def _create(self) -> None:
        try:
            DeltaTable.create(
                self.path,
                Schema.from_arrow(self.spec.schema),
                mode="ignore",
                partition_by=list(self.spec.partition_by),
            )
        except DeltaError as error:
            said = f"it cannot be made in {self.path.parent} ({_first_line(error)})"
            raise TableError(self.spec.name, said) from error

    def _files(self, found: DeltaTable) -> Iterator[DataFile]:
        # Nested: a column may have any name.
        for row in rows_of(found.get_add_actions(flatten=False)):
            lowest: dict[str, Bound] = row.get("min") or {}
            highest: dict[str, Bound] = row.get("max") or {}
            values: dict[str, object] = row.get("partition") or {}
            partition = {
                name: None if value is None else str(value) for name, value in values.items()
            }
            yield DataFile(
                self.path / unquote(row["path"]),
                row["size_bytes"],
                row["num_records"],
                partition,
                {name: (lowest.get(name), highest.get(name)) for name in self.spec.statistics},
            )

    def _known_paths(self) -> Iterator[str]:
        """Of every version that there ever was."""
        for path in sorted((self.path / LOG_NAME).glob("*.json")):
            for line in path.read_text(encoding="utf-8").splitlines():
                action = json.loads(line)
                if "add" in action:
                    yield unquote(action["add"]["path"])


@dataclass(slots=True)
class Load:
    """One attempt. Whoever has it writes Parquet below `folder`, a folder for each partition."""

    table: Table
    _based_on: DeltaTable = field(repr=False)
    _attempt: str
    _progress: dict[str, int]
    # The table has come this far already: there is nothing to do.
    is_done: bool
    _on_step: Callable[[str], None] = field(repr=False)

    @property
    def folder(self) -> Path:
        return self.table.path / STAGING_NAME / self._attempt

    @property
    def based_on(self) -> int:
        return self._based_on.version()

    def check_progress(self, expected: Mapping[str, int]) -> None:
        """Raises CommitConflictError if a source has come to another place meanwhile.

        For whoever decided what to load before this load was begun.
        """
        for source, reached in expected.items():
            if (self._based_on.transaction_version(source) or 0) != reached:
                raise CommitConflictError(self.table.spec.name, self.based_on)

    def commit(
        self,
        lineage: Mapping[str, object],
        *,
        replaces: Mapping[str, str] | None = None,
        row_count: int | None = None,
    ) -> int:
        """Make what was written visible; returns the version, which is durable then.

        `replaces` names a partition whose files go in the same moment. `row_count` is how many rows
        there ought to be. Raises ExpectationError, SchemaError, CommitConflictError, TableError;
        then nothing has landed. After a PipelineError of the disk it may have: the next load finds
        out.
        """
        spec = self.table.spec
        staged = sorted(self.folder.rglob("*.parquet"))
        self._on_step("staged")
        actions = [self._described(path) for path in staged]
        found = sum(json.loads(action.stats)["numRecords"] for action in actions)
        if row_count is not None and found != row_count:
            raise ExpectationError(
                f"{found} rows were written for {spec.name}, and {row_count} were to be"
            )
        self._on_step("checked")
        with writing_to(self.table.path):
            for path, action in zip(staged, actions, strict=True):
                self._move(path, self.table.path / unquote(action.path))
                self._on_step("moved")
            for folder in sorted(_folders_of(action.path for action in actions)):
                _sync(self.table.path / folder)
        facts = {
            **lineage,
            "row_count": found,
            "schema": spec.schema_hash,
            "code": package_version("syncline"),
        }
        self._commit(actions, facts, replaces)
        self._on_step("committed")
        version = self.based_on + 1
        with writing_to(self.table.path):
            self.table.sync_version(version)
        return version

    def _commit(
        self,
        actions: list[AddAction],
        facts: Mapping[str, object],
        replaces: Mapping[str, str] | None,
    ) -> None:
        spec = self.table.spec
        properties = CommitProperties(
            custom_metadata={LINEAGE_KEY: json.dumps(facts, sort_keys=True)},
            # What changed meanwhile may be what this load was computed from.
            max_commit_retries=0,
            app_transactions=[
                Transaction(source, reached) for source, reached in self._progress.items()
            ],
        )
        filters = [(name, "=", value) for name, value in (replaces or {}).items()]
        try:
            self._based_on.create_write_transaction(
                list(actions),
                "overwrite" if replaces else "append",
                Schema.from_arrow(spec.schema),
                list(spec.partition_by),
                filters or None,
                commit_properties=properties,
                # Old versions stay readable.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            raise CommitConflictError(spec.name, self.based_on) from error
        except DeltaError as error:
            raise TableError(spec.name, _first_line(error)) from error

    def _described(self, path: Path) -> AddAction:
        """What the commit says of a staged file. Raises SchemaError if it has other columns."""
        spec = self.table.spec
        relative = path.relative_to(self.folder)
        partition = dict(_partition_value(folder) for folder in relative.parts[:-1])
        if tuple(partition) != spec.partition_by:
            raise SchemaError(
                f"a file for {spec.name} lies in {relative.parent}, "
                f"and its partitions are by {', '.join(spec.partition_by) or 'nothing'}"
            )
        footer = footer_of(path)
        found = footer.schema.to_arrow_schema()
        wanted = without(spec.schema, partition)
        if names_and_types(found) != names_and_types(wanted):
            raise SchemaError(
                f"rows for {spec.name} have other columns than agreed: {_difference(found, wanted)}"
            )
        stats = {"numRecords": footer.num_rows, **_statistics(footer, spec.statistics)}
        name = f"{path.stem[:40]}-{self._attempt[:12]}.parquet"
        size = path.stat().st_size
        target = str(relative.parent / name)
        return AddAction(target, size, partition, 0, True, json.dumps(stats))

    def _move(self, staged: Path, target: Path) -> None:
        _sync(staged)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(target)


def _first_line(error: DeltaError) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else "no reason given"


def _sync(path: Path) -> None:
    """A file, or the names in a folder, are on the device when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    """With all that lead there; their names are durable on return."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in made:
        _sync(each.parent)


def _folders_of(paths: Iterable[str]) -> set[Path]:
    """All that lead to these files, from the folder of the table on."""
    return {folder for path in paths for folder in Path(unquote(path)).parents}


def _partition_value(folder: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    return name, None if value == _NO_PARTITION else unquote(value)


def _statistics(footer: pq.FileMetaData, wanted: Sequence[str]) -> dict[str, dict[str, Bound]]:
    """The lowest and highest value over all row groups, as far as each of them knows."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group_number in range(footer.num_row_groups):
        group = footer.row_group(group_number)
        for column_number in range(group.num_columns):
            column = group.column(column_number)
            name = column.path_in_schema
            if name not in wanted:
                continue
            found = column.statistics
            if found is None or (not found.has_min_max and found.null_count != column.num_values):
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + (found.null_count or 0)
            if found.has_min_max:
                low: Any = found.min
                high: Any = found.max
                lowest[name] = min(lowest.get(name, low), low)
                highest[name] = max(highest.get(name, high), high)
    known = [name for name in wanted if name not in unknown and name in lowest]
    return {
        "minValues": {name: _plain(lowest[name]) for name in known},
        "maxValues": {name: _plain(highest[name]) for name in known},
        "nullCount": {
            name: nulls[name] for name in wanted if name in nulls and name not in unknown
        },
    }


def _plain(value: object) -> Bound:
    return value if isinstance(value, int | str) else str(value)


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    there, agreed = names_and_types(found), names_and_types(wanted)
    extra = [f"{name} {kind}" for name, kind in there if (name, kind) not in agreed]
    missing = [f"{name} {kind}" for name, kind in agreed if (name, kind) not in there]
    if not extra and not missing:
        return "they stand in another order"
    return f"unexpected {extra or 'none'}, missing {missing or 'none'}"
