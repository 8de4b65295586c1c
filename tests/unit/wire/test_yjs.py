"""Frames of y-websocket, against bytes captured from its server and against pycrdt."""

import pytest
from pycrdt import Doc, Text, create_sync_message, create_update_message, handle_sync_message

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.wire import yjs
from syncline.wire.yjs import (
    AuthDenied,
    AwarenessUpdate,
    Frame,
    QueryAwareness,
    SyncStep1,
    SyncStep2,
    SyncUpdate,
)

INSERTED = bytes.fromhex("01 01 e8 07 00 04 01 01 74 10") + b"sixteen letters!" + b"\x00"

CAPTURED: list[tuple[str, Frame]] = [
    ("00 00 01 00", SyncStep1(b"\x00")),
    ("00 01 02 00 00", SyncStep2(b"\x00\x00")),
    ("00 02 1b " + INSERTED.hex(), SyncUpdate(INSERTED)),
    ("01 0b 01 01 01 07" + b'{"u":1}'.hex(), AwarenessUpdate(b'\x01\x01\x01\x07{"u":1}')),
    ("01 08 01 01 01 04" + b"null".hex(), AwarenessUpdate(b"\x01\x01\x01\x04null")),
    ("02 00 02 6e 6f", AuthDenied("no")),
    ("03", QueryAwareness()),
]


@pytest.mark.parametrize(("encoded", "frame"), CAPTURED)
def test_captured_frames(encoded: str, frame: Frame) -> None:
    data = bytes.fromhex(encoded)
    assert yjs.decode(data) == frame
    assert yjs.decode(memoryview(data)) == frame
    assert yjs.encode(frame) == data


def test_a_reason_is_text() -> None:
    assert yjs.decode(yjs.encode(AuthDenied("für dich nicht"))) == AuthDenied("für dich nicht")


def test_pycrdt_reads_and_writes_the_same() -> None:
    ours: Doc[Text] = Doc()
    ours["t"] = Text("hello")
    theirs: Doc[Text] = Doc()
    asked = yjs.decode(create_sync_message(theirs))
    assert asked == SyncStep1(theirs.get_state())
    handle_sync_message(yjs.encode(SyncStep2(ours.get_update(theirs.get_state())))[1:], theirs)
    assert str(theirs.get("t", type=Text)) == "hello"
    update = ours.get_update()
    assert yjs.decode(create_update_message(update)) == SyncUpdate(update)
    assert yjs.encode(SyncUpdate(update)) == create_update_message(update)


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        ("", "ends in the middle"),
        ("00", "ends in the middle"),
        ("00 03 00", "3 is no step"),
        ("00 00 02 00", "announces 2 bytes"),
        ("00 00 01 00 00", "1 bytes follow"),
        ("01 ff ff ff ff ff ff ff 0f", "announces"),
        ("02 01 00", "permission denied"),
        ("02 00 01 ff", "UTF-8"),
        ("03 00", "1 bytes follow"),
        ("04", "4 is no type"),
        ("ff ff ff ff ff ff ff ff", "above"),
    ],
)
def test_no_frame(encoded: str, said: str) -> None:
    with pytest.raises(MalformedMessageError, match=said):
        yjs.decode(bytes.fromhex(encoded))


def test_a_frame_has_a_largest_size() -> None:
    data = bytes.fromhex("00 01 02 00 00")
    yjs.decode(data, bytes_max=5)
    with pytest.raises(LimitExceededError):
        yjs.decode(data, bytes_max=4)
