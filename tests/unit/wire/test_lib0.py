"""The primitives of lib0, against its own bytes."""

import pytest
from pycrdt import Encoder

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire import lib0
from syncline.wire.lib0 import Reader


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "80 01"),
        (300, "ac 02"),
        ((1 << 53) - 1, "ff ff ff ff ff ff ff 0f"),
    ],
)
def test_var_uint(number: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert lib0.var_uint(number) == data
    assert Reader(data).var_uint() == number
    theirs = Encoder()
    theirs.write_var_uint(number)
    assert theirs.to_bytes() == data


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "41"),
        (63, "3f"),
        (64, "80 01"),
        (-64, "c0 01"),
        (8_191, "bf 7f"),
        ((1 << 53) - 1, "bf ff ff ff ff ff ff 1f"),
        (1 - (1 << 53), "ff ff ff ff ff ff ff 1f"),
    ],
)
def test_var_int(number: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert lib0.var_int(number) == data
    assert Reader(data).var_int() == number


def test_minus_zero_is_zero() -> None:
    assert Reader(b"\x40").var_int() == 0


def test_a_long_form_of_a_number_is_read() -> None:
    reader = Reader(bytes.fromhex("80 00 ff 80 80 80 80 80 80 00"))
    assert (reader.var_uint(), reader.var_uint(), reader.left) == (0, 127, 0)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "80",
        "ff ff ff ff ff ff ff",
        "ff ff ff ff ff ff ff 10",
        "80 80 80 80 80 80 80 80 00",
        "ff ff ff ff ff ff ff ff ff ff 01",
    ],
)
def test_no_number(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(MalformedMessageError, match=r"above 9007199254740991|ends in the middle"):
        Reader(data).var_uint()
    with pytest.raises(MalformedMessageError):
        Reader(data and data[:-1] + b"\xff").var_int()


def test_strings_count_bytes_not_characters() -> None:
    assert lib0.var_string("é") == bytes.fromhex("02 c3 a9")
    assert Reader(bytes.fromhex("02 c3 a9")).var_string() == "é"
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        Reader(bytes.fromhex("01 c3 a9")).var_string()
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        Reader(bytes.fromhex("03 ed a0 80")).var_string()


def test_byte_strings() -> None:
    long = bytes(300)
    assert lib0.var_bytes(long) == b"\xac\x02" + long
    reader = Reader(lib0.var_bytes(long) + lib0.var_bytes(b""))
    assert reader.var_bytes() == long
    assert reader.var_bytes() == b""
    reader.finish()


@pytest.mark.parametrize("encoded", ["02 00", "ff ff ff ff ff ff ff 0f 00"])
def test_a_length_does_not_pass_the_end(encoded: str) -> None:
    with pytest.raises(MalformedMessageError, match="announces"):
        Reader(bytes.fromhex(encoded)).var_bytes()


def test_a_count_is_not_above_what_is_left() -> None:
    assert Reader(b"\x02abcd").count(each_bytes_min=2) == 2
    with pytest.raises(MalformedMessageError, match="announces 3 things"):
        Reader(b"\x03abcd").count(each_bytes_min=2)


def test_what_is_left_is_reported() -> None:
    with pytest.raises(MalformedMessageError, match="2 bytes follow"):
        Reader(b"ab").finish()


# undefined, null, 300, 1.5 twice, a bigint, false, true, "é", {"a": [null]}, [], two bytes
ANY = (
    "7f 7e 7d ac 04 7c 3f c0 00 00 7b 3f f8 00 00 00 00 00 00 7a 00 00 00 00 00 00 00 01 79 78"
    "77 02 c3 a9 76 01 01 61 75 01 7e 75 00 74 02 00 ff"
)


def test_values_of_every_tag_are_passed_over() -> None:
    reader = Reader(bytes.fromhex(ANY))
    for _ in range(12):
        reader.skip_any()
    reader.finish()


@pytest.mark.parametrize("cut", range(len(bytes.fromhex(ANY))))
def test_values_do_not_pass_the_end(cut: int) -> None:
    reader = Reader(bytes.fromhex(ANY)[:cut])
    with pytest.raises(MalformedMessageError):  # noqa: PT012
        for _ in range(12):
            reader.skip_any()


def test_no_tag() -> None:
    for tag in (0, 115, 128):
        with pytest.raises(MalformedMessageError, match=f"{tag} is no tag"):
            Reader(bytes((tag, 0, 0))).skip_any()


def test_values_nest_to_a_depth() -> None:
    deepest = limits.json_depth_max
    Reader(b"\x75\x01" * deepest + b"\x7e").skip_any()
    for opening in (b"\x75\x01", b"\x76\x01\x00"):
        with pytest.raises(LimitExceededError, match="nesting"):
            Reader(opening * 5_000 + b"\x7e").skip_any()
    with pytest.raises(LimitExceededError, match="nesting"):
        Reader(b"\x75\x01" * (deepest + 1) + b"\x7e").skip_any()
