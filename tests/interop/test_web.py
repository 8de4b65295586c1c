"""The TypeScript client and the pages: their own tests, against a real router too, and the build
that is in the package."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.router_process import running
from tests.interop.npm_clients import install, shared_folder
from tools import build_pages

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"


def npm(folder: Path, *arguments: str, **environment: str) -> None:
    found = shutil.which("npm")
    if found is None:
        pytest.skip("npm is missing; install Node.js 20 or later")
    result = subprocess.run(
        [found, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


@pytest.fixture(scope="module", params=["client", "pages"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = WEB / request.param
    install(folder, shared_folder(tmp_path_factory))
    return folder


def test_its_own_tests_pass(project: Path, tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        url = router.url.replace("http", "ws") + "/sync"
        npm(project, "test", SYNCLINE_URL=url)


def test_no_lock_file_names_a_registry(project: Path) -> None:
    packages = json.loads((project / "package-lock.json").read_text())["packages"]
    assert len(packages) > 1
    assert not [name for name, package in packages.items() if "resolved" in package]


def test_the_pages_in_the_package_are_what_is_built(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    install(WEB / "pages", shared_folder(tmp_path_factory))
    committed = {
        path.relative_to(build_pages.TARGET).as_posix(): path.read_bytes()
        for path in build_pages.TARGET.rglob("*")
        if path.is_file()
    }
    assert build_pages.built(tmp_path / "build") == committed, "run `make pages`"
