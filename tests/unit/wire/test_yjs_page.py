"""The bytes on docs/formats/yjs.md are what the codec reads and writes."""

import re
from typing import get_args

import pytest
from pycrdt import get_state

from syncline.wire import awareness, yjs, yjs_updates
from syncline.wire.awareness import Entry
from tests.documents import ROOT, section

PAGE = (ROOT / "docs" / "formats" / "yjs.md").read_text(encoding="utf-8")
FRAMES = [
    bytes.fromhex(encoded)
    for encoded in re.findall(r"```hex\n(.*?)\n```", section(PAGE, "## Bytes"), re.DOTALL)
]


@pytest.mark.parametrize("data", FRAMES, ids=lambda data: data.hex())
def test_frames_come_back(data: bytes) -> None:
    assert yjs.encode(yjs.decode(data)) == data


def test_every_frame_has_an_example() -> None:
    assert {type(yjs.decode(data)) for data in FRAMES} == set(get_args(yjs.Frame))


def test_what_the_page_says_of_them() -> None:
    step_1, step_2, update, here, gone, denied, _ = map(yjs.decode, FRAMES)
    assert step_1 == yjs.SyncStep1(b"\x00")
    assert step_2 == yjs.SyncStep2(yjs_updates.EMPTY_UPDATE)
    assert isinstance(update, yjs.SyncUpdate)
    assert len(update.update) == 27
    yjs_updates.check_update(update.update)
    assert yjs_updates.decode_state_vector(get_state(update.update)) == {1000: 16}
    assert isinstance(here, yjs.AwarenessUpdate)
    assert awareness.decode(here.update) == [Entry(1, 1, b'{"u":1}')]
    assert isinstance(gone, yjs.AwarenessUpdate)
    assert awareness.decode(gone.update) == [Entry(1, 1, None)]
    assert denied == yjs.AuthDenied("no")
