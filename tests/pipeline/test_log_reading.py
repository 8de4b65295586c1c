"""Columns that nobody asks for are not made; what is made is the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from syncline.errors import ConfigError
from syncline.kernels import log_records
from syncline.pipeline.arrow import rows_of
from syncline.pipeline.sources import reading
from syncline.pipeline.sources.rows import SCHEMA
from syncline.pipeline.sources.source import (
    SourceOptions,
    SynclineSource,
    available,
    planned,
    read_partition,
)
from tests.pipeline.routers import busy_router

NAMES = tuple(SCHEMA.names)


def read(folder: str, columns: Sequence[str], **more: str) -> list[dict[str, object]]:
    options = {"path": folder, "tail": "stopped", "columns": ",".join(columns), **more}
    found = SourceOptions.of(options)
    rows: list[dict[str, object]] = []
    for part in planned(found, {}, available(found), ()):
        for batch in read_partition(part):
            batch.validate(full=True)
            assert batch.schema.names == [name for name in NAMES if name in columns or not columns]
            rows += rows_of(batch)
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of segments, of runs, and one for the gap that they stand in for."""
    router = busy_router(tmp_path_factory.mktemp("router") / "data")
    router.seal()
    router.append(2, 300)
    router.stop()
    return router.folder


def test_each_column_alone_is_what_it_is_among_all(folder: str) -> None:
    every = read(folder, ())
    assert {row["is_from_run"] for row in every} == {True, False}
    assert {-3, 1, 5, 6} <= {row["kind"] for row in every}
    for name in NAMES:
        assert read(folder, [name]) == [{name: row[name]} for row in every]
    some = ("body", "kind", "seq")
    assert read(folder, some) == [
        {name: row[name] for name in sorted(some, key=NAMES.index)} for row in every
    ]


def test_what_is_not_asked_for_costs_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("bodies were copied")

    monkeypatch.setattr(reading, "joined", never)
    monkeypatch.setattr(log_records.RecordColumns, "streams", property(never))
    assert len(read(folder, ["kind", "length"])) == len(read(folder, ["time_ms"]))


def test_rows_of_small_segments_come_together(folder: str, tmp_path: Path) -> None:
    options = SourceOptions.of({"path": folder, "tail": "stopped"})
    (part,) = planned(options, {}, available(options), ())
    (batch,) = read_partition(part)
    assert len(part.pieces) > 3
    assert batch.num_rows == len(read(folder, ()))


def test_batches_end_where_they_are_large_enough(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = read(folder, ())
    options = SourceOptions.of({"path": folder, "tail": "stopped"})
    (part,) = planned(options, {}, available(options), ())
    for name in ("BATCH_ROWS_MIN", "BATCH_BYTES_MIN"):
        with monkeypatch.context() as patched:
            patched.setattr(reading, name, 1)
            found = list(read_partition(part))
        assert len(found) > 3
        assert [row for batch in found for row in rows_of(batch)] == every


def test_a_column_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="no column kinds"):
        SourceOptions.of({"path": "data", "columns": "kinds"})
    schema = SynclineSource({"path": "data", "columns": "seq, kind"}).schema()
    assert schema.names == ["kind", "seq"]
