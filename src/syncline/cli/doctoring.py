"""`doctor`: what is installed, what is missing and how to get it, and what the disk can do."""

import os
import platform
import re
import resource
import shutil
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer

from syncline.cli.folders import DEFAULT_FOLDER, FolderArgument, whole_path
from syncline.cli.interrupting import terminated_as_interrupted
from syncline.cli.output import JsonFlag, Output, bytes_text
from syncline.errors import MissingPieceError, SynclineError
from syncline.pipeline.java import find_java
from syncline.pipeline.session import PACKAGES, open_session
from syncline.storage.folder import FORMAT_NAME

EXIT_MISSING = 1

_SYNC_COUNT = 50
_BLOCK = bytes(4_096)
# More than this for one sync and the disk, not the router, is what callers wait for.
_SLOW_SYNC_MS = 20.0
_OPEN_FILES_MIN = 256
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}

_PIPELINE_EXTRA = "pip install 'syncline[spark]'"
_OPTIONAL = {
    "uvloop": ("a faster event loop", "pip install 'syncline[fast]'"),
    **dict.fromkeys(PACKAGES, ("the data pipeline", _PIPELINE_EXTRA)),
}
# Named here as well: what is known of an installed package may be older than its code.
_FOR_DOCUMENTS = {
    "pycrdt": "Yjs documents",
    "pyjwt": "tokens for documents",
    "websockets": "the Python client, `document watch`, `document patch`",
}
_PURPOSES = _FOR_DOCUMENTS | {name: what for name, (what, _) in _OPTIONAL.items()}
# A router runs without them: Node.js runs the browser client in tests, Chromium shows the pages.
_TEST_PROGRAMS = {
    "node": ("node",),
    "npm": ("npm",),
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
}


def doctor(
    folder: FolderArgument = DEFAULT_FOLDER,
    is_json: JsonFlag = False,
    tries_spark: Annotated[
        bool, typer.Option("--spark", help="Start Spark and run a job of one row.")
    ] = False,
) -> None:
    """Say what is installed, what is missing, and how fast the disk makes things durable."""
    packages = _packages()
    programs = _test_programs()
    disk = _disk_facts(folder)
    spark, spark_advice = _spark_facts(tries_spark)
    advice = _advice(packages, disk) + spark_advice
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "packages": packages,
        "test_programs": programs,
        "disk": disk,
        "spark": spark,
        "advice": advice,
    }
    output = Output(is_json=is_json)
    if is_json:
        output.json(facts)
    else:
        _print(output, facts, packages, programs, disk, spark, advice)
    if tries_spark and not spark["one_row_job"]:
        raise typer.Exit(EXIT_MISSING)
    if any(found is None for name, found in packages.items() if name not in _OPTIONAL):
        raise typer.Exit(EXIT_MISSING)


def _packages() -> dict[str, str | None]:
    """Every package that a plain router needs, and the optional ones, with their versions."""
    names = ["syncline"]
    for requirement in requires("syncline") or []:
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra ==" not in requirement:
            names.append(name.group().lower())
    return {name: _version(name) for name in [*names, *_FOR_DOCUMENTS, *_OPTIONAL]}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _test_programs() -> dict[str, str | None]:
    """Where each is; any of its names will do."""
    return {
        program: next(filter(None, map(shutil.which, names)), None)
        for program, names in _TEST_PROGRAMS.items()
    }


def _disk_facts(folder: Path) -> dict[str, object]:
    """Of the data folder, or of where it would be."""
    path = whole_path(folder)
    place = folder.absolute()
    while not place.is_dir():
        place = place.parent
    stats = os.statvfs(place)
    facts: dict[str, object] = {
        "folder": path,
        "holds_data": (folder / FORMAT_NAME).exists(),
        "file_system": _file_system(place),
        "free_bytes": stats.f_bavail * stats.f_frsize,
        "writable": os.access(place, os.W_OK),
    }
    if facts["writable"]:
        try:
            median_ms, slowest_ms = _sync_ms(place)
            facts |= {"sync_median_ms": median_ms, "sync_slowest_ms": slowest_ms}
        except OSError as error:
            facts["write_error"] = (error.strerror or str(error)).lower()
    return facts


def _spark_facts(tries_spark: bool) -> tuple[dict[str, object], list[str]]:
    """Which Java Spark would run on and, if asked for, whether it does; and what to do if not."""
    facts: dict[str, object] = {"java": None, "java_home": None, "java_found_by": None}
    advice: list[str] = []
    try:
        java = find_java()
        facts = {"java": java.version, "java_home": java.home, "java_found_by": java.origin}
    except MissingPieceError as error:
        advice.append(str(error))
    if tries_spark:
        started = time.perf_counter()
        try:
            facts["one_row_job"] = _has_one_row()
        except SynclineError as error:
            facts["one_row_job"] = False
            if str(error) not in advice:
                advice.append(str(error))
        facts["one_row_job_s"] = round(time.perf_counter() - started, 1)
    return facts, advice


def _has_one_row() -> bool:
    with (
        terminated_as_interrupted(),
        tempfile.TemporaryDirectory(prefix="syncline-spark-") as work_folder,
        open_session(Path(work_folder), master="local[1]") as spark,
    ):
        return spark.range(1).count() == 1


def _file_system(place: Path) -> str:
    """The type of the mount that `place` is on: the longest mount point that leads there."""
    best, found = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in mounts.splitlines():
        _, point, kind = line.split()[:3]
        point = point.replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= len(best):
            best, found = point, kind
    return found


def _sync_ms(place: Path) -> tuple[float, float]:
    """Write and sync a block, again and again, as a commit does."""
    taken_ms: list[float] = []
    with tempfile.TemporaryFile(dir=place) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(_SYNC_COUNT * len(_BLOCK)), 0)
        os.fsync(descriptor)
        for index in range(_SYNC_COUNT):
            started = time.perf_counter()
            os.pwrite(descriptor, _BLOCK, index * len(_BLOCK))
            os.fdatasync(descriptor)
            taken_ms.append((time.perf_counter() - started) * 1_000)
    return round(statistics.median(taken_ms), 3), round(max(taken_ms), 3)


def _advice(packages: dict[str, str | None], disk: dict[str, object]) -> list[str]:
    advice: list[str] = []
    for name, found in packages.items():
        if found is not None:
            continue
        if name in _OPTIONAL:
            what, how = _OPTIONAL[name]
            advice.append(f"{name} ({what}) is not installed: {how}")
        else:
            advice.append(f"{name} is missing: pip install --upgrade syncline")
    if not disk["writable"]:
        advice.append(f"{disk['folder']} cannot be written by this user: change its owner or mode")
    if "write_error" in disk:
        advice.append(f"nothing can be written to {disk['folder']}: {disk['write_error']}")
    median_ms = disk.get("sync_median_ms")
    if isinstance(median_ms, float) and median_ms > _SLOW_SYNC_MS:
        advice.append(f"a sync takes {median_ms} ms here: a disk with a write cache would help")
    if disk["file_system"] == "tmpfs":
        advice.append("the data folder is in memory and gone with the machine: choose a disk")
    if disk["file_system"] in _NETWORK_FILE_SYSTEMS:
        advice.append("the data folder is on a network: locks and syncs may not hold there")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _OPEN_FILES_MIN:
        advice.append(f"raise the limit of open files to {_OPEN_FILES_MIN} or more: ulimit -n")
    return advice


def _print(
    output: Output,
    facts: dict[str, object],
    packages: dict[str, str | None],
    programs: dict[str, str | None],
    disk: dict[str, object],
    spark: dict[str, object],
    advice: list[str],
) -> None:
    output.facts("machine", {name: facts[name] for name in ("python", "system", "open_files_max")})
    rows = [(name, found or "missing", _PURPOSES.get(name, "")) for name, found in packages.items()]
    output.table("packages", ["package", "version", "what for"], rows)
    places = [(name, found or "missing") for name, found in programs.items()]
    output.table("programs that only tests need", ["program", "where"], places)
    free = disk["free_bytes"]
    assert isinstance(free, int)
    output.facts("disk", disk | {"free_bytes": bytes_text(free)})
    output.facts("spark", spark)
    for sentence in advice:
        output.line(f"- {sentence}", style="yellow")
    if not advice:
        output.line("all is well", style="green")
