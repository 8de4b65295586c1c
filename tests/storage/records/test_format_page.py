"""The page on the records tells the truth: its statements and values are those of the code."""

import re
import sqlite3
from contextlib import closing

from syncline.storage.records import schema
from syncline.storage.records.rows import digest_from_row, pack, unpack
from syncline.storage.records.schema import DIGEST_COLUMNS
from syncline.values.digests import digest_of
from syncline.values.ids import StreamId
from tests.documents import ROOT
from tests.storage.records.under_test import RecordsUnderTest, queue, sender_id, service, service_id

PAGE = (ROOT / "docs" / "formats" / "records.md").read_text(encoding="utf-8")
IDS = [StreamId(bytes(range(24))), StreamId(bytes(range(1, 25)))]


def block(name: str) -> str:
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def one_line(statement: str) -> str:
    return re.sub(r"\s+", " ", statement).strip()


def made(stored: RecordsUnderTest, kind: str) -> dict[str, str]:
    found = stored.sqlite._writing.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = ? AND sql NOTNULL", (kind,)
    )
    return {name: one_line(sql) for name, sql in found.fetchall()}


def test_the_statements_on_the_page_are_those_of_a_new_file(stored: RecordsUnderTest) -> None:
    shown = {one_line(each) for each in block("sql").split(";") if each.strip()}
    there = {*made(stored, "table").values(), *made(stored, "index").values()}
    assert shown == there


def test_the_triggers_on_the_page_are_those_of_a_new_file(stored: RecordsUnderTest) -> None:
    table = PAGE.partition("## Triggers")[2].partition("## Checks")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    shown = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert shown == set(made(stored, "trigger"))


def test_the_digest_on_the_page_is_that_of_the_code(stored: RecordsUnderTest) -> None:
    facts = dict(line.split(maxsplit=1) for line in block("digest").splitlines())
    row = tuple(int(facts[column]) for column in DIGEST_COLUMNS)
    digest = digest_of(IDS, 2)
    assert digest_from_row(row) == digest
    for name in ("xor_md5", "xor_xxh3", "sum128"):
        assert bytes.fromhex(facts[name]) == getattr(digest, name)

    stored.records.create_service(service(1))
    for number, each in enumerate(IDS):
        stored.records.create_queue(
            queue(number, recipient_id=each, sender_id=sender_id(number), service_id=service_id(1))
        )
    stored.commit()
    with closing(sqlite3.connect(stored.folder / schema.FILE_NAME)) as connection:
        kept = connection.execute(f"SELECT {', '.join(DIGEST_COLUMNS)} FROM digests").fetchone()
    assert kept == row
    assert stored.records.digest(service_id(1)) == digest


def test_the_list_on_the_page_is_that_of_the_code() -> None:
    shown = bytes.fromhex(block('list: "key", ""'))
    assert shown == pack([b"key", b""])
    assert unpack(shown) == (b"key", b"")


def test_the_marks_on_the_page_are_those_of_a_new_file(stored: RecordsUnderTest) -> None:
    writing = stored.sqlite._writing
    (application,) = writing.execute("PRAGMA application_id").fetchone()
    (version,) = writing.execute("PRAGMA user_version").fetchone()
    assert f"`application_id` is `{application:#x}`" in PAGE
    assert f"Version {version}." in PAGE
    assert application.to_bytes(4, "big") == b"SyRe"
