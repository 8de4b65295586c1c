"""`report`: one self-contained HTML page of what the tables say, for whoever runs a router.

The page answers first: was anything lost, late, duplicated or delivered to the wrong peer? It is
made of small aggregates, needs neither network nor script, and names the version of every table
that it read. The same tables give the same page.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from syncline.errors import TableError
from syncline.pipeline.places import writing_to
from syncline.pipeline.report.facts import READ, gather, gather_sources
from syncline.pipeline.report.folding import Reader, needs_workers
from syncline.pipeline.report.verdict import judge

# What is shown is bounded list by list; a page beyond this is a mistake.
PAGE_BYTES_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """`sections` has what each part of the page says, in one line."""

    path: str
    byte_count: int
    state: str
    verdict: str
    sections: dict[str, str]


def write_report(
    spark: SparkSession | None, tables: Path, path: Path, *, made_at_ms: int | None = None
) -> ReportFacts:
    """Write the page; it appears whole or not at all.

    Without a session, everything is read in this process. Raises TableError if there is no folder
    of tables, or if one of them cannot be read in full, and PipelineError if the page cannot be
    written.
    """
    # Workers import this package for the folds: what draws is for the driver alone.
    from syncline.pipeline.report.page import page
    from syncline.pipeline.report.sections import sections

    if not tables.is_dir():
        raise TableError("events", f"there is no folder {tables}")
    facts = gather(Reader(spark), gather_sources(tables))
    verdict = judge(facts)
    parts = sections(facts)
    content = page(facts, verdict, parts, made_at_ms).encode()
    assert len(content) <= PAGE_BYTES_MAX, "the lists on the page are bounded"
    with writing_to(path):
        _write_whole(path, content)
    summaries = {part.key: part.summary for part in parts}
    return ReportFacts(str(path), len(content), str(verdict.state), verdict.sentence, summaries)


def wants_session(tables: Path) -> bool:
    """Whether the tables are so large that reading them is work for Spark. Raises TableError."""
    sources = gather_sources(tables)
    versions = [each.version for each in sources.values() if each.name in READ]
    return needs_workers([version for version in versions if version is not None])


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
