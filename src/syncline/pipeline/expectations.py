"""What must hold of the rows of a load; counted in the same pass that writes them.

A load whose rows break an expectation does not land: the files are written, the counts are looked
at, and only then comes the commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from syncline.errors import ExpectationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

_ROW_COUNT = "row_count"


@dataclass(frozen=True, slots=True)
class Expectation:
    """`breaks` is SQL that is true of a row that should not be; up to `count_max` may."""

    name: str
    breaks: str
    count_max: int | None = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Counts of a load: its rows, and by name those that an expectation is about."""

    row_count: int
    counts: dict[str, int]


def observed(
    rows: "DataFrame", expectations: Sequence[Expectation]
) -> tuple["DataFrame", "Observation"]:
    """The same rows, which are counted on their way."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    counts = [F.count(F.when(F.expr(each.breaks), True)).alias(each.name) for each in expectations]
    observation = Observation()
    return rows.observe(observation, F.count(F.lit(1)).alias(_ROW_COUNT), *counts), observation


def checked(
    table: str, observation: "Observation", expectations: Sequence[Expectation]
) -> Observed:
    """What was counted, once the rows are written. Raises ExpectationError for too many."""
    found = observation.get
    counts = {each.name: int(found[each.name]) for each in expectations}
    broken = [
        f"{counts[each.name]} rows break '{each.name}'"
        for each in expectations
        if each.count_max is not None and counts[each.name] > each.count_max
    ]
    if broken:
        raise ExpectationError(f"nothing was loaded into {table}: {'; '.join(broken)}")
    return Observed(int(found[_ROW_COUNT]), counts)
