"""What the simulated file system forgets at a power cut, and what it must not."""

from collections.abc import Callable
from random import Random

import pytest

from syncline.errors import DeviceError, StoreFullError
from syncline.testing.files import SimulatedCrashError, SimulatedFiles

ROUNDS = 200


def fresh() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder("/d")
    files.sync_folder("/")
    return files


def with_file(content: bytes) -> SimulatedFiles:
    """A file `/d/a` that is durable with its name."""
    files = fresh()
    file = files.open("/d/a", create=True)
    file.write(0, [content])
    file.sync()
    files.sync_folder("/d")
    return files


def outcomes(files: SimulatedFiles, path: str = "/d/a") -> set[bytes | None]:
    """What different power cuts leave of a file; None where it is gone."""
    found: set[bytes | None] = set()
    for seed in range(ROUNDS):
        after = files.crash(Random(seed))
        found.add(after.read_all(path) if after.exists(path) else None)
    return found


def test_synced_content_with_a_synced_name_always_survives() -> None:
    assert outcomes(with_file(b"x" * 2000)) == {b"x" * 2000}


def test_a_synced_file_without_a_synced_name_may_be_lost() -> None:
    files = fresh()
    file = files.open("/d/a", create=True)
    file.write(0, [b"content"])
    file.sync()
    assert outcomes(files) == {None, b"content"}


def test_a_folder_whose_parent_was_not_synced_may_be_lost_with_all_in_it() -> None:
    files = SimulatedFiles()
    files.make_folder("/d")
    file = files.open("/d/a", create=True)
    file.write(0, [b"content"])
    file.sync()
    files.sync_folder("/d")
    assert outcomes(files) == {None, b"content"}
    files.sync_folder("/")
    assert outcomes(files) == {b"content"}


def test_an_unsynced_write_is_lost_kept_or_torn_between_sectors() -> None:
    files = with_file(b"o" * 2048)
    files.open("/d/a").write(0, [b"n" * 2048])
    found = {(after[:512], after[512:1024]) for after in outcomes(files) if after is not None}
    old, new = b"o" * 512, b"n" * 512
    assert found == {(old, old), (new, new), (old, new), (new, old)}


def test_unsynced_writes_are_reordered() -> None:
    files = with_file(bytes(2048))
    file = files.open("/d/a")
    file.write(0, [b"1" * 512])
    file.write(1024, [b"2" * 512])
    found = {(after[0:1], after[1024:1025]) for after in outcomes(files) if after is not None}
    assert (b"\0", b"2") in found
    assert (b"1", b"\0") in found


def test_a_sector_never_holds_what_was_not_written_there() -> None:
    files = with_file(b"o" * 600)
    file = files.open("/d/a")
    file.write(100, [b"n" * 300])
    file.write(200, [b"m" * 500])
    for after in outcomes(files):
        assert after is not None
        assert set(after) <= set(b"onm\0")
        assert after[:100] == b"o" * 100


def test_the_size_may_run_ahead_of_the_data_which_then_reads_as_zeros() -> None:
    files = with_file(b"")
    files.open("/d/a").write(0, [b"x" * 1024])
    found = outcomes(files)
    assert {b"", bytes(1024), b"x" * 1024} <= found
    assert bytes(512) + b"x" * 512 in found


def test_an_unsynced_truncation_happens_or_not() -> None:
    files = with_file(b"x" * 1000)
    files.open("/d/a").truncate(10)
    assert outcomes(files) == {b"x" * 1000, b"x" * 10}


def test_a_rename_is_atomic() -> None:
    files = with_file(b"old")
    file = files.open("/d/new", create=True)
    file.write(0, [b"new"])
    file.sync()
    files.sync_folder("/d")
    files.rename("/d/new", "/d/a")
    for seed in range(ROUNDS):
        after = files.crash(Random(seed))
        names = after.list("/d")
        assert (names, after.read_all("/d/a")) in [(["a", "new"], b"old"), (["a"], b"new")]
    assert outcomes(files) == {b"old", b"new"}
    files.sync_folder("/d")
    assert outcomes(files) == {b"new"}


def test_a_rename_of_an_unsynced_file_may_leave_it_empty() -> None:
    files = with_file(b"old")
    file = files.open("/d/new", create=True)
    file.write(0, [b"new"])
    files.rename("/d/new", "/d/a")
    files.sync_folder("/d")
    assert b"" in outcomes(files)


def test_a_rename_between_folders_needs_both_synced() -> None:
    files = with_file(b"x")
    files.make_folder("/e")
    files.sync_folder("/")
    files.rename("/d/a", "/e/a")
    files.sync_folder("/e")
    assert outcomes(files) == {b"x", None}
    for seed in range(ROUNDS):
        after = files.crash(Random(seed))
        assert after.list("/d") + after.list("/e") == ["a"], "it has one name at any time"
    files.sync_folder("/d")
    assert outcomes(files, "/e/a") == {b"x"}


def test_a_file_renamed_twice_is_never_lost_nor_doubled() -> None:
    files = with_file(b"x")
    files.rename("/d/a", "/d/b")
    files.open("/d/a", create=True).close()
    files.rename("/d/b", "/d/c")
    for seed in range(ROUNDS):
        after = files.crash(Random(seed))
        holders = [path for path in after.paths("/d") if after.read_all(path) == b"x"]
        assert len(holders) == 1


def test_a_removed_file_may_come_back_until_its_folder_is_synced() -> None:
    files = with_file(b"x")
    files.remove("/d/a")
    assert outcomes(files) == {None, b"x"}
    files.sync_folder("/d")
    assert outcomes(files) == {None}


def test_name_changes_of_one_folder_survive_in_any_selection() -> None:
    files = fresh()
    for name in "abc":
        files.open(f"/d/{name}", create=True).close()
    found = {"".join(files.crash(Random(seed)).list("/d")) for seed in range(ROUNDS)}
    assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_mapped_page_reaches_the_device_sector_by_sector_without_asking() -> None:
    files = with_file(bytes(8192))
    file = files.open("/d/a")
    mapped = file.map(writable=True)
    view = mapped.view()
    view[0:512] = b"a" * 512
    view[4096:4608] = b"b" * 512
    found = {(after[0:1], after[4096:4097]) for after in outcomes(files) if after is not None}
    assert found == {(b"\0", b"\0"), (b"a", b"\0"), (b"\0", b"b"), (b"a", b"b")}
    assert not any(after and 0 < after[:512].count(b"a") < 512 for after in outcomes(files))
    files.tears_words = True
    assert any(after and 0 < after[:512].count(b"a") < 512 for after in outcomes(files)), (
        "a page may be copied while it changes"
    )
    file.sync()
    assert outcomes(files) == {b"a" * 512 + bytes(3584) + b"b" * 512 + bytes(3584)}
    view.release()
    mapped.close()


def test_a_page_may_be_written_between_two_changes_of_it() -> None:
    files = with_file(bytes(4096))
    mapped = files.open("/d/a").map(writable=True)
    mapped[0:1] = b"1"
    mapped[0:1] = b"2"
    assert {after[0:1] for after in outcomes(files) if after} == {b"\0", b"1", b"2"}


def test_a_kill_keeps_the_page_cache_and_leaves_it_unsynced() -> None:
    files = with_file(b"old")
    files.open("/d/a").write(0, [b"new"])
    files.open("/d/b", create=True)
    files.lock("/d/LOCK")
    after = files.kill(Random(1))
    assert after.read_all("/d/a") == b"new"
    assert after.list("/d") == ["LOCK", "a", "b"]
    after.lock("/d/LOCK")
    assert outcomes(after) == {b"old", b"new"}, "a power cut may still take it away"
    assert outcomes(after, "/d/b") == {b"", None}
    after.open("/d/a").sync()
    after.sync_folder("/d")
    assert outcomes(after) == {b"new"}
    assert outcomes(files) == {b"old", b"new"}, "the original is as it was"


def test_a_kill_in_a_write_leaves_any_part_of_it() -> None:
    files = with_file(b"")
    file = files.open("/d/a")
    files.crash_after(1)
    with pytest.raises(SimulatedCrashError):
        file.write(0, [b"abcdef"])
    found = {files.kill(Random(seed)).read_all("/d/a") for seed in range(ROUNDS)}
    assert found == {b"abcdef"[:length] for length in range(7)}


def test_a_crash_stops_every_later_call_and_no_handler_meets_it() -> None:
    files = with_file(b"x")
    file = files.open("/d/a")
    files.crash_after(2)
    file.write(0, [b"y"])
    with pytest.raises(SimulatedCrashError):
        file.sync()
    with pytest.raises(SimulatedCrashError):
        file.read(0, 1)
    assert not issubclass(SimulatedCrashError, Exception)
    assert outcomes(files) == {b"x", b"y"}


def test_one_seed_is_one_crash() -> None:
    files = with_file(bytes(20_000))
    file = files.open("/d/a")
    for offset in range(0, 20_000, 1000):
        file.write(offset, [b"x" * 700])
    images = [files.crash(Random(5)).read_all("/d/a") for _ in range(3)]
    assert images[0] == images[1] == images[2]
    assert len({files.crash(Random(seed)).read_all("/d/a") for seed in range(20)}) > 10


def test_a_failed_sync_gives_up_its_pages_and_the_next_one_lies() -> None:
    files = with_file(b"old")
    file = files.open("/d/a")
    file.write(0, [b"new"])
    files.fail("sync")
    with pytest.raises(DeviceError):
        file.sync()
    file.sync()
    assert file.read(0, 3) == b"new", "the cache goes on showing it"
    assert outcomes(files) == {b"old"}
    next_process = files.kill(Random(0))
    assert next_process.read_all("/d/a") == b"new"
    reopened = next_process.open("/d/a")
    reopened.forget_cached(0, 3)
    assert reopened.read(0, 3) == b"old"


def test_a_failed_folder_sync_gives_up_its_names() -> None:
    files = fresh()
    files.open("/d/a", create=True)
    files.fail("sync_folder")
    with pytest.raises(DeviceError):
        files.sync_folder("/d")
    files.sync_folder("/d")
    assert files.exists("/d/a")
    assert outcomes(files) == {None}


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("write", lambda files: files.open("/d/a").write(0, [b"123456"])),
        ("create", lambda files: files.open("/d/b", create=True)),
        ("make_folder", lambda files: files.make_folder("/d/inner")),
    ],
)
def test_the_nth_call_finds_no_room(call: str, act: Callable[[SimulatedFiles], object]) -> None:
    files = with_file(b"")
    files.fail(call, 1)
    with pytest.raises(StoreFullError):
        act(files)
    assert files.list("/d") == ["a"]
    assert len(files.read_all("/d/a")) < 6
    act(files)


def test_a_full_disk_takes_a_part_of_the_write_and_overwrites_are_free() -> None:
    files = SimulatedFiles(capacity_bytes=1000)
    file = files.open("/a", create=True)
    file.write(0, [bytes(900)])
    assert files.free_bytes("/") == 100
    with pytest.raises(StoreFullError):
        file.write(900, [b"x" * 200])
    assert file.size() == 1000
    file.write(0, [b"y" * 1000])
    file.truncate(10)
    file.write(10, [b"z" * 200])
    assert files.free_bytes("/") == 790


def test_damage_reaches_the_device() -> None:
    files = with_file(b"abc")
    files.flip_bit("/d/a", 1, bit=0)
    assert outcomes(files) == {b"acc"}
    files.cut("/d/a", 1)
    assert outcomes(files) == {b"a"}


def test_calls_are_counted() -> None:
    files = SimulatedFiles()
    seen: list[str] = []
    files.before_call = seen.append
    file = files.open("/a", create=True)
    file.write(0, [b"x"])
    file.sync()
    files.sync_folder("/")
    file.read(0, 1)
    assert seen == ["create", "write", "sync", "sync_folder", "read"]
    assert files.call_count == 5
    assert files.calls["sync"] == 1
    assert files.open_file_count == 1
    file.close()
    file.close()
    assert files.open_file_count == 0


def test_a_device_that_lies_about_syncing_forgets() -> None:
    files = with_file(b"old")
    files.ignored_calls = frozenset({"sync", "sync_folder"})
    file = files.open("/d/a")
    file.write(0, [b"new"])
    file.sync()
    files.open("/d/b", create=True)
    files.sync_folder("/d")
    assert outcomes(files) == {b"old", b"new"}
    assert outcomes(files, "/d/b") == {None, b""}
