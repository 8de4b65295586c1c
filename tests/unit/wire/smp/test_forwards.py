"""Forwarded commands: what is boxed for whom, to the byte."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.boxes import SecretBox, box, padded, shared_secret, x25519_public
from syncline.wire.smp.commands import Pfwd, Rfwd, encode_command
from syncline.wire.smp.forwards import (
    CONTENT_BYTES_MAX,
    Forward,
    ForwardAnswer,
    decode_forward,
    decode_forward_answer,
    encode_forward,
    encode_forward_answer,
    open_answer,
    open_command,
    seal_answer,
    seal_command,
)
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Pres, Rres, encode_message
from syncline.wire.smp.transmissions import TRANSMISSION_BYTES_MAX, encode_transmission

CORR_ID = bytes(range(0x40, 0x58))
SESSION_ID = bytes(range(32))
OWN, RELAYS = b"\x03" * 32, b"\x04" * 32
KEY = public_key_of(KeyKind.X25519, OWN)
SECRET = shared_secret(OWN, x25519_public(RELAYS))
BODY = bytes(16_242)


def test_both_sides_have_the_same_secret() -> None:
    assert shared_secret(RELAYS, KEY.raw) == SECRET


def test_a_forward_is_drawn_field_by_field() -> None:
    encoded = encode_forward(Forward(CORR_ID, 20, KEY, b"body"))
    assert encoded == b"\x18" + CORR_ID + b"\x00\x14" + b"\x2c" + KEY.encoded + b"body"
    assert encode_forward_answer(ForwardAnswer(CORR_ID, b"body")) == b"\x18" + CORR_ID + b"body"


def test_a_command_is_boxed_with_its_correlation_id_and_its_answer_with_that_reversed() -> None:
    content = b"content"
    boxed = SecretBox(SECRET)
    plain = padded(content, 16_226)
    assert seal_command(boxed, CORR_ID, content) == box(SECRET, CORR_ID, plain)
    assert seal_answer(boxed, CORR_ID, content) == box(SECRET, CORR_ID[::-1], plain)
    assert open_command(boxed, CORR_ID, seal_command(boxed, CORR_ID, content)) == content
    assert open_answer(boxed, CORR_ID, seal_answer(boxed, CORR_ID, content)) == content


def test_every_box_has_the_same_size() -> None:
    sizes = {
        len(seal(SecretBox(SECRET), CORR_ID, bytes(size)))
        for seal in (seal_command, seal_answer)
        for size in (0, 1, 1_000, CONTENT_BYTES_MAX)
    }
    assert sizes == {16_242}


def test_the_largest_of_everything_fits_into_a_block() -> None:
    forward = box(SECRET, CORR_ID, encode_forward(Forward(CORR_ID, 20, KEY, BODY)))
    answer = box(SECRET, CORR_ID, encode_forward_answer(ForwardAnswer(CORR_ID, BODY)))
    sizes = [
        len(encode_transmission(20, SESSION_ID, b"", None, CORR_ID, entity_id, body))
        for entity_id, body in (
            (SESSION_ID, encode_command(20, Pfwd(20, KEY, BODY))),
            (b"", encode_command(20, Rfwd(forward))),
            (b"", encode_message(20, Rres(answer))),
            (SESSION_ID, encode_message(20, Pres(BODY))),
        )
    ]
    assert max(sizes) == TRANSMISSION_BYTES_MAX - 1, "RFWD, which decides how much is padded"


@given(st.binary(max_size=255), st.integers(0, 65_535), st.binary(max_size=300))
def test_what_was_written_is_read(corr_id: bytes, version: int, body: bytes) -> None:
    forward = Forward(corr_id, version, KEY, body)
    assert decode_forward(encode_forward(forward)) == forward
    answer = ForwardAnswer(corr_id, body)
    assert decode_forward_answer(encode_forward_answer(answer)) == answer


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    with suppress(MalformedMessageError):
        assert encode_forward(decode_forward(data)) == data
    with suppress(MalformedMessageError):
        assert encode_forward_answer(decode_forward_answer(data)) == data


@given(st.binary(max_size=200))
def test_a_box_that_is_none_is_refused(data: bytes) -> None:
    for open_ in (open_command, open_answer):
        with pytest.raises(MalformedMessageError):
            open_(SecretBox(SECRET), CORR_ID, data)


def test_what_was_boxed_says_nothing_when_it_is_printed() -> None:
    assert "secret" not in repr(Forward(CORR_ID, 20, KEY, b"secret"))
    assert "secret" not in repr(ForwardAnswer(CORR_ID, b"secret"))
