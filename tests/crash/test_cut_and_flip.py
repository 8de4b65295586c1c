"""Data folders cut short, and with bits flipped, at every byte: nothing is believed or silent."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from syncline.errors import StorageError
from syncline.testing.files import SimulatedFiles
from syncline.testing.observation import StreamView, observe
from syncline.testing.oracle import Oracle
from syncline.testing.workload import Workload, WorkloadShape
from syncline.values.ids import STREAM_ID_CHARACTERS, StreamId
from tests.crash.damaged import (
    NothingSurvives,
    Written,
    complaints,
    damaged,
    differing,
    look,
    write_folder,
)
from tests.crash.subjects import FOLDER, open_subject

SHAPE = WorkloadShape(stream_count=6, small_bytes_max=700, large_share=0.0)
SEALED_SHAPE = WorkloadShape(stream_count=4, large_bytes_max=15_000, large_share=0.5)
SEGMENT = f"{FOLDER}/wal/000000000001.wal"
# A test looks at a share of the bytes, so that they run side by side.
SHARES = range(4)


@cache
def folder(kind: str) -> Written:
    return write_folder(kind, seed=5, step_count=18, shape=SHAPE)


@cache
def sealed_folder() -> Written:
    return write_folder("log", seed=5, step_count=250, shape=SEALED_SHAPE, is_sealed=True)


def bit_at(offset: int) -> int:
    return Random(offset).randrange(8)


def paths_with(written: Written, part: str) -> list[str]:
    """Files that both images have."""
    both = set(written.bare.paths(FOLDER)) & set(written.killed.paths(FOLDER))
    return sorted(path for path in both if part in path)


def data_bytes(files: SimulatedFiles, path: str) -> int:
    """How much of a file is more than zeros at its end."""
    return len(files.read_all(path).rstrip(b"\0"))


def flips(written: Written, path: str, offsets: range) -> list[str]:
    found: list[str] = []
    for number, offset in enumerate(offsets):
        bit = bit_at(offset)
        shown = damaged(written, number, lambda files: files.flip_bit(path, offset, bit))  # noqa: B023
        found += [
            f"bit {bit} of byte {offset} of {path}: {complaint}"
            for complaint in complaints(written, shown, written.at_the_end)
        ]
    return found


# The log.


@dataclass(frozen=True, slots=True)
class Stage:
    """What is durable once the log has so many bytes."""

    log_bytes: int
    streams: Mapping[StreamId, StreamView]


@cache
def stages() -> tuple[SimulatedFiles, Oracle, tuple[Stage, ...]]:
    """Some twelve kilobytes of log, and what each batch in it adds."""
    files = SimulatedFiles()
    staged = Oracle(is_forgiving=True)
    workload = Workload(lambda: open_subject("log", files), staged, Random(3), SHAPE)
    found: list[Stage] = []
    for _ in range(4):
        bare = files.crash(NothingSurvives())
        found.append(Stage(data_bytes(bare, SEGMENT), observe(open_subject("log", bare)).streams))
        while workload.owner.store.waiting_bytes < 3500:
            workload.stage_one()
        workload.owner.commit()
    bare = files.crash(NothingSurvives())
    found.append(
        Stage(data_bytes(bare, SEGMENT), observe(open_subject("log", bare.kill(Random(0)))).streams)
    )
    return bare, staged, tuple(found)


def test_the_log_to_be_cut_has_some_batches() -> None:
    _, _, found = stages()
    assert len({stage.log_bytes for stage in found}) == 5
    assert found[-1].log_bytes > 10_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", SHARES)
def test_a_log_cut_at_any_byte_shows_what_was_durable_before_it(share: int) -> None:
    bare, staged, found = stages()
    for size in range(share, found[-1].log_bytes + 1, len(SHARES)):
        files = bare.kill(Random(0))
        files.cut(SEGMENT, size)
        seen = observe(open_subject("log", files))
        assert staged.violations(seen) == [], f"cut at {size}"
        whole = [stage for stage in found if stage.log_bytes <= size][-1]
        assert seen.streams == whole.streams, f"cut at {size}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", SHARES)
def test_a_log_with_any_bit_flipped_loses_no_more_than_it_says(share: int) -> None:
    written = folder("log")
    offsets = range(share, data_bytes(written.bare, SEGMENT), len(SHARES))
    assert flips(written, SEGMENT, offsets) == []


def test_a_log_that_ends_before_the_table_does_is_reported() -> None:
    """Whose batches are missing cannot be known; that some are must not go unsaid."""
    written = folder("log")
    reported = 0
    for size in range(0, data_bytes(written.killed, SEGMENT), 23):
        # By turns; the odd ones have the table as it was.
        shown = damaged(written, 1, lambda files: files.cut(SEGMENT, size))  # noqa: B023
        is_said = any("were acknowledged" in found.reason for found in shown.seen.damage)
        reported += is_said
        silent = [] if is_said else complaints(written, shown, written.at_the_end)
        assert silent == [], f"cut at {size}"
    assert reported > 100


def test_damage_in_the_middle_is_reported_and_every_other_stream_is_whole() -> None:
    """A flip in a payload names its stream, and costs no other stream anything."""
    written = folder("log")
    named_count = 0
    for offset in range(0, data_bytes(written.bare, SEGMENT), 31):
        shown = damaged(written, 0, lambda files: files.flip_bit(SEGMENT, offset))  # noqa: B023
        lost = differing(written.expected.streams, shown.seen.streams) - written.at_the_end
        named_count += bool(lost & shown.named)
        assert len(lost) <= 1, f"byte {offset}"
    assert named_count >= 20


# What is sealed, the table, and the files that say what counts.


@pytest.mark.timeout(120)
def test_a_run_with_a_flipped_bit_loses_no_more_than_it_says() -> None:
    written = sealed_folder()
    paths = paths_with(written, ".run")
    assert paths
    for path in paths:
        size = data_bytes(written.bare, path)
        assert flips(written, path, range(0, size, max(1, size // 400))) == []
        # The index and the footer, byte by byte.
        assert flips(written, path, range(max(0, size - 400), size)) == []


def test_a_run_that_is_cut_loses_no_more_than_it_says() -> None:
    written = sealed_folder()
    for path in paths_with(written, ".run"):
        size = data_bytes(written.bare, path)
        for number, end in enumerate(range(0, size, max(1, size // 200))):
            shown = damaged(written, number, lambda files: files.cut(path, end))  # noqa: B023
            assert complaints(written, shown, written.at_the_end) == [], f"{path} cut at {end}"
            assert shown.seen.damage, f"{path} cut at {end}"


@cache
def idle_folder() -> Written:
    """Streams that are in the table and nowhere else."""
    return write_folder("log", 5, 150, SEALED_SHAPE, is_sealed=True, idle_count=12)


@pytest.mark.timeout(120)
def test_a_slot_with_a_flipped_bit_costs_its_own_stream_alone() -> None:
    written = idle_folder()
    (path,) = paths_with(written, ".tab")
    content = written.bare.read_all(path)
    used = [offset for offset, byte in enumerate(content) if byte]
    assert len(used) > 12 * 30, "the table was synced"
    for offset in used:
        shown = damaged(written, offset, lambda files: files.flip_bit(path, offset, 3))  # noqa: B023
        assert complaints(written, shown) == [], f"byte {offset}"
        assert len(differing(written.expected.streams, shown.seen.streams)) <= 1, f"byte {offset}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_table_with_a_flipped_bit_loses_no_more_than_it_says(is_sealed: bool) -> None:
    written = sealed_folder() if is_sealed else folder("log")
    (path,) = paths_with(written, ".tab")
    content = written.killed.read_all(path)
    used = [offset for offset, byte in enumerate(content) if byte]
    for offset in [*used, *range(0, len(content), 41)]:
        assert flips(written, path, range(offset, offset + 1)) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_manifest_with_a_flipped_bit_hides_nothing(is_sealed: bool) -> None:
    written = sealed_folder() if is_sealed else folder("log")
    (path,) = paths_with(written, "MANIFEST")
    size = data_bytes(written.bare, path)
    for number, offset in enumerate(range(max(0, size - 1500), size)):
        bit = bit_at(offset)
        shown = damaged(written, number, lambda files: files.flip_bit(path, offset, bit))  # noqa: B023
        assert shown.seen.streams == written.expected.streams, f"bit {bit} of byte {offset}"


@pytest.mark.parametrize("kind", ["log", "journal"])
@pytest.mark.parametrize("name", ["FORMAT", "CURRENT", "LAYOUT", "MANIFEST"])
def test_a_damaged_small_file_is_an_error_that_says_so_or_does_no_harm(
    kind: str, name: str
) -> None:
    written = folder(kind)
    for path in paths_with(written, name):
        for number, offset in enumerate(range(data_bytes(written.bare, path))):
            for is_cut in (True, False):
                files = written.image(number)
                if is_cut:
                    files.cut(path, offset)
                else:
                    files.flip_bit(path, offset, bit_at(offset))
                try:
                    shown = look(open_subject(kind, files))
                except StorageError as error:
                    assert str(error)  # noqa: PT017
                    continue
                assert shown.seen.streams == written.expected.streams, f"{path} at {offset}"


# The journal: each queue has its own files, so damage concerns their queue alone.


def owner_of(path: str) -> StreamId:
    return StreamId.parse("".join(path.split("/messages/")[1].split("/")[:-1]))


def journal_files() -> list[str]:
    """Files of queues that exist: those of a deleted one have another name."""
    return [
        path
        for path in paths_with(folder("journal"), "/messages/")
        if len("".join(path.split("/messages/")[1].split("/")[:-1])) == STREAM_ID_CHARACTERS
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", SHARES)
def test_a_journal_with_any_bit_flipped_loses_no_more_than_it_says(share: int) -> None:
    written = folder("journal")
    for path in journal_files():
        content = written.bare.read_all(path)
        # Its last line cannot be told from one that a crash has torn.
        last_line = content.rstrip(b"\n").rfind(b"\n") + 1
        for offset in range(share, len(content), len(SHARES)):
            bit = bit_at(offset)
            shown = damaged(written, offset, lambda files: files.flip_bit(path, offset, bit))  # noqa: B023
            excused = frozenset({owner_of(path)}) if offset >= last_line - 1 else frozenset()
            found = complaints(written, shown, excused | written.at_the_end)
            assert found == [], f"bit {bit} of byte {offset} of {path}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", SHARES)
def test_a_journal_cut_at_any_byte_costs_its_own_queue_alone(share: int) -> None:
    written = folder("journal")
    for path in journal_files():
        for size in range(share, data_bytes(written.bare, path), len(SHARES)):
            shown = damaged(written, size, lambda files: files.cut(path, size))  # noqa: B023
            found = complaints(written, shown, frozenset({owner_of(path)}))
            assert found == [], f"{path} cut at {size}"


# Without its checksum a store believes anything, and these tests must notice.


def test_a_log_without_checksums_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("syncline.storage.log") and hasattr(module, "crc32c_extend"):
            monkeypatch.setattr(module, "crc32c_extend", lambda seed, data: 0)
    written = write_folder("log", seed=5, step_count=18, shape=SHAPE)
    found = flips(written, SEGMENT, range(0, data_bytes(written.bare, SEGMENT), 97))
    assert any("wrongly accepted" in complaint for complaint in found)


def test_a_store_that_does_not_check_is_caught() -> None:
    written = write_folder("blind", seed=5, step_count=18, shape=SHAPE)
    path = f"{FOLDER}/log"
    believed = 0
    for offset in range(0, data_bytes(written.bare, path), 13):
        files = written.image(0)
        files.flip_bit(path, offset, 0)
        try:
            shown = look(open_subject("blind", files))
        except Exception:  # noqa: BLE001 nothing in it expects damage, so anything may happen
            continue
        believed += bool(complaints(written, shown, written.at_the_end))
    assert believed
