"""Which words a version knows."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp.primitives import Reader
from syncline.wire.smp.words import Bare, Full, UnknownWordError, Vocabulary, rest, whole


def read_short(_version: int, reader: Reader) -> bytes:
    return reader.short()


WORDS = Vocabulary[object](
    bare=(Bare(b"ONE", 1), Bare(b"BOTH", "bare", 8, 10)),
    full=(Full(b"TWO", whole(read_short)), Full(b"BOTH", rest(bytes), 10)),
)


def test_a_word_alone_and_a_word_with_parameters() -> None:
    assert WORDS.read(6, b"ONE") == 1
    assert WORDS.read(6, b"TWO \x02 a") == b" a"


def test_a_word_may_change_its_form() -> None:
    for version, read in ((8, b"BOTH"), (9, b"BOTH"), (10, b"BOTH x"), (20, b"BOTH ")):
        assert WORDS.knows(version, read)
        WORDS.read(version, read)
    for version, read in ((9, b"BOTH x"), (10, b"BOTH")):
        with pytest.raises(MalformedMessageError) as refused:
            WORDS.read(version, read)
        assert not isinstance(refused.value, UnknownWordError)
    assert not WORDS.knows(7, b"BOTH")


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (5, b"ONE"),
        (21, b"ONE"),
        (6, b""),
        (6, b"THREE"),
        (7, b"BOTH"),
        (7, b"BOTH x"),
        (6, b"ONE\n"),
    ],
)
def test_an_unknown_word(version: int, data: bytes) -> None:
    with pytest.raises(UnknownWordError):
        WORDS.read(version, data)
    assert not WORDS.knows(version, data)


def test_parameters_are_read_to_the_end() -> None:
    with pytest.raises(MalformedMessageError, match="1 bytes follow"):
        WORDS.read(6, b"TWO \x00 ")
