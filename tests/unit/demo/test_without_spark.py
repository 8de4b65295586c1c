"""Without what the extra brings, the demo says so at once, and has done nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Modules that are None are not found, and cannot be imported.
SCRIPT = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))
from syncline.cli.main import main
main()
"""
EXTRA = ["pyspark", "pyarrow", "pandas", "deltalake", "matplotlib"]


def demo_without(missing: list[str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(missing=missing), "demo", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("missing", [EXTRA, ["deltalake"]])
def test_demo_without_the_extra_is_one_sentence_and_no_folder(
    tmp_path: Path, missing: list[str]
) -> None:
    folder = tmp_path / "demo"
    ran = demo_without(missing, "--folder", str(folder))
    assert (ran.returncode, ran.stdout) == (2, "")
    (sentence,) = ran.stderr.splitlines()
    assert f"needs {', '.join(missing)}: pip install 'syncline[spark]'" in sentence
    assert not folder.exists()


def test_demo_without_the_extra_is_one_object_for_programs(tmp_path: Path) -> None:
    ran = demo_without(EXTRA, "--folder", str(tmp_path / "demo"), "--json")
    assert (ran.returncode, ran.stdout) == (2, "")
    told = json.loads(ran.stderr)
    assert told["error"] == "MissingPieceError"
