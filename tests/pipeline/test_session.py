"""The session: quiet, on loopback, in UTC, with this Python; and told what it lacks."""

import logging
import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from syncline.errors import MissingPieceError, PipelineError
from syncline.pipeline import session
from syncline.pipeline.java import Java
from syncline.pipeline.session import (
    SessionKind,
    check_packages,
    kind_of,
    open_session,
    session_settings,
)


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", SessionKind.MACHINE),
        ("local[2]", SessionKind.MACHINE),
        ("local-cluster[2,1,900]", SessionKind.CLUSTER),
        ("spark://host:7077", SessionKind.CLUSTER),
    ],
)
def test_the_master_says_which_settings_are_meant(master: str, kind: SessionKind) -> None:
    assert kind_of(master) is kind


@pytest.mark.parametrize("kind", SessionKind)
def test_every_kind_works_in_utc_and_hands_filters_to_the_source(kind: SessionKind) -> None:
    found = session_settings(kind, Path("work"))
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.python.filterPushdown.enabled"] == "true"
    is_here = kind is not SessionKind.CLUSTER
    assert (found.get("spark.driver.bindAddress") == "127.0.0.1") is is_here


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == "deltalake" else ModuleSpec(name, None)

    monkeypatch.setattr(session, "find_spec", find)
    with pytest.raises(
        MissingPieceError, match=r"needs deltalake: pip install 'syncline\[spark\]'"
    ):
        check_packages()


def test_the_command_line_starts_without_spark_and_its_friends() -> None:
    code = (
        "import sys, syncline.cli.main; "
        "print([n for n in ('pyspark', 'pyarrow', 'pandas', 'deltalake') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_workers_run_this_python_and_nothing_listens_but_on_loopback(spark: SparkSession) -> None:
    def python_of(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    found = spark.range(1).mapInArrow(python_of, "python string").collect()
    assert {row.python for row in found} == {sys.executable}
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


class FakeSession:
    """Spark as far as starting and stopping goes."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.dataSource = self

    def register(self, source: type) -> None:
        pass

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    found = FakeSession()

    def started(_: object) -> FakeSession:
        # As Spark does.
        signal.signal(signal.SIGINT, lambda *_: None)
        return found

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", started)
    monkeypatch.setattr(session, "find_java", lambda: Java("/java", "17", "PATH"))
    return found


def test_an_interrupt_is_as_it_was_and_stops_the_session(fake: FakeSession, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), open_session(tmp_path):
        signal.raise_signal(signal.SIGINT)
    assert fake.is_stopped
    assert signal.getsignal(signal.SIGINT) is before


def test_what_spark_cannot_be_started_with_is_to_be_checked(
    fake: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    with (
        pytest.raises(PipelineError, match=r"not be started \(.*JAVA.*\); .* --master and --set"),
        open_session(tmp_path, master="bogus://x"),
    ):
        pass


def test_what_spark_cannot_do_is_not_a_matter_of_how_it_was_started(
    fake: FakeSession, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"^Spark could not do it: .*$"), open_session(tmp_path):
        raise PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={})


def test_what_the_gateway_raises_it_does_not_log_as_well(fake: FakeSession, tmp_path: Path) -> None:
    root, own = logging.getLogger(), logging.getLogger("py4j")
    before = [*root.filters], own.propagate
    # That of pytest may hear loggers that hand nothing on.
    heard = BufferingHandler(10)
    root.addHandler(heard)
    level = root.level
    # Whatever a router that ran in this process has set.
    root.setLevel(logging.ERROR)
    try:
        with open_session(tmp_path):
            own.getChild("clientserver").error("a connection broke")
            # By the root logger, from a file of the gateway.
            path = Path("site-packages") / "py4j" / "java_gateway.py"
            root.handle(root.makeRecord("root", logging.ERROR, str(path), 1, "broke", (), None))
            root.error("of somebody else")
    finally:
        root.setLevel(level)
        root.removeHandler(heard)
    assert [record.getMessage() for record in heard.buffer] == ["of somebody else"]
    assert ([*root.filters], own.propagate) == before
