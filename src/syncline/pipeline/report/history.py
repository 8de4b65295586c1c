"""Which versions of which tables there are, and where their rows came from.

All of it stands in the commits. No more than the newest of each table are read: a table that a job
adds to every minute has very many.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from syncline.errors import TableError
from syncline.pipeline.tables import LINEAGE_KEY, LOG_NAME, Table, Version

COMMITS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Commit:
    """`job` is empty for the commit that made the table."""

    table: str
    version: int
    time_ms: int | None
    job: str
    inputs: Mapping[str, object]
    observed: Mapping[str, int]
    row_count: int
    code: str


@dataclass(frozen=True, slots=True)
class Source:
    """A table as the report saw it; `version` is None if it is not there."""

    name: str
    version: Version | None
    commits: tuple[Commit, ...] = ()


def gather_source(root: Path, table: Table) -> Source:
    """The newest version, and its commits, newest first. Raises TableError."""
    name = table.spec.name
    if not table.exists():
        return Source(name, None)
    version = table.version()
    oldest = max(version.number - COMMITS_MAX + 1, 0)
    numbers = range(version.number, oldest - 1, -1)
    return Source(name, version, tuple(_commit(root / name, name, number) for number in numbers))


def _commit(folder: Path, table: str, number: int) -> Commit:
    try:
        text = (folder / LOG_NAME / f"{number:020d}.json").read_text(encoding="utf-8")
        actions = [cast(dict[str, Any], json.loads(line)) for line in text.splitlines()]
        told = [action["commitInfo"] for action in actions if "commitInfo" in action]
        info = cast(dict[str, Any], told[0] if told else {})
        facts = cast(dict[str, Any], json.loads(info.get(LINEAGE_KEY, "{}")))
        time_ms = info.get("timestamp")
        return Commit(
            table,
            number,
            None if time_ms is None else int(time_ms),
            str(facts.get("job", "")),
            dict(facts.get("inputs", {})),
            {str(name): int(count) for name, count in dict(facts.get("observed", {})).items()},
            int(facts.get("row_count", 0)),
            str(facts.get("code", "")),
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TableError(table, f"the commit of version {number} cannot be read") from error
