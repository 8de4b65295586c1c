"""Copies with a list of hashes: whole or refused."""

from collections.abc import Generator
from pathlib import Path

import pytest

from syncline.errors import ConfigError, CorruptionError
from syncline.storage.copies import (
    MANIFEST_NAME,
    CopyManifest,
    check_copy,
    copy_folder,
    folder_bytes,
    read_manifest,
    walk,
    write_manifest,
)
from syncline.storage.files import DiskFiles

FILES = DiskFiles()


def run_out(steps: Generator[int, None, CopyManifest]) -> tuple[int, CopyManifest]:
    total = 0
    while True:
        try:
            total += next(steps)
        except StopIteration as end:
            return total, end.value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "FORMAT").write_bytes(b"syncline\n")
    (folder / "LOCK").write_bytes(b"123")
    (folder / "deep" / "large").write_bytes(b"0123456789" * 300_000)
    (folder / "none").write_bytes(b"")
    return folder


def test_a_copy_has_every_folder_and_file_but_the_lock(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert sum(copy_folder(FILES, str(source), str(target))) == 3_000_009
    assert walk(FILES, str(target)) == (["deep", "deep/empty"], ["FORMAT", "deep/large", "none"])
    assert (target / "deep" / "large").read_bytes() == (source / "deep" / "large").read_bytes()
    assert folder_bytes(FILES, str(target)) == 3_000_009
    assert not (target / "LOCK").exists()


def test_the_format_comes_last(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    steps = copy_folder(FILES, str(source), str(target))
    next(steps)
    assert not (target / "FORMAT").exists(), "half a copy looks like a store"
    steps.close()


def test_a_list_proves_its_copy(source: Path) -> None:
    total, written = run_out(write_manifest(FILES, str(source), 77))
    assert total == written.byte_count == 3_000_009
    manifest = read_manifest(FILES, str(source))
    assert manifest == written
    assert manifest.made_ms == 77
    assert sum(check_copy(FILES, str(source), manifest)) == 3_000_009


@pytest.mark.parametrize("position", [0, 1_500_000, 2_999_999])
def test_one_flipped_bit_is_found(source: Path, position: int) -> None:
    _, manifest = run_out(write_manifest(FILES, str(source), 77))
    data = bytearray((source / "deep" / "large").read_bytes())
    data[position] ^= 1
    (source / "deep" / "large").write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        list(check_copy(FILES, str(source), manifest))
    assert caught.value.file == f"{source}/deep/large"


def test_copies_do_not_mix(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").write_bytes(b"")
    with pytest.raises(ConfigError, match="is not empty; choose a folder that is empty"):
        list(copy_folder(FILES, str(source), str(tmp_path / "target")))
    with pytest.raises(ConfigError, match="is a file"):
        list(copy_folder(FILES, str(source), str(source / "FORMAT")))


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "deep/../../up", ""])
def test_a_list_that_leads_out_is_refused(source: Path, name: str) -> None:
    run_out(write_manifest(FILES, str(source), 77))
    text = (source / MANIFEST_NAME).read_text().replace("deep/large", name)
    (source / MANIFEST_NAME).write_text(text)
    with pytest.raises(CorruptionError, match="outside"):
        read_manifest(FILES, str(source))
