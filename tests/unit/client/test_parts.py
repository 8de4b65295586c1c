"""The small parts of the client: bounded buffers, the latest value, tokens, reasons of an end."""

import asyncio
import base64
import importlib
import json
from types import ModuleType
from typing import Any

import pytest

from syncline.client import DocumentStatus, Mutated, Replaced, YjsBinding, connect, yjs
from syncline.client.changes import ChangeReader
from syncline.client.closing import code_of_close, error_of
from syncline.client.latest import Latest
from syncline.client.link import sync_url
from syncline.client.messages import Identity
from syncline.client.outbox import Outbox
from syncline.client.tokens import RENEW_SECONDS_BEFORE, renewal_seconds
from syncline.core.replicas import Send
from syncline.errors import (
    ConfigError,
    LimitExceededError,
    LinkClosedError,
    MalformedMessageError,
    NotAuthorizedError,
    RefusedError,
    SynclineError,
    UnknownDocumentError,
)
from syncline.values.replica import Acknowledge, SendMutation, SendPresence

WHOLE = Replaced(9, {"all": True}, "missed")


def change(seq: int) -> Mutated:
    return Mutated(seq, "you", {"n": seq})


# ------------------------------------------------------------------------------------------ changes


async def test_changes_are_read_in_order() -> None:
    reader = ChangeReader(lambda: WHOLE, 4)
    reader.put(change(1))
    reader.put(change(2))
    assert [await anext(reader), await anext(reader)] == [change(1), change(2)]


async def test_one_change_too_many_and_the_reader_gets_the_state() -> None:
    reader = ChangeReader(lambda: WHOLE, 2)
    for seq in (1, 2, 3, 4):
        reader.put(change(seq))
    assert await anext(reader) == WHOLE
    reader.put(change(5))
    assert await anext(reader) == change(5)


async def test_a_reader_that_waits_is_woken() -> None:
    reader = ChangeReader(lambda: WHOLE, 2)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    reader.put(change(1))
    assert await waiting == change(1)


async def test_what_is_there_is_handed_out_before_the_end() -> None:
    reader = ChangeReader(lambda: WHOLE, 2)
    reader.put(change(1))
    reader.end()
    assert [found async for found in reader] == [change(1)]


async def test_an_end_with_an_error_raises_it() -> None:
    reader = ChangeReader(lambda: WHOLE, 2)
    reader.end(UnknownDocumentError("gone"))
    with pytest.raises(UnknownDocumentError, match="gone"):
        await anext(reader)


# ------------------------------------------------------------------------------------------- latest


async def test_a_slow_reader_gets_the_latest_value_only() -> None:
    latest = Latest(1)
    values = latest.values()
    assert await anext(values) == 1
    latest.set(2)
    latest.set(3)
    assert await anext(values) == 3
    waiting = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    latest.set(3)  # the same: nobody is woken
    await asyncio.sleep(0)
    assert not waiting.done()
    latest.set(4)
    assert await waiting == 4


async def test_a_value_that_will_do_is_waited_for() -> None:
    latest = Latest(1)
    waiting = asyncio.ensure_future(latest.until(lambda value: value > 2))
    for value in (2, 3):
        latest.set(value)
        await asyncio.sleep(0)
    assert await waiting == 3


# ------------------------------------------------------------------------------------------- outbox


async def test_a_later_acknowledgement_replaces_one_that_waits() -> None:
    outbox = Outbox()
    mutation = Send(SendMutation(1, 1, {}), "plan")
    outbox.put(Send(Acknowledge(1, 3), "plan"))
    outbox.put(mutation)
    outbox.put(Send(Acknowledge(1, 9), "plan"))
    outbox.put(Send(Acknowledge(1, 5), "other"))
    assert [(await outbox.take()) for _ in range(3)] == [
        Send(Acknowledge(1, 9), "plan"),
        mutation,
        Send(Acknowledge(1, 5), "other"),
    ]


async def test_presence_of_another_epoch_stays_apart() -> None:
    outbox = Outbox()
    for epoch, state in ((1, "a"), (1, "b"), (2, "c")):
        outbox.put(Send(SendPresence(epoch, state), "plan"))
    assert [(await outbox.take()).message for _ in range(2)] == [
        SendPresence(1, "b"),
        SendPresence(2, "c"),
    ]


async def test_an_outbox_is_bounded_and_tells_when_it_is_empty() -> None:
    outbox = Outbox(count_max=1)
    outbox.put(Send(SendMutation(1, 1, {}), "plan"))
    with pytest.raises(LimitExceededError, match="messages to be sent"):
        outbox.put(Send(SendMutation(1, 2, {}), "plan"))
    waiting = asyncio.ensure_future(outbox.until_empty())
    await outbox.take()
    await asyncio.sleep(0)
    assert not waiting.done()  # it is not with the socket yet
    outbox.written()
    await waiting


# ------------------------------------------------------------------------------------------- tokens


def jwt(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (jwt({"exp": 1_000 + 600}), 600 - RENEW_SECONDS_BEFORE),
        (jwt({"exp": 1_000 + 20}), 10.0),
        (jwt({"exp": 1_000.5}), 1.0),
        # Whoever has it in use has a clock that is wrong: it must not ask without end.
        (jwt({"exp": 1_000 - 5}), RENEW_SECONDS_BEFORE),
        (jwt({"exp": "soon"}), None),
        (jwt({}), None),
        (jwt([1]), None),
        ("opaque", None),
        ("a.%%%.c", None),
        ("a.\u00e9.c", None),
        (None, None),
    ],
)
def test_a_token_is_renewed_before_it_expires(token: str | None, expected: float | None) -> None:
    assert renewal_seconds(token, 1_000) == expected


def test_a_token_is_in_no_text_of_an_identity() -> None:
    assert "secret" not in repr(Identity("me", "clean", "secret"))


# ------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize(
    ("number", "reason", "expected"),
    [
        (1001, "going_away: the router stops", ("going_away", "the router stops")),
        (1008, "slow: it did not read", ("slow", "it did not read")),
        (4409, "", ("displaced", "")),
        (4401, "Token Expired: yes", ("unauthorized", "Token Expired: yes")),
        (1006, "", ("", "")),
        (1000, "bye: now", ("", "bye: now")),
        (None, "", ("", "")),
    ],
)
def test_a_close_frame_names_its_code(
    number: int | None, reason: str, expected: tuple[str, str]
) -> None:
    assert code_of_close(number, reason) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("forbidden", NotAuthorizedError),
        ("deleted", UnknownDocumentError),
        ("displaced", LinkClosedError),
        ("malformed", MalformedMessageError),
        ("something_new", RefusedError),
    ],
)
def test_a_code_becomes_an_error(code: str, expected: type[SynclineError]) -> None:
    error = error_of(code, "the reason")
    assert type(error) is expected
    assert "the reason" in str(error)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/sync"),
        ("https://example.com/", "wss://example.com/sync"),
        ("wss://example.com/there/sync?a=1", "wss://example.com/there/sync?a=1"),
    ],
)
def test_the_address_of_a_router_is_enough(url: str, expected: str) -> None:
    assert sync_url(url) == expected


# --------------------------------------------------------------------------------------------- yjs


async def test_a_yjs_document_without_pycrdt_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    async with connect("ws://127.0.0.1:9") as client:
        with pytest.raises(ConfigError, match="pycrdt; install it"):
            client.document("notes", "yjs")


async def test_an_edit_that_cannot_be_sent_is_raised_by_the_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pycrdt: Any = yjs._pycrdt()
    doc = pycrdt.Doc()
    async with (
        connect("ws://127.0.0.1:9") as client,
        client.document("notes", "yjs", wait=False) as document,
    ):
        assert document.status is DocumentStatus.CONNECTING

        def refuse(_: object) -> None:
            raise NotAuthorizedError("only reading")

        monkeypatch.setattr(document, "change", refuse)
        with pytest.raises(NotAuthorizedError, match="only reading"), YjsBinding(document, doc):
            doc.get("text", type=pycrdt.Text).insert(0, "x")
