"""The only place that starts Spark: settings for tests, for one machine and for a cluster.

- Nothing but the driver's own machine is listened on, unless the master is elsewhere.
- Workers run this very Python: without being told, they would take whatever the PATH has.
- Logs are errors on standard error; what a job has to say, it says itself.
- One session a process: jobs that follow one another share it.
- An interrupt is KeyboardInterrupt, as it was before; stopping the session cancels what runs.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from syncline.errors import MissingPieceError, PipelineError
from syncline.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
_GATEWAY: Final = "py4j"
# Java tells what it does not like itself, before it ends.
_NO_START: Final = (
    "Spark could not be started ({}); check what it is started with: --master and --set of "
    "`syncline pipeline`"
)
PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "deltalake", "matplotlib")
_LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


class SessionKind(StrEnum):
    TESTS = "tests"
    MACHINE = "machine"
    CLUSTER = "cluster"


# Whatever Spark runs on.
_COMMON: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.showConsoleProgress": "false",
    # The source takes filters; Spark asks Python sources only if it is told to.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A table lists its files itself: no markers, no hidden checksums beside them.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session_settings(
    kind: SessionKind, work_folder: Path, *, core_count: int = 1
) -> dict[str, str]:
    """What Spark is started with. `work_folder` takes its scratch files."""
    scratch = {
        "spark.sql.warehouse.dir": str(work_folder / "warehouse"),
        "spark.local.dir": str(work_folder / "scratch"),
    }
    match kind:
        case SessionKind.TESTS:
            # Small data: planning in turns and many partitions cost more than they give.
            own = _LOOPBACK | {
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
                "spark.sql.adaptive.enabled": "false",
                "spark.driver.memory": "1g",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            }
        case SessionKind.MACHINE:
            own = _LOOPBACK | {
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": str(4 * core_count),
                "spark.sql.adaptive.enabled": "true",
                "spark.driver.memory": "4g",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
                "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
                "spark.sql.files.maxPartitionBytes": "64m",
            }
        case SessionKind.CLUSTER:
            # How many partitions, Spark decides while it runs.
            own = {
                "spark.ui.enabled": "true",
                "spark.sql.adaptive.enabled": "true",
                "spark.executor.memory": "4g",
                "spark.executor.memoryOverheadFactor": "0.3",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
                "spark.sql.files.maxPartitionBytes": "128m",
            }
    return _COMMON | scratch | own


def kind_of(master: str) -> SessionKind:
    """`local` and `local[…]` are this machine; anything else is a cluster, a small one too."""
    is_local = master == "local" or master.startswith("local[")
    return SessionKind.MACHINE if is_local else SessionKind.CLUSTER


def check_packages() -> None:
    """Raises MissingPieceError unless all that the pipeline imports is installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPieceError(
            f"the pipeline needs {', '.join(missing)}: pip install 'syncline[spark]'"
        )


@contextmanager
def open_session(
    work_folder: Path,
    *,
    master: str = LOCAL_MASTER,
    kind: SessionKind | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator["SparkSession"]:
    """Start Spark, and stop it at the end. `settings` win over those of the kind.

    Raises MissingPieceError if Java or a package is not there, PipelineError if Spark does not
    start, and for what it cannot do.
    """
    check_packages()
    java = find_java()
    chosen = kind or kind_of(master)
    work_folder.mkdir(parents=True, exist_ok=True)
    wanted = session_settings(chosen, work_folder.absolute(), core_count=os.cpu_count() or 1)
    environment = {
        "JAVA_HOME": java.home,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": _write_log_settings(work_folder),
        # Of libraries that Spark's own workers import; nothing that we could change.
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    if chosen is not SessionKind.CLUSTER:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with _environment(environment):
        # Not at the top: to say what is missing must not need it.
        from pyspark.sql import SparkSession

        from syncline.pipeline.sources.source import SynclineSource

        builder = SparkSession.Builder().master(master).appName("syncline")
        for name, value in {**wanted, **(settings or {})}.items():
            builder = builder.config(name, value)
        with _explained("Spark could not do it: {}"), _without_gateway_logs():
            with _explained(_NO_START), _interrupts_kept():
                session = builder.getOrCreate()
            try:
                session.dataSource.register(SynclineSource)
                yield session
            finally:
                session.stop()


@contextmanager
def _explained(sentence: str) -> Generator[None]:
    """What Spark has to say, in its first line: behind it come pages of Java."""
    from pyspark.errors import PySparkException

    # Of a library without types.
    java_error = cast(type[Exception], import_module(f"{_GATEWAY}.protocol").Py4JError)
    try:
        yield
    except (PySparkException, java_error) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # An error of ours in a worker is named at the end of its traceback, one of Java's behind
        # the name of its class.
        ours = [line for line in lines if line.startswith("syncline.errors.")]
        javas = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
        reason = (ours or javas or lines or ["no reason given"])[0]
        raise PipelineError(sentence.format(reason)) from error


@contextmanager
def _interrupts_kept() -> Generator[None]:
    """What the block does to the handling of SIGINT is undone.

    Spark's own handler cancels jobs over the connection at which the interrupted thread waits for
    an answer: that fails, with pages of it.
    """
    # Signals are the main thread's; on another one Spark leaves them alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_gateway_logs() -> Generator[None]:
    """The gateway to Java logs an error with its traceback, and raises it: that is enough.

    It logs by its own logger, and by that of whoever has it.
    """

    def is_of_others(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != _GATEWAY

    root, own = logging.getLogger(), logging.getLogger(_GATEWAY)
    root.addFilter(is_of_others)
    propagates, own.propagate = own.propagate, False
    try:
        yield
    finally:
        own.propagate = propagates
        root.removeFilter(is_of_others)


def _write_log_settings(work_folder: Path) -> str:
    folder = work_folder.absolute() / "conf"
    folder.mkdir(exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG_SETTINGS, encoding="utf-8")
    return str(folder)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Variables for Spark and its workers, as they were again afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
