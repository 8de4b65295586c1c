"""One Spark session for the whole run: starting it takes longer than any test that uses it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from syncline.pipeline.session import SessionKind, open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work_folder = tmp_path_factory.mktemp("spark")
    with open_session(work_folder, master="local[2]", kind=SessionKind.TESTS) as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test that asks for the session waits for it.
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(180))
