"""The examples in README and docs that are marked as running do run, against a real router."""

import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents
from tests.documents import Example
from tests.e2e.router_process import STOP_SECONDS, environment, running

DEFAULT_ADDRESS = "//127.0.0.1:8080"


def run(example: Example, url: str, folder: Path) -> str:
    command = {
        "sh": ["bash", "-euo", "pipefail", "-c"],
        "python": [sys.executable, "-c"],
    }[example.language]
    code = example.code.replace(DEFAULT_ADDRESS, url.removeprefix("http:"))
    # `syncline` on the PATH is the one under test.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        [*command, code],
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.timeout(60)
@pytest.mark.parametrize("example", list(documents.examples()), ids=str)
def test_example_runs(example: Example, tmp_path: Path) -> None:
    if "curl" in example.code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with running(tmp_path / "data") as router:
        printed = run(example, router.url, tmp_path)
    if example.prints is not None:
        checker = doctest.OutputChecker()
        assert checker.check_output(example.prints, printed, doctest.ELLIPSIS), printed


def test_readme_has_an_example_that_runs() -> None:
    assert "README.md-0" in {str(example) for example in documents.examples()}
