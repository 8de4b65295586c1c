"""Every test that asks for `under_test` runs on every backend of records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.records.under_test import KINDS, RecordsUnderTest


@pytest.fixture(params=KINDS)
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordsUnderTest]:
    opened = RecordsUnderTest(request.param, tmp_path / "data")
    yield opened
    assert opened.records.verify_digests() == []
    opened.end()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[RecordsUnderTest]:
    """In SQLite."""
    opened = RecordsUnderTest("sqlite", tmp_path / "data")
    yield opened
    opened.end()
