"""The page on the log format tells the truth: its bytes are those of the code."""

import re
import struct
from collections.abc import Callable

import pytest

from syncline.storage.log import format as log_format
from syncline.storage.log.format import RecordKind
from syncline.storage.log.manifest import Manifest, ManifestState
from syncline.storage.log.run_writer import write_run
from syncline.storage.log.runs import Run
from syncline.storage.log.scan import WholeBatch, batches, records_of
from syncline.testing.files import SimulatedFiles
from syncline.values.events import EventKind, encode_event
from tests.documents import ROOT
from tests.log_files import put

PAGE = (ROOT / "docs" / "formats" / "log.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- (?:bytes|text): ([\w ]+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))

STREAM = bytes(range(24))
TIME_MS = 1_700_000_000_000
START = 65_536
CREATED_AT = START + log_format.BATCH_HEADER_BYTES
MESSAGE_AT = CREATED_AT + log_format.RECORD_HEADER_BYTES
PAYLOAD = b"hello"


def shown(name: str) -> bytes:
    """The bytes of a block: what stands before the remark on each line."""
    lines = BLOCKS[name].splitlines()
    return b"".join(bytes.fromhex(re.split(r" {2,}", line)[0]) for line in lines)


def create_record() -> tuple[bytes, int]:
    return log_format.encode_record(
        CREATED_AT, 1, RecordKind.CREATE, STREAM, 0, 0, TIME_MS, 128, b""
    )


def message_record() -> tuple[bytes, int]:
    head, crc = log_format.encode_record(
        MESSAGE_AT, 1, RecordKind.MESSAGE, STREAM, 1, 1, TIME_MS, 128, PAYLOAD
    )
    return head + PAYLOAD, crc


def batch_header() -> bytes:
    (create, _), (message, _) = create_record(), message_record()
    header, _ = log_format.encode_batch_header(1, 1, START, TIME_MS, 2, [create, message], 0)
    return header


def run_file() -> bytes:
    files = SimulatedFiles()
    key = log_format.run_key(STREAM, log_format.CLASS_ENTRY, 1)
    write_run(files, "/run", [(key, MESSAGE_AT, TIME_MS, RecordKind.MESSAGE, PAYLOAD)])
    return files.read_all("/run")


def search_of_a_slot() -> bytes:
    key = log_format.slot_key(log_format.NO_TABLE_KEY)
    index = log_format.slot_index(STREAM, 1024, key)
    return log_format.NO_TABLE_KEY + struct.pack("<8Q", *key, index)


ENCODED: dict[str, Callable[[], bytes]] = {
    "batch header": batch_header,
    "create record": lambda: create_record()[0],
    "message record": lambda: message_record()[0],
    "acknowledgement row": lambda: log_format.ACK_ROW.pack(STREAM, 5 << 24 | 2),
    "event row": lambda: encode_event(EventKind.DELIVERED, TIME_MS, STREAM, 0x72, 1, 1),
    "cursors payload": lambda: log_format.encode_cursors({b"a": 3, b"bc": 5}),
    "table header": lambda: log_format.encode_table_header(1024, START + 4096, 1, 0, 1),
    "search of a slot": search_of_a_slot,
    "slot": lambda: log_format.encode_slot(STREAM, CREATED_AT, 1, 2, MESSAGE_AT, 128, 0, 1),
    "run": run_file,
}


def test_each_block_of_the_page_is_checked() -> None:
    assert set(BLOCKS) == {*ENCODED, "manifest line"}


@pytest.mark.parametrize("name", ENCODED)
def test_bytes_on_the_page_are_those_of_the_encoders(name: str) -> None:
    assert shown(name).hex(" ") == ENCODED[name]().hex(" ")


def test_the_batch_on_the_page_is_read() -> None:
    data = shown("batch header") + shown("create record") + shown("message record")
    data = data.ljust(8192, b"\0")
    first, *_ = batches(data, START, None)
    assert isinstance(first, WholeBatch)
    assert (first.header.number, first.header.epoch) == (1, 1)
    assert [(record[0], record[1]) for record in records_of(data, START, first)] == [
        (CREATED_AT, RecordKind.CREATE),
        (MESSAGE_AT, RecordKind.MESSAGE),
    ]
    record = log_format.parse_record(data, MESSAGE_AT - START, len(data), MESSAGE_AT, 1)
    assert record is not None
    assert (record.last_seq, record.unread_count) == (1, 1)
    assert (record.time_ms, record.quota, record.payload) == (TIME_MS, 128, PAYLOAD)


def test_the_rest_of_the_page_is_read() -> None:
    assert list(log_format.ack_rows(shown("acknowledgement row"))) == [(STREAM, 5, 2)]
    assert log_format.parse_cursors(shown("cursors payload")) == {b"a": 3, b"bc": 5}
    header = log_format.parse_table_header(shown("table header"))
    assert header is not None
    assert (header.capacity, header.applied, header.used_count) == (1024, 69_632, 1)
    slot = log_format.parse_slot(shown("slot"))
    assert slot is not None
    assert (slot.stream, slot.born, slot.first, slot.next) == (STREAM, CREATED_AT, 1, 2)


def test_the_run_on_the_page_is_read() -> None:
    files = SimulatedFiles()
    put(files, "/run", shown("run"))
    run = Run.open(files, "/run")
    (row,) = run.entries(STREAM, 1, 10)
    assert (row.seq, row.position, row.time_ms, run.payload(row)) == (
        1,
        MESSAGE_AT,
        TIME_MS,
        PAYLOAD,
    )
    assert run.verify() == []
    run.close()


def test_the_manifest_line_on_the_page_is_what_is_written_twice_and_read() -> None:
    state = ManifestState(
        format=log_format.FORMAT_VERSION,
        segment_bytes=START,
        epoch=1,
        oldest_segment=1,
        previous_number=0,
        previous_crc=0,
        previous_epoch=0,
        checkpoint=START,
        table_key=log_format.NO_TABLE_KEY.hex(),
        table_generations=[1],
    )
    files = SimulatedFiles()
    files.make_folder("/data")
    Manifest.create(files, "/data", state).close()
    assert files.read_all("/data/CURRENT") == b"MANIFEST.1\n"
    line = BLOCKS["manifest line"].encode("ascii")
    assert files.read_all("/data/MANIFEST.1") == (line + b"\n") * 2
    opened = Manifest.open(files, "/data")
    assert opened is not None
    assert opened.state == state
    opened.close()


def test_the_page_names_each_kind_by_its_number() -> None:
    tables = re.findall(r"^\| kind \|.*\n\|-.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    records, events = (
        {int(number): name for number, name in re.findall(r"\| (\d+) \| ([a-z ]+) \|", table)}
        for table in tables
    )
    assert records == {kind.value: kind.name.lower().replace("_", " ") for kind in RecordKind}
    assert events == {
        kind.value: {"RESENT": "sent again"}.get(kind.name, kind.name.lower()) for kind in EventKind
    }


# What the tables of the page say of each field, as the code has it.
LAYOUTS = {
    "### Batch header": log_format.BATCH_HEADER,
    "### Table header": struct.Struct(log_format.TABLE_HEADER.format + "I"),
    "### Slot": log_format.SLOT,
    "### Index row": struct.Struct("<24sQ" + log_format.RUN_ROW.format[1:]),
    "### Footer": struct.Struct(log_format.RUN_FOOTER.format + "I"),
}


@pytest.mark.parametrize("title", LAYOUTS)
def test_offsets_on_the_page_are_those_of_the_code(title: str) -> None:
    part = PAGE.partition(f"\n{title}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = [
        (int(offset), int(size))
        for offset, size in re.findall(r"^\| (\d+) \| (\d+) \|", part, re.MULTILINE)
    ]
    expected: list[tuple[int, int]] = []
    codes = re.findall(r"\d*[a-zA-Z]", LAYOUTS[title].format)
    for code in codes:
        size = struct.calcsize(f"<{code}")
        expected.append((sum(size for _, size in expected), size))
    assert rows == expected
