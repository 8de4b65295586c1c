"""Frames: what is built can be read by others, what others build is read, the rest is refused."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from syncline.server.frames import (
    BINARY,
    CLOSE,
    INVALID_TEXT,
    PING,
    PONG,
    PROTOCOL_VIOLATED,
    TEXT,
    TOO_LARGE,
    FrameReader,
    close_frame,
    frame,
    ping_frame,
    pong_frame,
    read_close,
)
from tests.unit.server.socket_rig import masked, masked_close

LIMIT = 1_000


def held_bytes(reader: FrameReader) -> int:
    """What it keeps of frames and messages that are not whole."""
    return len(reader._partial) + len(reader._fragments)


def read(data: bytes, limit: int = LIMIT) -> tuple[list[tuple[int, bytes]], FrameReader]:
    reader = FrameReader(limit)
    return reader.feed(data), reader


def as_client_reads(data: bytes) -> list[Frame]:
    client = Protocol(Side.CLIENT)
    client.receive_data(data)
    return [event for event in client.events_received() if isinstance(event, Frame)]


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("is_text", [True, False])
def test_another_library_reads_our_frames(length: int, is_text: bool) -> None:
    (found,) = as_client_reads(frame(b"x" * length, is_text=is_text))
    assert (found.opcode, bytes(found.data)) == (
        Opcode.TEXT if is_text else Opcode.BINARY,
        b"x" * length,
    )
    assert (found.fin, found.rsv1) == (True, False)


def test_another_library_reads_our_control_frames() -> None:
    found = as_client_reads(ping_frame(b"p") + pong_frame(b"q") + close_frame(4409, "displaced"))
    assert [(each.opcode, bytes(each.data)) for each in found] == [
        (Opcode.PING, b"p"),
        (Opcode.PONG, b"q"),
        (Opcode.CLOSE, (4409).to_bytes(2, "big") + b"displaced"),
    ]


def test_a_reason_is_cut_between_characters() -> None:
    payload = close_frame(1008, "ä" * 100)[2:]
    assert len(payload) == 2 + 122
    assert read_close(payload) == (1008, "ä" * 61)


def test_a_close_frame_may_be_empty() -> None:
    assert close_frame(1005) == b"\x88\x00"
    assert read_close(b"") == (1005, "")


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, LIMIT])
def test_a_message_is_unmasked(length: int) -> None:
    payload = random.Random(length).randbytes(length)
    found, reader = read(masked(payload))
    assert found == [(BINARY, payload)]
    assert (reader.violation, held_bytes(reader), reader.frame_count) == (None, 0, 1)


def test_a_message_of_64_bits_length_is_read() -> None:
    payload = random.Random(1).randbytes(70_000)
    assert read(masked(payload), 1 << 20)[0] == [(BINARY, payload)]


def test_fragments_are_joined_and_control_frames_pass_between_them() -> None:
    data = (
        masked("grü".encode()[:-1], 0x01)
        + masked(b"hello?", 0x89)
        + masked("grü".encode()[-1:], 0x00)
        + masked(b"", 0x00)
        + masked(b"", 0x8A)
        + masked(b"n", 0x80)
    )
    found, reader = read(data)
    assert found == [(PING, b"hello?"), (PONG, b""), (TEXT, "grün".encode())]
    assert (reader.violation, reader.frame_count, held_bytes(reader)) == (None, 6, 0)


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (b"\x82\x01x", PROTOCOL_VIOLATED, "must mask"),
        (masked(b"x", 0xC2), PROTOCOL_VIOLATED, "reserved bit"),
        (masked(b"x", 0xA2), PROTOCOL_VIOLATED, "reserved bit"),
        (masked(b"x", 0x92), PROTOCOL_VIOLATED, "reserved bit"),
        (masked(b"x", 0x83), PROTOCOL_VIOLATED, "opcode 3"),
        (masked(b"x", 0x8B), PROTOCOL_VIOLATED, "opcode 11"),
        (masked(b"x", 0x80), PROTOCOL_VIOLATED, "out of place"),
        (masked(b"x", 0x00), PROTOCOL_VIOLATED, "out of place"),
        (masked(b"x", 0x02) + masked(b"x"), PROTOCOL_VIOLATED, "out of place"),
        (masked(b"x", 0x09), PROTOCOL_VIOLATED, "in one piece"),
        (masked(b"x" * 126, 0x89), PROTOCOL_VIOLATED, "short"),
        (b"\x82\xfe\x00\x05aaaahello", PROTOCOL_VIOLATED, "longer than it is"),
        (b"\x82\xff" + (300).to_bytes(8, "big") + b"aaaa", PROTOCOL_VIOLATED, "longer"),
        (masked(b"x", 0x88), PROTOCOL_VIOLATED, "no proper code"),
        (masked_close(999), PROTOCOL_VIOLATED, "no proper code"),
        (masked_close(1005), PROTOCOL_VIOLATED, "no proper code"),
        (masked_close(1006), PROTOCOL_VIOLATED, "no proper code"),
        (masked_close(5000), PROTOCOL_VIOLATED, "no proper code"),
        (masked_close(1000, b"\xff"), INVALID_TEXT, "UTF-8"),
        (masked(b"\xff", 0x81), INVALID_TEXT, "UTF-8"),
        (masked(b"a", 0x01) + masked(b"\xc3", 0x80), INVALID_TEXT, "UTF-8"),
        # A surrogate, a longer way to write a slash, and past the last character.
        (masked(b"\xed\xa0\x80", 0x81), INVALID_TEXT, "UTF-8"),
        (masked(b"\xc0\xaf", 0x81), INVALID_TEXT, "UTF-8"),
        (masked(b"\xf4\x90\x80\x80", 0x81), INVALID_TEXT, "UTF-8"),
        (masked(b"x" * (LIMIT + 1)), TOO_LARGE, "1000 bytes"),
        (masked(b"x" * 600, 0x02) + masked(b"x" * 401, 0x80), TOO_LARGE, "1000 bytes"),
    ],
)
def test_what_breaks_the_rules_is_refused(data: bytes, code: int, reason: str) -> None:
    before = masked(b"before")
    found, reader = read(before + data + masked(b"behind"))
    assert (BINARY, b"behind") not in found
    assert found[0] == (BINARY, b"before")
    assert reader.violation is not None
    assert reader.violation.code == code
    assert reason in reader.violation.reason
    assert reader.feed(masked(b"later")) == []
    assert held_bytes(reader) == 0


def test_a_frame_that_announces_too_much_is_refused_before_it_comes() -> None:
    head = b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"mask"
    reader = FrameReader(LIMIT)
    for byte in head[:-1]:
        assert reader.feed(bytes((byte,))) == []
    assert reader.violation is None
    reader.feed(head[-1:])
    assert reader.violation is not None
    assert reader.violation.code == TOO_LARGE


def test_an_unmasked_frame_is_refused_at_its_second_byte() -> None:
    reader = FrameReader(LIMIT)
    assert reader.feed(b"\x82") == []
    assert reader.violation is None
    reader.feed(b"\x05")
    assert reader.violation is not None


def test_empty_fragments_without_end_are_not_kept() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(masked(b"", 0x02))
    for _ in range(1_000):
        assert reader.feed(masked(b"", 0x00)) == []
    assert (reader.violation, held_bytes(reader), reader.frame_count) == (None, 0, 1_001)


def test_fragments_are_kept_up_to_the_limit_only() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(masked(b"x" * 10, 0x02))
    for _ in range(1_000):
        reader.feed(masked(b"x" * 10, 0x00))
        assert held_bytes(reader) <= LIMIT
    assert reader.violation is not None
    assert reader.violation.code == TOO_LARGE


FRAMES = st.lists(
    st.tuples(
        st.sampled_from([0x81, 0x82, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8A, 0x88, 0xC2, 0x83]),
        st.binary(max_size=140) | st.text(max_size=60).map(str.encode),
    ),
    max_size=8,
)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_the_same_comes_out_however_it_is_cut(
    parts: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(masked(payload, first) for first, payload in parts)
    whole, whole_reader = read(data, 200)
    reader = FrameReader(200)
    found: list[tuple[int, bytes]] = []
    position = 0
    for index in range(len(data)):
        size = sizes[index % len(sizes)]
        found += reader.feed(data[position : position + size])
        position += size
    assert found == whole
    assert reader.violation == whole_reader.violation
    assert reader.frame_count == whole_reader.frame_count


def oracle(data: bytes, limit: int) -> tuple[list[tuple[int, bytes]], int | None]:
    """What another library makes of it: messages until a close frame, and its close code."""
    server = Protocol(Side.SERVER, max_size=limit)
    server.receive_data(data)
    found: list[tuple[int, bytes]] = []
    kept = b""
    opcode = 0
    for event in server.events_received():
        assert isinstance(event, Frame)
        if event.opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
            found.append((int(event.opcode), bytes(event.data)))
            continue
        opcode = int(event.opcode) or opcode
        kept += bytes(event.data)
        if event.fin:
            found.append((opcode, kept))
            kept = b""
    error = server.parser_exc
    code = None
    if error is not None and server.close_sent is not None:
        code = server.close_sent.code
    return found, code


@given(FRAMES)
@example([(0x02, bytes(105)), (0x81, bytes(105))])
def test_another_library_agrees(parts: list[tuple[int, bytes]]) -> None:
    data = b"".join(masked(payload, first) for first, payload in parts)
    expected, expected_code = oracle(data, 200)
    found, reader = read(data, 200)
    for index, (opcode, _) in enumerate(found):
        # The other one checks text when the application reads it, and stops at a close frame.
        if opcode == CLOSE:
            # Inside a message it does not show the close frame, but has seen it.
            assert found[: index + 1] == expected[: index + 1] or found[:index] == expected
            return
    code = None if reader.violation is None else reader.violation.code
    if code == INVALID_TEXT:
        assert found == expected[: len(found)]
        return
    assert found == expected
    if code == PROTOCOL_VIOLATED and expected_code == INVALID_TEXT:
        # A close frame that is wrong in two ways; either may be named.
        assert parts[reader.frame_count - 1][0] == 0x88
        return
    if code == PROTOCOL_VIOLATED and expected_code == TOO_LARGE:
        # A message begun inside of another, and too large with what came before: likewise.
        assert parts[reader.frame_count][0] & 0x0F in (1, 2)
        assert sum(len(each) for _, each in parts[: reader.frame_count + 1]) > 200
        return
    assert code == expected_code


def test_the_other_library_is_strict_enough_to_compare_with() -> None:
    assert oracle(masked(b"x", 0xC2), 200) == ([], PROTOCOL_VIOLATED)
    server = Protocol(Side.SERVER)
    server.receive_data(b"\x82\x01x")
    assert isinstance(server.parser_exc, ProtocolError)
