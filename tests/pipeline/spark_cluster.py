"""A standalone cluster of Spark on loopback: a master and workers, from the pip package alone.

Every process is started here and ended here, by its own id. Executors are children of a worker;
when that ends, they end themselves.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from syncline.pipeline.java import find_java

HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0
STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_PORT = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")


class Cluster:
    """See the module. Use `running`."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, worker_count: int, memory: str) -> None:
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._launch("master", "org.apache.spark.deploy.master.Master", *common)
        self.url = self._said("master", _PORT)
        for number in range(worker_count):
            name = f"worker-{number}"
            work = ["--work-dir", str(self._folder / name), "--cores", "1", "--memory", memory]
            at = [*common, *work, self.url]
            self._launch(name, "org.apache.spark.deploy.worker.Worker", *at)
            self._said(name, re.compile("(Successfully registered with master)"))

    def _launch(self, name: str, class_name: str, *words: str) -> None:
        environment = os.environ | {
            "JAVA_HOME": find_java().home,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            # Nothing of a person's own settings.
            "SPARK_CONF_DIR": str(self._folder),
        }
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), class_name, *words],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str, wanted: re.Pattern[str]) -> str:
        """Wait until it has said so: there is nothing else to wait for."""
        deadline = time.monotonic() + START_SECONDS
        while (found := wanted.search(self._log(name).read_text())) is None:
            is_there = self._processes[name].poll() is None and time.monotonic() < deadline
            assert is_there, f"{name} did not start: {self._log(name).read_text()}"
            time.sleep(_LOOK_SECONDS)
        return found.group(1)

    def workers(self) -> list[int]:
        return [each.pid for name, each in self._processes.items() if name.startswith("worker")]

    def busy_executors(self) -> list[int]:
        """Those that have Python at work."""
        executors = [each for worker in self.workers() for each in children(worker)]
        return [each for each in executors if any(map(_is_python, children(each)))]

    def killed_one(self, while_runs: subprocess.Popen[str]) -> int | None:
        """An executor, as soon as one is at work. None if all ended before that."""
        while while_runs.poll() is None:
            if executors := self.busy_executors():
                os.kill(executors[0], signal.SIGKILL)
                return executors[0]
            time.sleep(_LOOK_SECONDS)
        return None

    def said(self, text: str) -> int:
        """How often the master has."""
        return self._log("master").read_text().count(text)

    def stop(self) -> None:
        """Workers first, so that nobody looks for a master that is gone."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children(pid: int) -> list[int]:
    """Of a process, whichever of its threads started them."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue  # The thread, or the process, has ended.
    return found


def _is_python(pid: int) -> bool:
    try:
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def running(folder: Path, *, worker_count: int = 2, memory: str = "1g") -> Generator[Cluster]:
    folder.mkdir()
    cluster = Cluster(folder)
    try:
        cluster.start(worker_count, memory)
        yield cluster
    finally:
        cluster.stop()
