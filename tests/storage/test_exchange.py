"""Out of a store and into another: what comes back is what was there."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from syncline.errors import (
    ConfigError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    QuotaExceededError,
    StoreLockedError,
)
from syncline.storage.base import Snapshot, Store, StreamKind, commit
from syncline.storage.exchange import (
    ExchangeReport,
    SourceLayout,
    detect_layout,
    export_journal_layout,
    export_messages,
    import_detected,
    import_journal_layout,
    import_messages,
    transfer,
)
from syncline.storage.files import DiskFiles, Files
from syncline.storage.folder import read_format
from syncline.storage.journal.store import JournalStore
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.testing.observation import Observation, StreamView, observe
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.under_test import stream_id

FILES = DiskFiles()
OPTIONS = StoreOptions(
    segment_bytes=limits.segment_bytes_min,
    file_message_count_max=4,
    state_line_count_max=4,
    is_durable=False,
)
CLASSES: dict[str, type[MemoryStore] | type[JournalStore] | type[LogStore]] = {
    "memory": MemoryStore,
    "journal": JournalStore,
    "log": LogStore,
}


def opened(kind: str, folder: Path | str, files: Files = FILES) -> Store:
    return CLASSES[kind].open(
        str(folder), files, OPTIONS, now_ms=1, random_bytes=Random(str(folder)).randbytes
    )


def fill(store: Store) -> None:
    """Streams of every kind and in every state."""
    for number in range(6):
        store.create(stream_id(number), StreamKind.QUEUE, 3 if number < 4 else 0, 1)
    for number in range(1, 4):
        for message in range(number):
            store.append(stream_id(number), b"%d-%d" % (number, message), 100 + message)
    with pytest.raises(QuotaExceededError):
        store.append(stream_id(3), b"refused", 200)
    store.truncate_before(stream_id(2), 2)
    for message in range(11):
        store.append(stream_id(4), b"\n\0" * message, 300 + message)
    store.truncate_before(stream_id(4), 7)
    store.append(stream_id(5), b"all read", 1)
    store.truncate_before(stream_id(5), 2)
    document = stream_id(10)
    store.create(document, StreamKind.DOCUMENT, 0, 1)
    for message in range(9):
        store.append(document, b"update %d" % message, 400 + message)
    store.put_snapshot(document, 5, bytes(range(256)), 500)
    store.truncate_before(document, 6)
    store.move_cursor(document, b"reader", 6)
    store.move_cursor(document, b"\n\xff", 10)
    store.create(stream_id(11), StreamKind.DOCUMENT, 0, 1)
    store.put_snapshot(stream_id(11), 0, b"", 1)
    commit(store)


def read_on(store: Store) -> None:
    """The full queue was read in part: its marker waits behind one message."""
    store.truncate_before(stream_id(3), 3)
    commit(store)


def through_journal(store: Store, kind: str, tmp_path: Path) -> tuple[Store, ExchangeReport]:
    """Export to a data folder, then import that into another store."""
    folder = str(tmp_path / "exported")
    export_journal_layout(store, folder, FILES, OPTIONS, now_ms=1, random_bytes=Random(2).randbytes)
    target = opened(kind, tmp_path / "target")
    return target, import_journal_layout(folder, target, FILES, now_ms=1)


def through_file(store: Store, kind: str, tmp_path: Path) -> tuple[Store, ExchangeReport]:
    path = str(tmp_path / "messages.jsonl")
    export_messages(store, path, FILES)
    target = opened(kind, tmp_path / "target")
    return target, import_messages(path, target, FILES, now_ms=1)


WAYS: dict[str, Callable[[Store, str, Path], tuple[Store, ExchangeReport]]] = {
    "journal folder": through_journal,
    "messages file": through_file,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source_kind", CLASSES)
@pytest.mark.parametrize("target_kind", CLASSES)
@pytest.mark.parametrize("is_read_on", [False, True])
def test_what_was_exported_and_imported_is_equal(
    tmp_path: Path, way: str, source_kind: str, target_kind: str, is_read_on: bool
) -> None:
    source = opened(source_kind, tmp_path / "source")
    fill(source)
    if is_read_on:
        read_on(source)
    target, report = WAYS[way](source, target_kind, tmp_path)
    assert observe(target) == observe(source)
    assert report.stream_count == 8
    assert report.entry_count == sum(len(view.entries) for view in observe(source).streams.values())
    assert (report.skipped_line_count, report.lost_entry_count) == (0, 0)
    assert (report.damage, report.renumbered_stream_count) == ([], 0)
    for stream in (stream_id(0), stream_id(4), stream_id(10)):
        assert target.append(stream, b"next", 1) == source.append(stream, b"next", 1)
    source.close()
    target.close()


def test_an_exported_folder_is_opened_by_the_journal_store_as_it_is(tmp_path: Path) -> None:
    source = opened("memory", "source", SimulatedFiles())
    fill(source)
    folder = str(tmp_path / "exported")
    report = export_journal_layout(
        source, folder, FILES, OPTIONS, now_ms=1, random_bytes=Random(2).randbytes
    )
    exported = opened("journal", folder)
    assert observe(exported) == observe(source)
    assert exported.stats().stream_count == report.stream_count == 8
    assert (tmp_path / "exported" / "FORMAT").read_text().startswith("syncline journal 1 ")
    exported.close()


def test_an_export_may_have_another_depth(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    folder = str(tmp_path / "exported")
    deeper = dataclasses.replace(OPTIONS, path_fragment_count=4)
    export_journal_layout(source, folder, FILES, deeper, now_ms=1, random_bytes=Random(2).randbytes)
    name = str(stream_id(1))
    assert (tmp_path / "exported" / "messages" / name[:2] / name[2:4] / name[4:6]).is_dir()
    target = opened("memory", "target", SimulatedFiles())
    import_journal_layout(folder, target, FILES, now_ms=1)
    assert observe(target) == observe(source)
    source.close()


def test_only_what_is_durable_is_exported(tmp_path: Path) -> None:
    source = opened("memory", "source", SimulatedFiles())
    source.create(stream_id(1), StreamKind.QUEUE, 0, 1)
    source.append(stream_id(1), b"durable", 1)
    commit(source)
    source.append(stream_id(1), b"staged", 1)
    path = str(tmp_path / "messages.jsonl")
    assert export_messages(source, path, FILES).entry_count == 1


def test_a_folder_is_no_store_before_its_export_ended(tmp_path: Path) -> None:
    source = opened("memory", "source", SimulatedFiles())
    fill(source)
    folder = tmp_path / "exported"

    def cut_off(report: ExchangeReport) -> None:
        raise DeviceError(str(folder), "writing", "it was cut off")

    with pytest.raises(DeviceError):
        export_journal_layout(
            source, str(folder), FILES, OPTIONS, now_ms=1, random_bytes=Random(2).randbytes,
            progress=cut_off,
        )  # fmt: skip
    assert (folder / "messages").is_dir(), "some of it is there"
    for look in (
        lambda: opened("journal", folder),
        lambda: detect_layout(str(folder), FILES),
        lambda: read_format(str(folder), FILES),
    ):
        with pytest.raises(ForeignFolderError, match="cut short; remove it"):
            look()


# Sequences in a store that counts from 1 only.


def late_document(store: JournalStore, first: int) -> StreamId:
    document = stream_id(1)
    store.create_at(document, StreamKind.DOCUMENT, 0, first, 1)
    for number in range(3):
        store.append(document, b"%d" % number, 1)
    store.put_snapshot(document, first, b"state", 1)
    store.move_cursor(document, b"a", first - 1)
    store.move_cursor(document, b"b", first + 2)
    commit(store)
    return document


def test_a_stream_that_began_later_keeps_its_sequences_where_that_is_cheap(tmp_path: Path) -> None:
    source = JournalStore.open(
        str(tmp_path / "source"), FILES, OPTIONS, now_ms=1, random_bytes=Random(1).randbytes
    )
    late_document(source, transfer._FILLER_COUNT_MAX + 1)
    target, report = through_file(source, "memory", tmp_path)
    assert observe(target) == observe(source)
    assert report.renumbered_stream_count == 0
    source.close()


def test_a_stream_that_began_much_later_is_counted_anew_as_a_whole(tmp_path: Path) -> None:
    first = 1_000_000_000
    source = JournalStore.open(
        str(tmp_path / "source"), FILES, OPTIONS, now_ms=1, random_bytes=Random(1).randbytes
    )
    document = late_document(source, first)
    target, report = through_file(source, "memory", tmp_path)
    assert report.renumbered_stream_count == 1
    assert [entry.seq for entry in target.read(document, 0, 10, 100)] == [1, 2, 3]
    assert target.snapshot(document) == Snapshot(1, 1, b"state")
    assert dict(target.cursors(document)) == {b"a": 0, b"b": 3}
    (tmp_path / "again").mkdir()
    exact, report = through_journal(source, "journal", tmp_path / "again")
    assert observe(exact) == observe(source)
    assert report.renumbered_stream_count == 0
    source.close()
    exact.close()


# Damage.


def without(view: StreamView, *seqs: int) -> StreamView:
    return dataclasses.replace(
        view, entries=[entry for entry in view.entries if entry.seq not in seqs]
    )


def test_a_damaged_message_is_left_behind_and_counted(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    before = observe(source)
    source.close()
    name = str(stream_id(4))
    folder = tmp_path / "source" / "messages" / name[:2] / name[2:4] / name[4:]
    [path] = [path for path in folder.glob("messages.*") if b"seq=9 " in path.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"seq=9 time_ms=308", b"seq=9 time_ms=300"))
    files = {path: path.read_bytes() for path in (tmp_path / "source").rglob("*.*")}

    target = opened("journal", tmp_path / "target")
    report = import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    assert report.lost_entry_count == 1
    assert [stream for stream, _ in report.damage] == [name]
    expected = dict(before.streams)
    expected[stream_id(4)] = without(expected[stream_id(4)], 9)
    assert observe(target).streams == expected
    assert {path: path.read_bytes() for path in files} == files, "the source is only read"
    target.close()


def test_a_damaged_snapshot_is_left_behind_and_told(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    before = observe(source)
    source.close()
    document = stream_id(10)
    snapshots = (tmp_path / "source").rglob("snapshot.*.bin")
    [path] = [path for path in snapshots if bytes(range(256)) in path.read_bytes()]
    path.write_bytes(path.read_bytes()[:-1])

    target = opened("journal", tmp_path / "target")
    report = import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    assert [stream for stream, _ in report.damage] == [str(document)]
    expected = dict(before.streams)
    expected[document] = dataclasses.replace(expected[document], snapshot=None)
    assert observe(target).streams == expected
    target.close()


def test_a_torn_source_is_imported_as_it_would_be_opened(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    before = observe(source)
    source.close()
    torn = 0
    for path in (tmp_path / "source").rglob("queue.log"):
        path.write_bytes(path.read_bytes() + b"read_file=torn")
        torn += 1
    assert torn == 8
    target = opened("memory", "target", SimulatedFiles())
    report = import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    assert observe(target) == before
    assert report.lost_entry_count == 0


def test_a_journal_caught_in_a_move_between_depths_is_read_from_both(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    before = observe(source)
    source.close()
    root = tmp_path / "source" / "messages"
    name = str(stream_id(1))
    (root / name[:2] / name[2:4] / name[4:]).rename(root / name)
    (tmp_path / "source" / "LAYOUT").write_text(
        "fragments=0 characters=2 from_fragments=2 from_characters=2\n"
    )
    target = opened("memory", "target", SimulatedFiles())
    import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    assert observe(target) == before


# Sources and targets that cannot be used.


def test_a_folder_in_use_is_not_imported(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    target = opened("memory", "target", SimulatedFiles())
    with pytest.raises(StoreLockedError):
        import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    source.close()


def test_other_folders_are_refused(tmp_path: Path) -> None:
    target = opened("memory", "target", SimulatedFiles())
    opened("journal", tmp_path / "source").close()
    line = (tmp_path / "source" / "FORMAT").read_text()
    for changed, error in (
        (line.replace("journal", "log"), ForeignFolderError),
        (line.replace(" 1 ", " 9 "), NewerFormatError),
    ):
        (tmp_path / "source" / "FORMAT").write_text(changed)
        with pytest.raises(error):
            import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    with pytest.raises(ForeignFolderError):
        import_journal_layout(str(tmp_path / "missing"), target, FILES, now_ms=1)


def test_an_export_never_writes_over_anything(tmp_path: Path) -> None:
    source = opened("memory", "source", SimulatedFiles())
    fill(source)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("used", "file"):
        with pytest.raises(ConfigError, match="new folder"):
            export_journal_layout(
                source,
                str(tmp_path / name),
                FILES,
                OPTIONS,
                now_ms=1,
                random_bytes=Random(2).randbytes,
            )
    with pytest.raises(ConfigError, match="new file"):
        export_messages(source, str(tmp_path / "file"), FILES)
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("way", WAYS)
def test_an_import_never_joins_what_is_there(tmp_path: Path, way: str) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    WAYS[way](source, "journal", tmp_path)[0].close()
    target = opened("journal", tmp_path / "target")
    before = observe(target)
    path = str(tmp_path / ("exported" if way == "journal folder" else "messages.jsonl"))
    with pytest.raises(ConfigError, match="new data folder"):
        import_detected(path, target, FILES, now_ms=1)
    assert observe(target) == before
    source.close()
    target.close()


def test_layouts_are_found_out(tmp_path: Path) -> None:
    source = opened("journal", tmp_path / "source")
    fill(source)
    expected = observe(source)
    export_messages(source, str(tmp_path / "messages.jsonl"), FILES)
    source.close()
    for name, layout in (
        ("source", SourceLayout.JOURNAL),
        ("messages.jsonl", SourceLayout.MESSAGES),
    ):
        assert detect_layout(str(tmp_path / name), FILES) is layout
        target = opened("memory", "target", SimulatedFiles())
        import_detected(str(tmp_path / name), target, FILES, now_ms=1)
        assert observe(target) == expected
    (tmp_path / "other").write_bytes(b"\0\xff")
    with pytest.raises(ConfigError, match="no file"):
        detect_layout(str(tmp_path / "other"), FILES)


# Memory.


def test_an_import_commits_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_COMMIT_BYTES", 50_000)
    source = opened("memory", "source", SimulatedFiles())
    source.create(stream_id(1), StreamKind.QUEUE, 0, 1)
    for _ in range(100):
        source.append(stream_id(1), b"x" * 5_000, 1)
    commit(source)
    most = 0
    counts: list[int] = []
    target = opened("journal", tmp_path / "target")
    path = str(tmp_path / "messages.jsonl")
    export_messages(source, path, FILES)

    def look(report: ExchangeReport) -> None:
        nonlocal most
        most = max(most, target.waiting_bytes)
        counts.append(report.entry_count)

    import_messages(path, target, FILES, now_ms=1, progress=look)
    assert most <= 60_000
    assert len(counts) > 5
    assert counts == sorted(counts)
    assert counts[-1] == 100
    target.close()


# Files of messages that somebody else wrote.

START = b'{"type":"syncline-messages","version":1}\n'
STREAM = (
    b'{"type":"stream","id":"%b","kind":"queue","quota":0,"first":1,"blocked":false,"messages":9}\n'
)
ENTRY = b'{"type":"entry","stream":"ID","seq":%d,"time_ms":5,"kind":"message","body":"eA=="}\n'
END = b'{"type":"end","streams":1,"entries":2}\n'


def import_text(tmp_path: Path, data: bytes) -> tuple[Observation, ExchangeReport]:
    path = tmp_path / "messages.jsonl"
    path.write_bytes(data.replace(b"ID", str(stream_id(1)).encode()))
    target = opened("memory", "target", SimulatedFiles())
    report = import_messages(str(path), target, FILES, now_ms=1)
    return observe(target), report


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{\n",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"type":"unknown"}\n',
        b'{"type":"entry"}\n',
        b'{"type":"entry","stream":"ID","seq":1,"time_ms":5,"kind":"message","body":"eA=="}\n',
        b'{"type":"entry","stream":"ID","seq":"2","time_ms":5,"kind":"message","body":"eA=="}\n',
        b'{"type":"entry","stream":"ID","seq":-1,"time_ms":5,"kind":"message","body":"eA=="}\n',
        b'{"type":"entry","stream":"ID","seq":1e300,"time_ms":5,"kind":"message","body":"eA=="}\n',
        b'{"type":"entry","stream":"ID","seq":'
        + b"9" * 10_000
        + b',"time_ms":5,"kind":"message","body":""}\n',
        b'{"type":"entry","stream":"ID","seq":2,"time_ms":5,"kind":"message","body":"!"}\n',
        b'{"type":"entry","stream":"ID","seq":2,"time_ms":5,"kind":"letter","body":""}\n',
        b'{"type":"entry","stream":"ID","seq":2,"time_ms":5,"kind":"message","body":"","more":1}\n',
        b'{"type":"entry","stream":"ID","seq":2,"time_ms":281474976710656,"kind":"message",'
        b'"body":""}\n',
        b'{"type":"snapshot","stream":"ID","up_to_seq":0,"time_ms":281474976710656,"body":""}\n',
        b'{"type":"snapshot","stream":"ID","up_to_seq":99,"time_ms":5,"body":""}\n',
        b'{"type":"cursor","stream":"ID","name":"eA==","seq":99}\n',
        b'{"type":"cursor","stream":"ID","name":"' + b"eHh4" * 30 + b'","seq":1}\n',
        b'{"type":"syncline-messages","version":1}\n',
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_the_rest_is_taken(
    tmp_path: Path, line: bytes
) -> None:
    name = str(stream_id(1)).encode()
    data = START + STREAM % name + ENTRY % 1 + line + ENTRY % 2 + END
    seen, report = import_text(tmp_path, data)
    assert [entry.seq for entry in seen.streams[stream_id(1)].entries] == [1, 2]
    assert report.skipped_line_count == 1
    assert [stream for stream, _ in report.damage] == [str(stream_id(1))]


@pytest.mark.parametrize(
    "line",
    [
        STREAM % b"too short",
        STREAM % (b"!" * 32),
        (STREAM % str(stream_id(2)).encode()).replace(b'"quota":0', b'"quota":70000'),
        (STREAM % str(stream_id(2)).encode()).replace(b'"first":1', b'"first":0'),
        (STREAM % str(stream_id(2)).encode())
        .replace(b'"queue"', b'"document"')
        .replace(b'"quota":0', b'"quota":5'),
        STREAM % str(stream_id(1)).encode(),
    ],
)
def test_a_stream_that_cannot_be_made_is_skipped_with_its_entries(
    tmp_path: Path, line: bytes
) -> None:
    name = str(stream_id(1)).encode()
    entries = (ENTRY % 1 + ENTRY % 2).replace(b"ID", str(stream_id(2)).encode())
    data = START + STREAM % name + ENTRY % 1 + line + entries + END
    seen, report = import_text(tmp_path, data)
    assert list(seen.streams) == [stream_id(1)]
    assert [entry.seq for entry in seen.streams[stream_id(1)].entries] == [1]
    assert report.skipped_line_count == 3


@pytest.mark.parametrize("kind", CLASSES)
def test_the_latest_time_fits_into_every_store(tmp_path: Path, kind: str) -> None:
    late = (ENTRY % 1).replace(b'"time_ms":5', b'"time_ms":%d' % limits.time_ms_max)
    text = START + STREAM % str(stream_id(1)).encode() + late + ENTRY % 2 + END
    path = tmp_path / "messages.jsonl"
    path.write_bytes(text.replace(b"ID", str(stream_id(1)).encode()))
    target = opened(kind, tmp_path / "target")
    assert import_messages(str(path), target, FILES, now_ms=1).is_whole
    [entry, _] = observe(target).streams[stream_id(1)].entries
    assert entry.time_ms == limits.time_ms_max
    target.close()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_time_of_another_store_that_is_too_late_is_counted(tmp_path: Path, kind: str) -> None:
    source = opened("journal", tmp_path / "source")
    document = stream_id(1)
    source.create(document, StreamKind.DOCUMENT, 0, 1)
    source.append(document, b"in time", 1)
    source.append(document, b"too late", limits.time_ms_max + 1)
    source.put_snapshot(document, 1, b"too late as well", limits.time_ms_max + 1)
    commit(source)
    source.close()
    target = opened(kind, tmp_path / "target")
    report = import_journal_layout(str(tmp_path / "source"), target, FILES, now_ms=1)
    assert (report.entry_count, report.skipped_line_count, report.is_whole) == (1, 2, False)
    target.close()


def test_an_export_without_a_folder_to_be_in_is_refused(tmp_path: Path) -> None:
    source = opened("memory", "source", SimulatedFiles())
    path = str(tmp_path / "missing" / "messages.jsonl")
    with pytest.raises(ConfigError, match=r"there is no folder .*missing; make that first"):
        export_messages(source, path, FILES)


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    data = START + STREAM % str(stream_id(1)).encode() + ENTRY % 1 + ENTRY % 2
    for cut in (0, 1, 10):
        seen, report = import_text(tmp_path, data[: len(data) - cut])
        assert len(seen.streams[stream_id(1)].entries) == (2 if cut == 0 else 1)
        assert str(tmp_path / "messages.jsonl") in [stream for stream, _ in report.damage]


def test_what_follows_an_unreadable_stream_line_is_told_with_the_name_it_gives(
    tmp_path: Path,
) -> None:
    name = str(stream_id(1))
    data = START + b"{\n" + ENTRY % 1 + ENTRY % 2 + END
    seen, report = import_text(tmp_path, data)
    assert (seen.streams, report.skipped_line_count, report.lost_entry_count) == ({}, 3, 2)
    path = str(tmp_path / "messages.jsonl")
    assert [place for place, _ in report.damage] == [name, path]
    assert (report.damaged_stream_count, report.damaged_file_count) == (1, 1)
    assert not report.is_whole


def test_each_stream_that_was_not_begun_is_told(tmp_path: Path) -> None:
    other = (ENTRY % 1).replace(b"ID", str(stream_id(2)).encode())
    seen, report = import_text(tmp_path, START + ENTRY % 1 + ENTRY % 2 + other + END)
    assert (seen.streams, report.skipped_line_count) == ({}, 3)
    told = dict(report.damage)
    assert told[str(stream_id(1))] == "2 lines cannot be used"
    assert told[str(stream_id(2))] == "1 lines cannot be used"


def test_entries_that_are_missing_between_others_are_counted(tmp_path: Path) -> None:
    stream = STREAM % str(stream_id(1)).encode()
    seen, report = import_text(tmp_path, START + stream + ENTRY % 3 + ENTRY % 7 + END)
    assert len(seen.streams[stream_id(1)].entries) == 2
    assert report.lost_entry_count == 5
    assert report.damage == [(str(stream_id(1)), "5 entries are missing")]


@pytest.mark.parametrize(
    ("end", "lost_count"),
    [
        (b'{"type":"end","streams":1,"entries":5}\n', 3),
        (b'{"type":"end","streams":1,"entries":1}\n', 0),
        (b'{"type":"end","streams":4,"entries":2}\n', 0),
        (b'{"type":"end","streams":1,"entries":-2}\n', 0),
        (END + b"{}\n", 0),
    ],
)
def test_an_end_that_is_not_that_of_the_file_is_told(
    tmp_path: Path, end: bytes, lost_count: int
) -> None:
    stream = STREAM % str(stream_id(1)).encode()
    seen, report = import_text(tmp_path, START + stream + ENTRY % 1 + ENTRY % 2 + end)
    assert len(seen.streams[stream_id(1)].entries) == 2
    assert report.lost_entry_count == lost_count
    assert not report.is_whole


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\0" * 1_000, END, b'{"type":"end"}\n'])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigError, match="no file of exported messages"):
        import_text(tmp_path, data)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="version 2"):
        import_text(tmp_path, START.replace(b"1", b"2"))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    target = opened("memory", "target", SimulatedFiles())
    with pytest.raises(ConfigError, match="no file"):
        import_messages(str(tmp_path / "missing"), target, FILES, now_ms=1)


def test_a_marker_without_a_full_queue_before_it_is_skipped_where_it_has_no_place(
    tmp_path: Path,
) -> None:
    stream = STREAM.replace(b'"quota":0', b'"quota":3') % str(stream_id(1)).encode()
    marker = b'{"type":"entry","stream":"ID","seq":2,"time_ms":5,"kind":"quota","body":""}\n'
    seen, report = import_text(tmp_path, START + stream + ENTRY % 1 + marker + END)
    assert [entry.seq for entry in seen.streams[stream_id(1)].entries] == [1]
    assert report.skipped_line_count == 1


@pytest.mark.parametrize("kind", ["journal", "log", "memory"])
def test_messages_before_a_marker_stay_though_others_follow_it(tmp_path: Path, kind: str) -> None:
    """No store writes such a file: nothing follows a marker before all of it was read."""
    stream = STREAM.replace(b'"quota":0', b'"quota":2') % str(stream_id(1)).encode()
    marker = b'{"type":"entry","stream":"ID","seq":3,"time_ms":5,"kind":"quota","body":""}\n'
    text = START + stream + ENTRY % 1 + ENTRY % 2 + marker + ENTRY % 4 + END.replace(b"2}", b"4}")
    path = tmp_path / "messages.jsonl"
    path.write_bytes(text.replace(b"ID", str(stream_id(1)).encode()))
    files = SimulatedFiles()
    target = opened(kind, "/target", files)
    report = import_messages(str(path), target, FILES, now_ms=1)
    assert (report.entry_count, report.skipped_line_count) == (3, 1)
    target.close()
    view = observe(opened(kind, "/target", files)).streams[stream_id(1)]
    assert [entry.payload for entry in view.entries] == [b"x"] * 3
    assert not view.state.is_blocked
