"""What the tables say after an audit, read without Spark, and beside it what a stage knows."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from syncline.pipeline.schemas import table_named
from syncline.pipeline.tables import Table
from tests.e2e.story_stage import Planted

# Rules that are about whom it happened to; others may name somebody or nobody.
_OF_SESSIONS = {"resent", "evicted", "repeated", "lost", "interrupted", "unacknowledged"}
# How quick the machine is, is nobody's fault.
_OF_THE_MACHINE = {"late"}


def rows_of(tables: Path, name: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    found: list[dict[str, Any]] = []
    for each in Table(tables, table_named(name)).version().files:
        found += pq.ParquetFile(each.path).read().to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """Both tables of an audit."""

    audits: list[dict[str, Any]]
    findings: list[dict[str, Any]]

    @classmethod
    def by(cls, tables: Path) -> "Told":
        return cls(rows_of(tables, "delivery_audit"), rows_of(tables, "delivery_findings"))

    def found(self, logs: Collection[bytes]) -> Counter[Planted]:
        """In these logs, one for each sequence."""
        return Counter(
            Planted(
                row["rule"],
                row["stream"],
                seq,
                row["session"] if row["rule"] in _OF_SESSIONS else None,
            )
            for row in self.findings
            if row["store"] in logs and row["rule"] not in _OF_THE_MACHINE
            for seq in range(row["seq"], row["last_seq"] + 1)
        )

    def counted(self, log: bytes, column: str) -> Counter[bytes]:
        """A count of a log by stream."""
        sums: Counter[bytes] = Counter()
        for row in self.audits:
            if row["store"] == log:
                sums[row["stream"]] += row[column]
        return +sums
