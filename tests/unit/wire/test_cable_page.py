"""The examples on docs/formats/cable.md are what the codec reads and writes."""

import re

import pytest

from syncline.wire import cable, cable_payloads, yjs
from tests.cable_events import decode_event
from tests.documents import ROOT, section

PAGE = (ROOT / "docs" / "formats" / "cable.md").read_text(encoding="utf-8")
FROM_CLIENT, FROM_ROUTER = [
    block.encode().splitlines()
    for block in re.findall(r"```json\n(.*?)\n```", section(PAGE, "## Examples"), re.DOTALL)
]


@pytest.mark.parametrize("frame", FROM_CLIENT)
def test_examples_of_a_client(frame: bytes) -> None:
    command = cable.decode_command(frame)
    assert cable.encode(command) == frame
    assert not isinstance(command, cable.Pong)
    assert cable.read_identifier(command.identifier).name == "SyncChannel"
    if isinstance(command, cable.Perform):
        payload = cable_payloads.read_sent(command.data)
        if isinstance(payload, cable_payloads.FrameSent):
            assert yjs.encode(yjs.decode(payload.frame)) == payload.frame


@pytest.mark.parametrize("frame", FROM_ROUTER)
def test_examples_of_the_router(frame: bytes) -> None:
    event = decode_event(frame)
    assert cable.encode(event) == frame
    if isinstance(event, cable.Data):
        payload = cable_payloads.read(event.message)
        assert cable_payloads.encode(payload) == bytes(event.message)


def test_every_dialect_has_an_example() -> None:
    data = [cable.decode_command(frame) for frame in FROM_CLIENT]
    sent = [cable_payloads.read_sent(each.data) for each in data if isinstance(each, cable.Perform)]
    frames = [each for each in sent if isinstance(each, cable_payloads.FrameSent)]
    assert {(each.clock, each.number) for each in frames} == {(None, None), (1, None), (None, 42)}
    assert cable_payloads.UpdatesApplied(57) in sent


def test_an_id_is_one_of_its_channel() -> None:
    (subscribe,) = [frame for frame in FROM_CLIENT if b"history" in frame]
    command = cable.decode_command(subscribe)
    assert isinstance(command, cable.Subscribe)
    assert command.history is not None
    assert [*command.history.streams] == [cable.read_identifier(command.identifier).document]
