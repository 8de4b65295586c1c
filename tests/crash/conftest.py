"""The crash suite works with stores so small that everything happens within a few steps."""

import pytest

from syncline.storage.log import opening, table

SLOT_COUNT = 64


@pytest.fixture(autouse=True)
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that grows after some fifty streams."""
    monkeypatch.setattr(table, "CAPACITY_MIN", SLOT_COUNT)
    monkeypatch.setattr(opening, "CAPACITY_MIN", SLOT_COUNT)
