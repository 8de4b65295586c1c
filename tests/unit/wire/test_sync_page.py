"""The examples on docs/formats/sync.md are what the codec reads and writes."""

import re
from typing import get_args

import pytest
from msgspec import Raw, structs

from syncline.values.kinds import Kind
from syncline.wire import sync, sync_bodies
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import (
    ClientMessage,
    Mutate,
    Mutation,
    Presence,
    ServerMessage,
    ShowPresence,
    State,
)
from tests.documents import ROOT, section

PAGE = (ROOT / "docs" / "formats" / "sync.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```json\n(.*?)\n```\n\n```hex\n(.*?)\n```", re.DOTALL)
KINDS = {"diagram": Kind.JSON, "notes": Kind.YJS, "tape": Kind.BYTES}


def examples(title: str) -> list[tuple[bytes, bytes]]:
    return [
        (text.encode(), bytes.fromhex(packed))
        for text, packed in EXAMPLE.findall(section(PAGE, title))
    ]


FROM_CLIENT = examples("### Examples: client to router")
FROM_ROUTER = examples("### Examples: router to client")


def bodies(message: ClientMessage | ServerMessage, encoding: Encoding) -> object:
    """What a message carries, read by the kind of its document."""
    match message:
        case Mutate(document=document, mutation=raw) | Mutation(document=document, mutation=raw):
            return sync_bodies.read_mutation(raw, KINDS[document], encoding)
        case State(document=document, state=raw):
            return sync_bodies.read_state(raw, KINDS[document], encoding)
        case ShowPresence(state=raw):
            return sync_bodies.read_presence(raw, encoding)
        case Presence(states=states):
            return {
                client: sync_bodies.read_presence(raw, encoding) for client, raw in states.items()
            }
        case _:
            return None


def envelope(message: ClientMessage | ServerMessage) -> dict[str, object]:
    """The fields of a message that are the same in both encodings."""
    fields = structs.asdict(message)
    fields.pop("states", None)
    return {name: value for name, value in fields.items() if not isinstance(value, Raw)}


@pytest.mark.parametrize(("text", "packed"), FROM_CLIENT, ids=lambda data: data[:40].hex())
def test_examples_of_a_client(text: bytes, packed: bytes) -> None:
    in_json, in_msgpack = sync.decode_client(text, "json"), sync.decode_client(packed, "msgpack")
    assert type(in_json) is type(in_msgpack)
    assert envelope(in_json) == envelope(in_msgpack)
    assert bodies(in_json, "json") == bodies(in_msgpack, "msgpack")
    assert sync.encode_client(in_json, "json") == text
    assert sync.encode_client(in_msgpack, "msgpack") == packed


@pytest.mark.parametrize(("text", "packed"), FROM_ROUTER, ids=lambda data: data[:40].hex())
def test_examples_of_the_router(text: bytes, packed: bytes) -> None:
    in_json, in_msgpack = sync.decode_server(text, "json"), sync.decode_server(packed, "msgpack")
    assert type(in_json) is type(in_msgpack)
    assert envelope(in_json) == envelope(in_msgpack)
    assert bodies(in_json, "json") == bodies(in_msgpack, "msgpack")
    assert sync.encode_server(in_json, "json") == text
    assert sync.encode_server(in_msgpack, "msgpack") == packed


def test_every_message_has_an_example() -> None:
    shown = {type(sync.decode_client(text, "json")) for text, _ in FROM_CLIENT}
    assert shown == set(get_args(ClientMessage))
    told = {type(sync.decode_server(text, "json")) for text, _ in FROM_ROUTER}
    assert told == set(get_args(ServerMessage))


def test_every_kind_of_document_has_an_example() -> None:
    states = [sync.decode_server(text, "json") for text, _ in FROM_ROUTER]
    assert {KINDS[each.document] for each in states if isinstance(each, State)} == set(Kind)


def test_every_message_stands_in_the_tables() -> None:
    for title, messages in (
        ("## Client to router", get_args(ClientMessage)),
        ("## Router to client", get_args(ServerMessage)),
    ):
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section(PAGE, title), re.MULTILINE))
        for message in messages:
            told = set(re.findall(r"`(\w+)`", rows.pop(message.__struct_config__.tag)))
            assert told == set(message.__struct_encode_fields__)
        assert rows == {}
