"""The examples in README and docs that are marked as running do run, against a real router."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import documents
from tests.documents import Example

SYNCLINE = Path(sys.executable).with_name("syncline")
DEFAULT_ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture
def router_address(tmp_path: Path) -> Iterator[str]:
    """Of a router on a free port, with a data folder of its own."""
    settings = {"SYNCLINE_STORE_FOLDER": str(tmp_path / "data"), "SYNCLINE_HTTP_PORT": "0"}
    with (tmp_path / "errors").open("w") as errors:
        router = subprocess.Popen(
            [SYNCLINE, "serve"],
            cwd=tmp_path,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield read_address(router, tmp_path / "errors")
    finally:
        router.terminate()
        router.wait(15)


def read_address(router: subprocess.Popen[str], errors: Path) -> str:
    assert router.stdout is not None
    for line in router.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found.group()
    raise AssertionError(f"the router printed no address: {errors.read_text()}")


def run(example: Example, router_address: str, folder: Path) -> str:
    command = {
        "sh": ["bash", "-euo", "pipefail", "-c"],
        "python": [sys.executable, "-c"],
    }[example.language]
    code = example.code.replace(DEFAULT_ADDRESS, router_address)
    path = f"{SYNCLINE.parent}:{os.environ['PATH']}"
    result = subprocess.run(
        [*command, code],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.timeout(60)
@pytest.mark.parametrize("example", documents.examples(), ids=str)
def test_example_runs(example: Example, router_address: str, tmp_path: Path) -> None:
    if "curl" in example.code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    printed = run(example, router_address, tmp_path)
    if example.prints is not None:
        checker = doctest.OutputChecker()
        assert checker.check_output(example.prints, printed, doctest.ELLIPSIS), printed


def test_readme_has_an_example_that_runs() -> None:
    assert "README.md-0" in {str(example) for example in documents.examples()}
