"""Which files of a table belong to one snapshot."""

from pathlib import Path

from syncline.errors import TableError
from syncline.pipeline.schemas import ASSOCIATIONS
from syncline.pipeline.tables import Table, TableSpec, Version


def snapshot_of(tables: Path, spec: TableSpec, snapshot: str) -> Version:
    """The rows of a table that are of a snapshot; none if there are none of that table.

    Raises TableError if the snapshot is not there: its associations are what it is known by.
    """
    associations = Table(tables, ASSOCIATIONS)
    known = associations.progress(f"snapshot/{snapshot}")
    if known is None:
        raise TableError(ASSOCIATIONS.name, f"it has no snapshot {snapshot}")
    return Table(tables, spec).version().skipping("snapshot", snapshot, snapshot)


def snapshots(tables: Path) -> list[str]:
    """Names of those that have ids, sorted."""
    found = Table(tables, ASSOCIATIONS)
    if not found.exists():
        return []
    names = {each.partition["snapshot"] for each in found.version().files}
    return sorted(name for name in names if name is not None)
