"""The manifest on a full disk: what is refused has changed nothing, and can be tried again."""

from random import Random

import pytest

from syncline.errors import StoreFullError
from syncline.storage.log import manifest as manifest_module
from syncline.storage.log.manifest import Manifest, ManifestState, read_manifest
from syncline.testing.files import SimulatedFiles

FOLDER = "/data"
STATE = ManifestState(1, 65536, 1, 1, 0, 0, 0, 65536, "0" * 32, [1])


def made(files: SimulatedFiles) -> Manifest:
    files.make_folder(FOLDER)
    files.sync_folder("/")
    return Manifest.create(files, FOLDER, STATE)


def epoch_after(files: SimulatedFiles) -> int:
    state = read_manifest(files, FOLDER)
    assert state is not None
    return state.epoch


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("call", ["create", "truncate", "write"])
def test_a_next_file_that_finds_no_room_leaves_the_one_before_in_force(
    monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    files = SimulatedFiles()
    manifest = made(files)
    monkeypatch.setattr(manifest_module, "_ROTATE_BYTES", 0)
    files.fail(call, nth)
    with pytest.raises(StoreFullError):
        manifest.change(epoch=2)
    assert manifest.state.epoch == 1
    assert epoch_after(files) == 1
    assert epoch_after(files.crash(Random(1))) == 1
    assert "MANIFEST.2" not in files.list(FOLDER)
    assert files.open_file_count == 1

    manifest.change(epoch=3)
    assert epoch_after(files.crash(Random(1))) == 3
    assert files.list(FOLDER) == ["CURRENT", "MANIFEST.2"]
    assert files.open_file_count == 1
    manifest.close()
    assert files.open_file_count == 0


def test_a_file_that_cannot_be_removed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    manifest = made(files)
    monkeypatch.setattr(manifest_module, "_ROTATE_BYTES", 0)
    files.fail("remove")
    assert manifest.change(epoch=2).epoch == 2
    manifest.close()
    again = Manifest.open(files, FOLDER)
    assert again is not None
    assert again.state.epoch == 2
    assert files.list(FOLDER) == ["CURRENT", "MANIFEST.2"]
    again.close()
