"""Real routers, real sockets, faults planted from outside: the audit finds exactly those.

Each router has one thing go wrong, one has nothing, and one has everything. All of their folders
are read by one run of the pipeline, which knows nothing but the folders.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from syncline.core.kinds import folding
from syncline.demo.editors import is_same
from syncline.demo.workload import Size
from syncline.pipeline.sources.folders import look_at
from syncline.storage.documents import stream_of
from syncline.storage.files import DiskFiles
from syncline.values.events import Event, EventKind
from syncline.values.kinds import Kind
from tests.e2e.router_process import COMMAND, environment
from tests.e2e.story_findings import Told, rows_of
from tests.e2e.story_stage import (
    Act,
    Planted,
    Stage,
    acknowledgements_get_lost,
    backup_is_restored,
    changes_come_twice,
    changes_get_lost,
    played,
    router_is_killed,
    somebody_visits,
)
from tests.e2e.story_tampering import copy_without
from tests.e2e.story_tampering import rows_of as rows_of_log
from tests.e2e.telling import run_telling

SPARK_SECONDS = 600
# Little data: what counts is how soon Spark is there.
SPARK = (
    *("--master", "local[2]"),
    *("--set", "spark.sql.shuffle.partitions=2"),
    *("--set", "spark.sql.adaptive.enabled=false"),
    *("--set", "spark.driver.memory=1g"),
    *("--set", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)


def pipeline(*words: str | Path) -> dict[str, Any]:
    """A verb of the pipeline, in a process of its own."""
    command = [*COMMAND, "pipeline", *map(str, words), *SPARK, "--json"]
    ran = run_telling(command, environment(), SPARK_SECONDS)
    # 1: something is wrong, as it should be.
    assert ran.returncode in (0, 1), ran.stderr
    assert ran.stdout, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


CASTS: Mapping[str, tuple[Sequence[Act], int]] = {
    "healthy": ([somebody_visits], 30),
    "lossy": ([changes_get_lost], 30),
    "doubled": ([changes_come_twice], 30),
    "silent": ([acknowledgements_get_lost], 3),
    "killed": ([router_is_killed], 30),
    "restored": ([backup_is_restored], 30),
    "together": (
        [
            somebody_visits,
            changes_get_lost,
            changes_come_twice,
            acknowledgements_get_lost,
            router_is_killed,
            backup_is_restored,
        ],
        8,
    ),
}


async def all_played(folder: Path, seed: int, size: Size, turn_count: int) -> dict[str, Stage]:
    """At the same time: most of it is waiting."""
    tasks: dict[str, asyncio.Task[Stage]] = {}
    async with asyncio.TaskGroup() as group:
        for title, (acts, lag_seconds) in CASTS.items():
            stage = played(
                title,
                folder / title,
                acts,
                seed=seed,
                turn_count=turn_count,
                size=size,
                lag_seconds=lag_seconds,
            )
            tasks[title] = group.create_task(stage)
    return {title: task.result() for title, task in tasks.items()}


def tampered(stage: Stage, folder: Path) -> list[Planted]:
    """A copy of the log of `stage` in which a reader never got one update; what follows of that."""
    stream = bytes(stream_of(next(iter(stage.workload.documents))))
    events = [row.event for row in rows_of_log(stage.folders[0]) if row["kind"] == 10]
    reader = next(event.session for event in events if event.kind == EventKind.SUBSCRIBED)
    ours = [event for event in events if (event.stream, event.session) == (stream, reader)]
    given = [event for event in ours if event.kind == EventKind.DELIVERED]
    singles = [event.last for event in given if event.first == event.last]
    seq = singles[len(singles) // 2]

    def is_left_out(event: Event) -> bool:
        """It never arrived, so it was never acknowledged, nor was anything behind it."""
        if (event.stream, event.session) != (stream, reader):
            return False
        is_it = event.kind == EventKind.DELIVERED and event.last == seq
        return is_it or (event.kind == EventKind.ACKNOWLEDGED and event.last >= seq)

    copy_without(stage.folders[0], folder, is_left_out)
    acked = [e.last for e in ours if e.kind == EventKind.ACKNOWLEDGED and e.last < seq]
    owed = range(max(acked, default=0) + 1, max(event.last for event in given) + 1)
    unacknowledged = [Planted("unacknowledged", stream, n, reader) for n in owed if n != seq]
    return [Planted("lost", stream, seq, reader), *unacknowledged]


# What a kill leaves behind, at whom it may, is a matter of milliseconds.
OF_A_KILL = {"interrupted", "unacknowledged"}
COUNTS = ("appended", "expected", "delivered", "interrupted", "lost", "unknown")


def check(title: str, stage: Stage, told: Told) -> None:
    """The audit says what the stage knows."""
    logs, planted = stage.logs, Counter(stage.planted)
    found = told.found(logs)
    allowed = OF_A_KILL if stage.was_killed else set[str]()
    assert planted - found == Counter(), title
    assert [each for each in found - planted if each.rule not in allowed] == [], title
    for life, log in enumerate(logs):
        ours = stage.counted(life)
        theirs = {name: told.counted(log, name) for name in COUNTS}
        missing = theirs["interrupted"] + theirs["unknown"]
        assert theirs["appended"] == ours["appended"], title
        assert not theirs["lost"], title
        assert theirs["delivered"].total() > 0, title
        assert theirs["expected"] == theirs["delivered"] + missing, title
        if stage.was_killed:
            # What was handed over right before is in no log, but was received.
            assert theirs["delivered"] <= ours["delivered"] <= theirs["expected"], title
        else:
            assert not missing, title
            assert theirs["delivered"] == ours["delivered"], title


def check_states(title: str, stage: Stage, rows: list[dict[str, Any]]) -> None:
    """What was folded from the last of its logs is what its router had in the end."""
    kinds = stage.workload.documents
    folded = {row["name"]: row for row in rows if row["store"] == stage.logs[-1]}
    assert folded.keys() == kinds.keys(), title
    for name, row in folded.items():
        shown = folding(Kind(kinds[name]), row["state"]).shown()
        assert is_same(kinds[name], shown, stage.states[name]), f"{title}: {name}"


def check_story(folder: Path, seed: int, size: Size, turn_count: int) -> None:
    for title in CASTS:
        (folder / title).mkdir()
    stages = asyncio.run(all_played(folder, seed, size, turn_count))
    lost = tampered(stages["healthy"], folder / "tampered")
    first = [stage.folders[0] for stage in stages.values()]
    rest = [each for stage in stages.values() for each in stage.folders[1:]]
    tables = folder / "tables"
    options = ("--tail", "stopped", "--tables", tables)
    pipeline("ingest", *first, *options)
    page = folder / "report.html"
    said = pipeline("run", *first, *rest, folder / "tampered", *options, "--out", page)
    told = Told.by(tables)
    states = rows_of(tables, "document_states")
    for title, stage in stages.items():
        check(title, stage, told)
        check_states(title, stage, states)
    log = look_at(str(folder / "tampered"), DiskFiles()).log_id
    assert told.found([log]) == Counter(lost)
    known = {log, *(each for stage in stages.values() for each in stage.logs)}
    assert {row["store"] for row in told.findings} <= known
    assert said["audit"]["lost_count"] == 1
    assert said["audit"]["pending_count"] == 0
    digests = [facts for name, facts in said.items() if name.startswith("digest ")]
    assert [each["mismatch_count"] for each in digests] == [0] * len(first + rest)
    assert said["compact"]["mismatch_count"] == 0
    assert page.is_file()


@pytest.mark.timeout(900)
def test_audit_finds_what_was_planted_and_nothing_else(tmp_path: Path) -> None:
    check_story(tmp_path, 1, Size(), 6)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [2, 3])
def test_audit_of_a_busy_router_finds_what_was_planted(tmp_path: Path, seed: int) -> None:
    size = Size(document_count=12, client_count=6, queue_count=8, letter_count=2)
    check_story(tmp_path, seed, size, 25)


# ------------------------------------------------------------------------------------------- demo


def demo(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(600)
def test_demo_proves_that_nothing_was_lost_and_names_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    running = demo("--folder", folder, "--seconds", "2", "--json")
    said, errors = running.communicate(timeout=SPARK_SECONDS)
    assert running.returncode == 0, errors
    found = json.loads(said)
    assert found["verdict"]["is_good"]
    assert found["audit"]["expected_count"] == found["audit"]["delivered_count"] > 0
    assert found["audit"]["findings"].get("resent", 0) == len(found["planted"]["sequences"]) > 0
    page = Path(found["report"]).read_text()
    assert page.startswith("<!")
    # Looked at while they were there: all have left by the end of the log.
    assert found["lag"]["batch_count"] > 1
    assert found["lag"]["row_count"] > 0
    assert "The reader furthest behind was" in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(120)
def test_demo_that_is_interrupted_leaves_no_process(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "demo"
    running = demo("--folder", folder, "--seconds", "60")
    lock = folder / "router" / "LOCK"
    while not (lock.exists() and lock.read_text().strip()):
        assert running.poll() is None
        time.sleep(0.05)
    router = int(lock.read_text())
    os.kill(router, 0)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(router, 0)


def test_demo_wants_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    running = demo("--folder", tmp_path, "--json")
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 2
    assert json.loads(errors)["error"] == "ForeignFolderError"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
