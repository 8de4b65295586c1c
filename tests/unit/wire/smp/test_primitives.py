"""The primitives of SMP, byte for byte."""

from collections.abc import Callable

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp import primitives
from syncline.wire.smp.primitives import Reader


def test_numbers_are_big_endian() -> None:
    encoded = primitives.w16(0x0102) + primitives.w32(0x03040506) + primitives.i64(-2)
    assert encoded == bytes.fromhex("0102 03040506 fffffffffffffffe")
    reader = Reader(b"\xff" + encoded)
    assert (reader.u8(), reader.w16(), reader.w32(), reader.i64()) == (255, 0x0102, 0x03040506, -2)
    assert reader.at_end()


def test_strings_say_how_long_they_are() -> None:
    assert primitives.short(b"ab") == b"\x02ab"
    assert primitives.large(b"ab") == b"\x00\x02ab"
    reader = Reader(b"\x02ab\x00\x02cd\x00rest")
    assert (reader.short(), reader.large(), reader.short()) == (b"ab", b"cd", b"")
    assert reader.tail() == b"rest"
    assert reader.tail() == b""


def test_what_may_be_absent() -> None:
    assert primitives.maybe(None, primitives.short) == b"0"
    assert primitives.maybe(b"a", primitives.short) == b"1\x01a"
    # Empty is not absent.
    assert primitives.maybe(b"", primitives.short) == b"1\x00"
    reader = Reader(b"01\x01a1\x00")
    assert [reader.maybe(reader.short) for _ in range(3)] == [None, b"a", b""]


def test_flags() -> None:
    assert primitives.flag(True) + primitives.flag(False) == b"TF"
    reader = Reader(b"TF")
    assert (reader.flag(), reader.flag()) == (True, False)


def test_lists() -> None:
    assert primitives.items((b"a", b"bc")) == b"\x02abc"
    reader = Reader(b"\x02\x01a\x01b\x00")
    assert reader.some(reader.short) == (b"a", b"b")
    assert reader.items(reader.short) == ()


def test_a_list_that_may_not_be_empty_is_refused() -> None:
    reader = Reader(b"\x00")
    with pytest.raises(MalformedMessageError, match="empty"):
        reader.some(reader.short)


def test_the_next_byte_can_be_looked_at() -> None:
    reader = Reader(b"a")
    assert (reader.peek(), reader.u8(), reader.peek()) == (ord("a"), ord("a"), None)


def test_what_is_left_is_reported() -> None:
    reader = Reader(b"abc")
    reader.u8()
    assert reader.left == 2
    with pytest.raises(MalformedMessageError, match="2 bytes follow"):
        reader.finish()
    reader.tail()
    reader.finish()


READS: dict[str, tuple[bytes, Callable[[Reader], object]]] = {
    "u8": (b"a", Reader.u8),
    "w16": (b"ab", Reader.w16),
    "w32": (b"abcd", Reader.w32),
    "i64": (b"abcdefgh", Reader.i64),
    "short": (b"\x03abc", Reader.short),
    "large": (b"\x00\x03abc", Reader.large),
    "flag": (b"T", Reader.flag),
    "maybe": (b"1\x01a", lambda reader: reader.maybe(reader.short)),
    "some": (b"\x02\x01a\x01b", lambda reader: reader.some(reader.short)),
    "items": (b"\xff" + b"\x00" * 255, lambda reader: reader.items(reader.short)),
}


@pytest.mark.parametrize("name", READS)
def test_nothing_passes_the_end(name: str) -> None:
    whole, read = READS[name]
    read(Reader(whole))
    for cut in range(len(whole)):
        with pytest.raises(MalformedMessageError):
            read(Reader(whole[:cut]))


@pytest.mark.parametrize("byte", [b"t", b"0", b"1", b"\x00", b"\x01"])
def test_no_flag(byte: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="neither T nor F"):
        Reader(byte).flag()


@pytest.mark.parametrize("byte", [b"T", b"2", b"\x00", b"\x01"])
def test_neither_present_nor_absent(byte: bytes) -> None:
    reader = Reader(byte + b"\x00")
    with pytest.raises(MalformedMessageError, match="neither 0 nor 1"):
        reader.maybe(reader.short)


def test_what_does_not_fit_is_not_written() -> None:
    assert primitives.short(bytes(255))[0] == 255
    assert len(primitives.large(bytes(65_535))) == 65_537
    with pytest.raises(ValueError, match="255"):
        primitives.short(bytes(256))
    with pytest.raises(ValueError, match="65535"):
        primitives.large(bytes(65_536))
    with pytest.raises(ValueError, match="255"):
        primitives.items((b"",) * 256)
