"""Places to write to: asked before any work is done, and told in a sentence if they fail later."""

import errno
from pathlib import Path

import pytest

from syncline.errors import ConfigError, PipelineError
from syncline.pipeline.places import check_file_place, check_folder_place, writing_to


def test_a_file_may_be_new_or_replaced_and_asking_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    for name in ("old", "new"):
        check_file_place(tmp_path / name, "a page")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "before")]


@pytest.mark.parametrize("name", [".", "nowhere/page", "old/page", "/dev/null", "/proc/page"])
def test_what_cannot_be_a_file_is_no_place_for_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").write_text("before")
    with pytest.raises(ConfigError, match=r"place for a page"):
        check_file_place(tmp_path / name, "a page")


def test_a_folder_may_be_there_or_be_made_and_asking_leaves_nothing(tmp_path: Path) -> None:
    for name in (".", "new", "new/and/deeper"):
        check_folder_place(tmp_path / name, "tables")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["old", "old/below", "/proc/nope", "/proc"])
def test_what_cannot_be_a_folder_is_no_place_for_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").write_text("before")
    with pytest.raises(ConfigError, match="place for tables"):
        check_folder_place(tmp_path / name, "tables")


def test_what_the_disk_refuses_later_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(PipelineError, match=r"page cannot be written: no space left on device"),
        writing_to(tmp_path / "page"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
