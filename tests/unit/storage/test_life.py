"""A restored folder is told from the one that its backup was made of."""

from syncline.storage.life import LIFE_BYTES, begin_life, in_life, read_life
from syncline.testing.files import SimulatedFiles

INCARNATION = bytes(range(8))


def test_a_folder_that_was_never_restored_has_no_life_of_its_own() -> None:
    files = SimulatedFiles()
    files.make_folder("data")
    assert read_life(files, "data") == b""
    assert in_life(INCARNATION, b"") == INCARNATION


def test_each_restore_begins_another_life() -> None:
    files = SimulatedFiles()
    files.make_folder("data")
    known = {in_life(INCARNATION, read_life(files, "data"))}
    for number in (1, 2):
        begin_life(files, "data", bytes([number]) * LIFE_BYTES)
        assert read_life(files, "data") == bytes([number]) * LIFE_BYTES
        known.add(in_life(INCARNATION, read_life(files, "data")))
    assert len(known) == 3
    assert {len(each) for each in known} == {len(INCARNATION)}
