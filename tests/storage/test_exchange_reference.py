"""Importing the folders of the reference router, whole and in every way they can be broken."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from syncline.errors import ConfigError, ForeignFolderError
from syncline.storage.base import Entry, EntryKind, Store, StreamKind
from syncline.storage.exchange import (
    ExchangeReport,
    ReferenceMessage,
    SourceLayout,
    detect_layout,
    import_detected,
    import_reference_journals,
    reference_payload,
)
from syncline.storage.exchange.reference import parse_reference_message, parse_reference_state
from syncline.storage.files import DiskFiles
from syncline.storage.journal.store import JournalStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId
from tests.storage.reference_router import ReferenceQueue
from tests.storage.under_test import stream_id

FILES = DiskFiles()
SECONDS = 1_732_530_000


@pytest.fixture(params=["memory", "journal"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    opener: type[MemoryStore] | type[JournalStore] = (
        MemoryStore if request.param == "memory" else JournalStore
    )
    return opener.open(
        str(tmp_path / "target"),
        DiskFiles(),
        StoreOptions(is_durable=False),
        now_ms=1,
        random_bytes=Random(1).randbytes,
    )


def body_only(message: ReferenceMessage) -> bytes:
    return message.body


def imported(root: Path, target: Store, quota: int = 3) -> ExchangeReport:
    return import_reference_journals(
        str(root), target, FILES, now_ms=1, quota=quota, payload_of=body_only
    )


def bodies(target: Store, stream: StreamId) -> list[bytes]:
    return [entry.payload for entry in target.read(stream, 0, 1_000, 1 << 20)]


def queue_with(root: Path, count: int, number: int = 1, acknowledged: int = 0) -> ReferenceQueue:
    """A queue of the small kind, four messages to a journal; bodies "1", "2", …"""
    queue = ReferenceQueue(root, stream_id(number), quota=100, journal_message_count_max=4)
    for message in range(1, count + 1):
        queue.send(bytes([message]) * 24, str(SECONDS + message), b"%d" % message)
    for _ in range(acknowledged):
        queue.acknowledge()
    return queue


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Whole folders.


@pytest.mark.parametrize("acknowledged", range(8))
def test_unread_messages_come_over_whichever_journal_they_are_in(
    tmp_path: Path, target: Store, acknowledged: int
) -> None:
    root = tmp_path / "messages"
    queue_with(root, 7, acknowledged=acknowledged)
    report = imported(root, target, quota=100)
    assert bodies(target, stream_id(1)) == numbers(acknowledged + 1, 7)
    assert (report.stream_count, report.entry_count) == (1, 7 - acknowledged)
    assert (report.skipped_line_count, report.lost_entry_count, report.damage) == (0, 0, [])
    state = target.state(stream_id(1))
    assert (state.kind, state.quota, state.is_blocked) == (StreamKind.QUEUE, 100, False)


def test_many_queues_come_over_each_with_its_own(tmp_path: Path, target: Store) -> None:
    root = tmp_path / "messages"
    for number in range(20):
        queue_with(root, 1 + number % 7, number, acknowledged=number % 2)
    seen: list[int] = []
    report = import_reference_journals(
        str(tmp_path),
        target,
        FILES,
        now_ms=1,
        payload_of=body_only,
        progress=lambda report: seen.append(report.entry_count),
    )
    assert sorted(target.streams()) == sorted(stream_id(number) for number in range(20))
    assert report.stream_count == 20
    assert (
        seen[-1]
        == report.entry_count
        == sum(len(bodies(target, stream)) for stream in target.streams())
    )


@pytest.mark.parametrize(
    ("time", "time_ms"),
    [
        ("1732530000", 1_732_530_000_000),
        ("2024-11-25T10:20:00Z", 1_732_530_000_000),
        ("2024-11-25T10:20:00.123456789Z", 1_732_530_000_123),
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T23:59:59.5Z", 951_868_799_500),
    ],
)
def test_times_are_seconds_or_iso(tmp_path: Path, target: Store, time: str, time_ms: int) -> None:
    queue = ReferenceQueue(tmp_path / "messages", stream_id(1))
    queue.send(b"i" * 24, time, b"body")
    imported(tmp_path, target)
    [entry] = target.read(stream_id(1), 0, 10, 1_000)
    assert entry.time_ms == time_ms


def test_the_payload_keeps_id_and_flags(tmp_path: Path, target: Store) -> None:
    queue = ReferenceQueue(tmp_path / "messages", stream_id(1))
    queue.send(b"i" * 24, "5", b"\n\0body", flags="F")
    import_reference_journals(str(tmp_path), target, FILES, now_ms=1)
    [entry] = target.read(stream_id(1), 0, 10, 1_000)
    assert entry == Entry(1, 5_000, b"\x18" + b"i" * 24 + b"\x01F" + b"\n\0body")
    assert entry.payload == reference_payload(ReferenceMessage(b"i" * 24, 5_000, b"F", b"\n\0body"))


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 3])
def test_a_full_queue_stays_full_until_it_was_read(
    tmp_path: Path, target: Store, acknowledged: int
) -> None:
    queue = ReferenceQueue(
        tmp_path / "messages", stream_id(1), quota=3, journal_message_count_max=4
    )
    for number in range(1, 7):
        taken = queue.send(b"i" * 24, str(SECONDS + number), b"%d" % number)
        assert taken == (number <= 3)
    for _ in range(acknowledged):
        queue.acknowledge()
    report = imported(tmp_path, target, quota=3)
    found = target.read(stream_id(1), 0, 10, 1_000)
    assert [entry.payload for entry in found] == [*numbers(acknowledged + 1, 3), b""]
    assert found[-1].kind is EntryKind.QUOTA_MARKER
    assert found[-1].time_ms == (SECONDS + 4) * 1000, "when the sender was refused"
    assert target.state(stream_id(1)).is_blocked
    assert (report.skipped_line_count, report.damage) == (0, [])


def test_a_queue_that_was_emptied_after_it_was_full_is_open(tmp_path: Path, target: Store) -> None:
    queue = ReferenceQueue(tmp_path / "messages", stream_id(1), quota=1)
    queue.send(b"i" * 24, "5", b"1")
    queue.send(b"i" * 24, "6", b"refused")
    queue.acknowledge()
    queue.acknowledge()
    report = imported(tmp_path, target)
    state = target.state(stream_id(1))
    assert (state.unread_count, state.is_blocked) == (0, False)
    assert report.damage == []


def test_more_messages_than_the_quota_are_all_kept(tmp_path: Path, target: Store) -> None:
    queue_with(tmp_path / "messages", 6)
    report = imported(tmp_path, target, quota=2)
    assert bodies(target, stream_id(1)) == numbers(1, 6)
    assert report.skipped_line_count == 0


def test_the_source_is_not_changed(tmp_path: Path, target: Store) -> None:
    queue = queue_with(tmp_path / "messages", 6, acknowledged=5)
    queue.state_path.write_bytes(queue.state_path.read_bytes() + b"torn")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.log")}
    imported(tmp_path / "messages", target)
    for path, data in before.items():
        assert path.read_bytes() == data


# What the reference router recovers from, and what it does not.


def tail_beyond_the_state(queue: ReferenceQueue) -> None:
    """A message was written and its state line was not."""
    path = queue.journal_path(queue.write)
    path.write_bytes(path.read_bytes() + b"aWlp 5 flags=T YmV5b25k\n")


def shorter_than_the_state(queue: ReferenceQueue) -> None:
    path = queue.journal_path(queue.write)
    path.write_bytes(path.read_bytes()[:-10])


def read_file_missing(queue: ReferenceQueue) -> None:
    queue.journal_path(queue.read).unlink()


def write_file_missing(queue: ReferenceQueue) -> None:
    queue.journal_path(queue.write).unlink()


def both_files_missing(queue: ReferenceQueue) -> None:
    queue.journal_path(queue.read).unlink()
    if queue.write is not queue.read:
        queue.journal_path(queue.write).unlink()


def last_state_unreadable(queue: ReferenceQueue) -> None:
    queue.state_path.write_bytes(queue.state_path.read_bytes() + b"write=garbage\n")


def last_state_torn_in_a_number(queue: ReferenceQueue) -> None:
    # As if the last message had not been counted to the end: size=1 of size=10.
    line = queue.state_line().encode()
    before = queue.state_path.read_bytes()
    queue.state_path.write_bytes(before + line.replace(b"size=6", b"size=61").rstrip(b"1\n"))


def two_states_on_one_line(queue: ReferenceQueue) -> None:
    data = queue.state_path.read_bytes()
    queue.state_path.write_bytes(data.rstrip(b"\n") + queue.state_line().encode())


def interim_backup(queue: ReferenceQueue) -> None:
    queue.state_path.rename(f"{queue.state_path}.bak")
    queue.state_path.write_bytes(b"write=half wri")


def only_state_line_bad(queue: ReferenceQueue) -> None:
    queue.state_path.write_bytes(b"nothing of a state\n")


def two_bad_state_lines(queue: ReferenceQueue) -> None:
    queue.state_path.write_bytes(queue.state_path.read_bytes() + b"bad\nworse\n")


def inconsistent_state(queue: ReferenceQueue) -> None:
    queue.state_path.write_bytes(queue.state_line().replace("size=6", "size=60").encode())


def state_missing(queue: ReferenceQueue) -> None:
    queue.state_path.rename(queue.folder / f"{queue.state_path.name}.2024-11-25T10:20:00Z.bak")


def state_never_written(queue: ReferenceQueue) -> None:
    queue.state_path.unlink()


def empty_state(queue: ReferenceQueue) -> None:
    queue.state_path.write_bytes(b"")


def bad_message_line(queue: ReferenceQueue) -> None:
    path = queue.journal_path(queue.read)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"flags=T Mg==", b"flags=T M\xff=="))


def lost_newline(queue: ReferenceQueue) -> None:
    path = queue.journal_path(queue.read)
    path.write_bytes(path.read_bytes().replace(b"\n", b"x", 1))


BROKEN: list[tuple[Callable[[ReferenceQueue], None], list[bytes], bool]] = [
    (tail_beyond_the_state, numbers(1, 6), False),
    (shorter_than_the_state, numbers(1, 5), True),
    (read_file_missing, numbers(5, 6), True),
    (write_file_missing, numbers(1, 4), True),
    (both_files_missing, [], True),
    (last_state_unreadable, numbers(1, 6), True),
    (last_state_torn_in_a_number, numbers(1, 6), False),
    (two_states_on_one_line, numbers(1, 5), True),
    (interim_backup, numbers(1, 6), False),
    (only_state_line_bad, numbers(1, 6), True),
    (two_bad_state_lines, numbers(1, 6), True),
    (inconsistent_state, numbers(1, 6), True),
    (state_missing, numbers(1, 6), True),
    (state_never_written, numbers(1, 6), True),
    (empty_state, numbers(1, 6), True),
    (bad_message_line, [b"1", b"3", b"4", b"5", b"6"], True),
    (lost_newline, numbers(3, 6), True),
]


@pytest.mark.parametrize(
    ("damage", "left", "is_told"), BROKEN, ids=[damage.__name__ for damage, _, _ in BROKEN]
)
def test_a_broken_queue_gives_what_is_left_of_it_and_is_counted(
    tmp_path: Path,
    target: Store,
    damage: Callable[[ReferenceQueue], None],
    left: list[bytes],
    is_told: bool,
) -> None:
    root = tmp_path / "messages"
    queue = queue_with(root, 6)
    queue_with(root, 2, number=2)
    damage(queue)
    report = imported(root, target, quota=100)
    assert bodies(target, stream_id(1)) == left
    assert bodies(target, stream_id(2)) == numbers(1, 2), "the others are not disturbed"
    assert (report.damaged_stream_count == 1) == is_told
    assert [stream for stream, _ in report.damage] == ([str(stream_id(1))] if is_told else [])
    assert report.entry_count == len(left) + 2
    assert target.append(stream_id(1), b"goes on", 1) > 0


def test_a_marker_that_is_lost_is_made_anew(tmp_path: Path, target: Store) -> None:
    queue = ReferenceQueue(
        tmp_path / "messages", stream_id(1), quota=4, journal_message_count_max=4
    )
    for number in range(1, 6):
        queue.send(b"i" * 24, str(SECONDS + number), b"%d" % number)
    queue.journal_path(queue.write).unlink()
    report = imported(tmp_path, target, quota=4)
    state = target.state(stream_id(1))
    assert state.is_blocked, "its sender waits to be told that it may go on"
    assert bodies(target, stream_id(1)) == [*numbers(1, 4), b""]
    assert report.lost_entry_count == 1


HOSTILE_LINES = [
    b"",
    b" ",
    b"a b c d",
    b"aWlp",
    b"aWlp 5",
    b"aWlp 5 quota more",
    b"aWlp 5 flags=T",
    b"aWlp 5 flags=TTTTTTTT Ym9keQ==",
    b"aWlp 5 flags=T not*base64",
    b"aWlp 5 flags=T A",
    b" 5 flags=T Ym9keQ==",
    b"aWlp " + b"9" * 5_000 + b" flags=T Ym9keQ==",
    b"aWlp 2024-13-45T99:99:99Z flags=T Ym9keQ==",
    b"aWlp yesterday flags=T Ym9keQ==",
    b"\xff" * 100,
    b"\0" * 10_000,
    urlsafe_b64encode(b"i" * 300) + b" 5 flags=T Ym9keQ==",
]


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_a_hostile_line_is_counted_and_the_next_one_is_read(
    tmp_path: Path, target: Store, line: bytes
) -> None:
    assert parse_reference_message(line) is None
    root = tmp_path / "messages"
    queue = queue_with(root, 2)
    path = queue.journal_path(queue.read)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + second)
    # The state speaks of more bytes than it knew of: take all there is.
    queue.state_path.write_bytes(b"no state\n")
    report = imported(root, target)
    assert bodies(target, stream_id(1)) == numbers(1, 2)
    assert report.skipped_line_count == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"write= read= canWrite=T size=0",
        b"write=A,1,1,1,1 read=A,1,1,1,1 canWrite=X size=0",
        b"write=A,1,1,1,1 read=A,1,1,1,1 canWrite=T size=" + b"9" * 10_000,
        b"write=A,-1,1,1,1 read=A,1,1,1,1 canWrite=T size=0",
        b"write=../../x,1,1,1,1 read=A,1,1,1,1 canWrite=T size=0",
        b"write=A,2,1,1,1 read=A,1,1,1,1 canWrite=T size=0",
        b"write=A,1,1,5,5 read=A,0,1,9,5 canWrite=T size=1",
        b"write=A,1,1,1,1 read=A,0,1,0,1 canWrite=T size=2",
        b"\xff\xfe",
    ],
)
def test_a_hostile_state_line_is_none(line: bytes) -> None:
    assert parse_reference_state(line) is None


def test_huge_numbers_in_a_state_take_no_memory(tmp_path: Path, target: Store) -> None:
    queue = queue_with(tmp_path / "messages", 2)
    journal_id = queue.read.journal_id
    huge = 10**17
    queue.state_path.write_text(
        f"write={journal_id},{huge},{huge},{huge},{huge} read={journal_id},0,{huge},0,{huge} "
        f"canWrite=F size={huge}\n"
    )
    report = imported(tmp_path, target)
    assert bodies(target, stream_id(1))[:2] == numbers(1, 2)
    assert report.lost_entry_count == huge - 2


def test_a_very_long_line_is_skipped_in_bounded_memory(tmp_path: Path, target: Store) -> None:
    queue = queue_with(tmp_path / "messages", 1)
    path = queue.journal_path(queue.read)
    path.write_bytes(b"A" * 9_000_000 + b"\n" + path.read_bytes())
    queue.state_path.write_bytes(b"no state\n")
    report = imported(tmp_path, target)
    assert bodies(target, stream_id(1)) == [b"1"]
    assert report.skipped_line_count == 1


# Where it may go, and what it may come from.


def test_a_target_with_anything_in_it_is_refused(tmp_path: Path, target: Store) -> None:
    queue_with(tmp_path / "messages", 1)
    target.create(stream_id(9), StreamKind.QUEUE, 0, 1)
    with pytest.raises(ConfigError, match="new data folder"):
        imported(tmp_path, target)
    assert list(target.streams()) == [stream_id(9)]


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "other files"])
def test_a_source_without_a_journal_is_told(tmp_path: Path, target: Store, what: str) -> None:
    source = tmp_path / "source"
    if what != "nothing":
        source.mkdir()
    if what == "other files":
        (source / "ab").write_text("x")
        (source / "cd").mkdir()
    with pytest.raises(ForeignFolderError):
        imported(source, target)


def test_the_layout_is_found_out(tmp_path: Path, target: Store) -> None:
    queue_with(tmp_path / "messages", 3)
    for path in (tmp_path, tmp_path / "messages"):
        assert detect_layout(str(path), FILES) is SourceLayout.REFERENCE
    report = import_detected(str(tmp_path), target, FILES, now_ms=1)
    assert report.entry_count == 3


def test_a_missing_source_is_told(tmp_path: Path, target: Store) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        import_detected(str(tmp_path / "missing"), target, FILES, now_ms=1)
