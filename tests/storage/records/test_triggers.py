"""Each trigger, and each part of one, is needed: without it somebody notices."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from syncline.errors import StorageError
from syncline.storage.records import schema
from tests.storage.records.under_test import RecordsUnderTest
from tests.storage.records.workload import contents, expected_contents, stage

BATCH_COUNT = 14


def triggers() -> dict[str, str]:
    statements = schema.MIGRATIONS[-1]
    found = [re.search(r"CREATE TRIGGER (\w+)", statement) for statement in statements]
    return {
        match[1]: statement
        for match, statement in zip(found, statements, strict=True)
        if match is not None
    }


def broken() -> Iterator[tuple[str, str, str]]:
    """What is broken, the name of the trigger, and what is put in its place."""
    for name, text in triggers().items():
        yield f"no {name}", name, ""
        for start, changes in re.findall(
            r"(UPDATE (?:digests|totals) SET )(.*?)(?: WHERE|;)", text
        ):
            parts = re.split(r", (?=\w+ = )", changes)
            for number, part in enumerate(parts):
                if len(parts) == 1:
                    continue
                rest = ", ".join(parts[:number] + parts[number + 1 :])
                lame = text.replace(start + changes, start + rest)
                yield f"{name} without {part.split(' ')[0]} {part[-40:]}", name, lame
        # One side alone.
        if name.endswith("association_changed"):
            for number, statement in enumerate(re.findall(r"UPDATE digests .*?;", text)):
                yield f"{name} without side {number}", name, text.replace(statement, "")
        if name == "notifier_association_changed":
            always = re.sub(r"WHEN .*?BEGIN", "BEGIN", text, flags=re.DOTALL)
            yield f"{name} at every update", name, always
    for name, statement in (
        ("queue_gone", "INSERT INTO deleted VALUES (OLD.recipient_id);"),
        ("service_made", "INSERT INTO digests (service) VALUES (NEW.number);"),
    ):
        yield f"{name} without {statement}", name, triggers()[name].replace(statement, "")


BROKEN = {what: (name, text) for what, name, text in broken()}


def run_all(under_test: RecordsUnderTest) -> None:
    expected = expected_contents(BATCH_COUNT)
    for number in range(BATCH_COUNT):
        stage(under_test.records, number)
        under_test.commit()
        assert contents(under_test.records, BATCH_COUNT) == expected[number + 1]


def test_the_batches_go_through_everything(stored: RecordsUnderTest) -> None:
    run_all(stored)
    assert stored.records.verify_digests() == []
    counts = stored.records.counts()
    assert (
        min(
            counts.queue_count,
            counts.notifier_count,
            counts.link_count,
            counts.association_count,
            counts.notifier_association_count,
            counts.service_count,
            counts.deleted_count,
        )
        > 0
    )


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_trigger_is_noticed(tmp_path: Path, what: str) -> None:
    name, text = BROKEN[what]
    assert text != triggers()[name], "nothing was broken"
    under_test = RecordsUnderTest("sqlite", tmp_path / "data")
    under_test.sqlite._writing.execute(f"DROP TRIGGER {name}")
    if text:
        under_test.sqlite._writing.execute(text)
    try:
        with pytest.raises((AssertionError, StorageError)):
            run_all(under_test)
    finally:
        under_test.end()


def of_service_gone() -> list[str]:
    """What it does beside counting. The writer has done all of it before, a part at a time."""
    return re.findall(r"^\s*(DELETE .*?;|UPDATE queues .*?;)", triggers()["service_gone"], re.M)


def delete_all_services(stored: RecordsUnderTest) -> None:
    """As a tool would that knows nothing of what hangs on them."""
    stored.sqlite._writing.execute("DELETE FROM services")


def test_a_service_that_a_tool_deletes_leaves_nothing_behind(stored: RecordsUnderTest) -> None:
    run_all(stored)
    assert len(of_service_gone()) == 3
    delete_all_services(stored)
    stored.reopen()
    assert stored.records.services() == []
    counts = stored.records.counts()
    assert (counts.service_count, counts.association_count) == (0, 0)
    assert counts.notifier_association_count == 0
    assert stored.records.verify_digests() == []


@pytest.mark.parametrize("statement", of_service_gone())
def test_a_tool_cannot_delete_a_service_without_what_hangs_on_it(
    tmp_path: Path, statement: str
) -> None:
    under_test = RecordsUnderTest("sqlite", tmp_path / "data")
    try:
        run_all(under_test)
        lame = triggers()["service_gone"].replace(statement, "")
        under_test.sqlite._writing.execute("DROP TRIGGER service_gone")
        under_test.sqlite._writing.execute(lame)
        with pytest.raises(sqlite3.IntegrityError):
            delete_all_services(under_test)
    finally:
        under_test.end()


def test_an_update_to_the_same_value_is_no_change(stored: RecordsUnderTest) -> None:
    """The writer names only what differs; whoever else writes may not."""
    run_all(stored)
    before = contents(stored.records, BATCH_COUNT)
    stored.sqlite._writing.execute(
        "UPDATE queues SET service = service, recipient_id = recipient_id, "
        "notifier_service = notifier_service, notifier_id = notifier_id, link_id = link_id"
    )
    stored.reopen()
    assert contents(stored.records, BATCH_COUNT) == before


def test_a_tool_without_the_hashes_cannot_change_a_set(stored: RecordsUnderTest) -> None:
    run_all(stored)
    before = contents(stored.records, BATCH_COUNT)
    with closing(sqlite3.connect(stored.folder / schema.FILE_NAME)) as tool:
        for statement in (
            "UPDATE queues SET service = NULL WHERE service NOTNULL",
            "DELETE FROM queues WHERE service NOTNULL",
            "DELETE FROM queues WHERE notifier_service NOTNULL",
        ):
            with pytest.raises(sqlite3.OperationalError, match="no such function"):
                tool.execute(statement)
        tool.rollback()
    assert contents(stored.records, BATCH_COUNT) == before
