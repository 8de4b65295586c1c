"""What `document watch` does with changes and with a connection that goes away."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from syncline.cli.document_following import print_changes, tell_status
from syncline.cli.output import Output
from syncline.client import Change, ChangeReader, DocumentStatus, Mutated, Replaced
from syncline.errors import RetriesExhaustedError


def reader_of(*changes: Change) -> ChangeReader:
    reader = ChangeReader(lambda: Replaced(9, {"all": 1}, "missed"))
    for change in changes:
        reader.put(change)
    return reader


class LosingDocument:
    """Live, then lost, then given up."""

    async def statuses(self) -> AsyncIterator[DocumentStatus]:
        for status in (DocumentStatus.LIVE, DocumentStatus.CONNECTING, DocumentStatus.OFFLINE):
            yield status
            await asyncio.sleep(0)

    async def live(self) -> None:
        raise RetriesExhaustedError("the router cannot be reached")


async def test_a_router_that_is_gone_for_good_ends_the_watch(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader = reader_of(Mutated(1, "ann", {"a": 1}))
    document: Any = LosingDocument()
    await tell_status(Output(is_json=False), document, reader)
    assert capfd.readouterr().err == "the connection is lost; trying again\n"
    with pytest.raises(RetriesExhaustedError):
        await print_changes(Output(is_json=True), reader, None)
    assert json.loads(capfd.readouterr().out)["seq"] == 1, "what has come is still printed"


async def test_no_more_is_printed_than_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    reader = reader_of(*(Mutated(seq, "ann", {"a": seq}) for seq in (1, 2, 3)))
    await print_changes(Output(is_json=True), reader, 2)
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


async def test_a_state_in_place_of_changes_is_said_to_be_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    changes: list[Change] = [Replaced(7, {"a": 1}, "state"), Replaced(8, (b"\x00",), "missed")]
    await print_changes(Output(is_json=True), reader_of(*changes), 2)
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == [
        {"event": "replaced", "seq": 7, "reason": "state", "state": {"a": 1}},
        {"event": "replaced", "seq": 8, "reason": "missed", "state": ["AA=="]},
    ]
    await print_changes(Output(is_json=False), reader_of(*changes), 2)
    first, second = capfd.readouterr().out.splitlines()
    assert first.endswith('     7 the whole state (state) {"a":1}')
    assert second.endswith('     8 the whole state (missed) ["AA=="]')


async def test_a_line_for_people_is_short_and_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    reader = reader_of(Mutated(1, "ann", {"a": "\x9b" + "x" * 9_000}), Mutated(2, "ann", b"\xff"))
    await print_changes(Output(is_json=False), reader, 2)
    first, second = capfd.readouterr().out.splitlines()
    assert '{"a":"\\u009bxxx' in first
    assert len(first) < 500
    assert first.endswith("(9014 characters)")
    assert second.endswith("     2 ann /w==")
