"""The page of the tables says what the code has."""

import re

from syncline.pipeline.arrow import names_and_types
from syncline.pipeline.schemas import table_named
from syncline.pipeline.sources.rows import KIND_NAMES
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "formats" / "tables.md").read_text(encoding="utf-8")
TABLES = {
    "events",
    "associations",
    "claims",
    "range_digests",
    "service_digests",
    "drift_items",
    "document_states",
    "truncation_plan",
    "consumer_health",
    "delivery_audit",
    "delivery_findings",
    "delivery_carry",
}


def rows_behind(mark: str) -> list[list[str]]:
    """The cells of the table behind a comment, without its head."""
    rest = PAGE[PAGE.index(mark) + len(mark) :].lstrip()
    lines = rest[: rest.index("\n\n")].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_columns_on_the_page_are_those_of_the_code() -> None:
    marks = re.findall(r"<!-- table: (\w+), partition: (\w+) -->", PAGE)
    assert {name for name, _ in marks} == TABLES
    for name, partition in marks:
        spec = table_named(name)
        mark = f"<!-- table: {name}, partition: {partition} -->"
        assert [(row[0], row[1]) for row in rows_behind(mark)] == names_and_types(spec.schema)
        assert spec.partition_by == (partition,)


def test_kinds_on_the_page_are_those_of_the_code() -> None:
    found = {int(row[0]): row[1] for row in rows_behind("<!-- kinds -->")}
    assert found == KIND_NAMES
