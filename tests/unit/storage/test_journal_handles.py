"""Open files are bounded, shared, and never closed under whoever uses them."""

import pytest

from syncline.storage.journal.handles import HandlePool
from syncline.testing.files import SimulatedFiles


def make_files(count: int) -> SimulatedFiles:
    files = SimulatedFiles()
    for number in range(count):
        file = files.open(f"/{number}", create=True)
        file.write(0, [b"%d" % number])
        file.close()
    return files


def test_no_more_files_are_open_than_allowed() -> None:
    files = make_files(10)
    pool = HandlePool(files, 3)
    for number in range(10):
        with pool.use(f"/{number}") as file:
            assert file.read(0, 10) == b"%d" % number
        assert files.open_file_count <= 3
    pool.close()
    assert files.open_file_count == 0


def test_a_file_used_again_is_not_opened_again() -> None:
    files = make_files(2)
    pool = HandlePool(files, 2)
    for _ in range(5):
        for number in range(2):
            with pool.use(f"/{number}"):
                pass
    assert files.calls["open"] == 2


def test_the_longest_unused_goes_first() -> None:
    files = make_files(3)
    pool = HandlePool(files, 2)
    for number in (0, 1, 0, 2, 0):
        with pool.use(f"/{number}"):
            pass
    assert files.calls["open"] == 3, "0 was never closed"


def test_a_file_in_use_stays_open_whatever_happens() -> None:
    files = make_files(4)
    pool = HandlePool(files, 1)
    with pool.use("/0") as file:
        for number in range(1, 4):
            with pool.use(f"/{number}"):
                pass
        pool.forget_file("/0")
        assert file.read(0, 1) == b"0"
    pool.close()
    assert files.open_file_count == 0


def test_a_forgotten_name_is_opened_anew() -> None:
    files = make_files(1)
    pool = HandlePool(files, 4)
    with pool.use("/0"):
        pass
    pool.forget_file("/0")
    files.remove("/0")
    with pool.use("/0", create=True) as file:
        assert file.size() == 0
    pool.close()


def test_forgetting_a_folder_lets_go_of_all_in_it_and_nothing_else() -> None:
    files = SimulatedFiles()
    for folder in ("/a", "/ab"):
        files.make_folder(folder)
        files.open(f"{folder}/x", create=True).close()
    pool = HandlePool(files, 4)
    for path in ("/a/x", "/ab/x"):
        with pool.use(path):
            pass
    pool.forget("/a")
    assert files.open_file_count == 1
    pool.close()


def test_a_missing_file_is_told_and_takes_no_room() -> None:
    files = make_files(1)
    pool = HandlePool(files, 1)
    with pytest.raises(FileNotFoundError), pool.use("/missing"):
        pass
    with pool.use("/0") as file:
        assert file.size() == 1
    pool.close()
    assert files.open_file_count == 0
