"""Every test that asks for `under_test` runs on every backend, with and without upkeep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.storage.options import STORE_KINDS
from tests.storage.under_test import StoreUnderTest

VARIANTS = [*STORE_KINDS, "journal-upkeep", "log-upkeep"]


@pytest.fixture(params=VARIANTS)
def store_variant(request: pytest.FixtureRequest) -> str:
    variant: str = request.param
    return variant


@pytest.fixture
def under_test(store_variant: str, tmp_path: Path) -> Iterator[StoreUnderTest]:
    kind, _, upkeep = store_variant.partition("-")
    opened = StoreUnderTest(kind, tmp_path / "data", does_upkeep=bool(upkeep))
    yield opened
    assert list(opened.store.damage()) == [], "nothing was damaged in this test"
    opened.end()
