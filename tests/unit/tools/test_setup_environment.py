"""The set-up script, with a stand-in for `uv` that writes down what it was asked to do."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "setup_environment.py"

PYPROJECT = """
[project]
name = "syncline"
[project.optional-dependencies]
fast = []
test = []
"""

# Makes a "virtual environment" whose Python is the one that runs the tests.
UV = f"""#!{sys.executable}
import json, os, pathlib, sys
with open(os.environ["UV_CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "venv":
    folder = pathlib.Path(sys.argv[-1])
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
elif "UV_FAILS_WITH" in os.environ:
    print(os.environ["UV_FAILS_WITH"], file=sys.stderr)
    sys.exit(2)
"""


class Project:
    """A copy of the script in a small project of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / ".venv"
        self._calls = folder / "calls"
        (folder / "tools").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "uv").write_text(UV)
        (folder / "bin" / "uv").chmod(0o755)
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "constraints.txt").write_text("numpy==2.0\n")
        shutil.copy(SCRIPT, folder / "tools")

    def set_up(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self._calls.write_text("")
        inherited = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            [sys.executable, "tools/setup_environment.py", *arguments],
            cwd=self.folder,
            env=os.environ | inherited | {"UV_CALLS": str(self._calls)} | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def installed(self) -> list[str]:
        """The packages that the last set-up installed, with their extras."""
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()]
        return [call[-1].removeprefix(str(self.folder)) for call in calls if call[0] == "pip"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_first_set_up_makes_the_environment_and_installs_the_extras(project: Project) -> None:
    result = project.set_up("--extra", "test")
    assert result.returncode == 0, result.stderr
    assert project.installed() == ["[test]"]
    assert "making a virtual environment" in result.stderr


def test_second_set_up_does_nothing(project: Project) -> None:
    project.set_up("--extra", "test")
    result = project.set_up("--extra", "test")
    assert (result.returncode, result.stderr, project.installed()) == (0, "", [])


def test_fewer_extras_than_installed_do_nothing(project: Project) -> None:
    project.set_up("--extra", "test", "--extra", "fast")
    project.set_up()
    assert project.installed() == []


def test_new_extra_is_added_to_those_installed(project: Project) -> None:
    project.set_up("--extra", "test")
    project.set_up("--extra", "fast")
    assert project.installed() == ["[fast,test]"]


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_changed_input_installs_again_with_all_extras(project: Project, name: str) -> None:
    project.set_up("--extra", "test")
    with (project.folder / name).open("a") as file:
        file.write("# changed\n")
    project.set_up()
    assert project.installed() == ["[test]"]


def test_failed_installation_is_tried_again(project: Project) -> None:
    assert project.set_up("--extra", "test", UV_FAILS_WITH="no such version").returncode == 1
    assert project.set_up().returncode == 0
    assert project.installed() == ["[test]"]


def test_environment_whose_python_is_gone_is_made_anew(project: Project) -> None:
    project.set_up("--extra", "test")
    python = project.environment / "bin" / "python"
    python.unlink()
    python.symlink_to(project.folder / "removed")
    assert project.set_up().returncode == 0
    assert project.installed() == ["[test]"]
    assert python.resolve() == Path(sys.executable).resolve()


def test_folder_that_is_no_environment_is_left_alone(project: Project) -> None:
    project.environment.mkdir()
    (project.environment / "precious").touch()
    result = project.set_up()
    assert result.returncode == 1
    assert "Move it away" in result.stderr
    assert (project.environment / "precious").exists()


def test_missing_network_is_said(project: Project) -> None:
    result = project.set_up(UV_FAILS_WITH="error: Temporary failure in name resolution")
    assert result.returncode == 1
    assert "Check the\nnetwork" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_extra_is_refused_with_those_there_are(project: Project) -> None:
    result = project.set_up("--extra", "tets")
    assert result.returncode == 1
    assert "No extra is called tets; there are: fast, test" in result.stderr


def test_python_without_venv_is_told_which_package_has_it(project: Project) -> None:
    # What Debian's python3 looks like before python3-venv is installed.
    broken = project.folder / "broken" / "ensurepip"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('No module named ensurepip')")
    result = project.set_up("--tool", "pip", PYTHONPATH=str(broken.parent))
    assert result.returncode == 1
    assert "apt-get install python3" in result.stderr


def test_old_python_is_told_so(project: Project) -> None:
    script = project.folder / "tools" / "setup_environment.py"
    text = script.read_text()
    asks_for_more = text.replace("PYTHON_MIN = (3, 11)", "PYTHON_MIN = (99, 0)")
    assert asks_for_more != text
    script.write_text(asks_for_more.replace('"python3.1', '"python97.1'))
    result = project.set_up()
    assert result.returncode == 1
    assert "needs Python 99.0 or later" in result.stderr


def test_script_can_be_read_by_a_python_that_is_too_old() -> None:
    assert ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6)).body
