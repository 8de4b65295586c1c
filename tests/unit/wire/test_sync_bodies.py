"""Bodies by kind and encoding: the same bytes inside, whatever they travelled in."""

from typing import get_args

import msgspec
import pytest
from msgspec import Raw

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire import sync_bodies
from syncline.wire.sync_bodies import Encoding

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
PATCH = b'{"n":{"x":1,"y":-2.5,"t":"\xc3\xa9","gone":null,"on":true,"l":[1,{}]}}'


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("kind", "body"), [(Kind.JSON, PATCH), (Kind.YJS, b"\0\0"), (Kind.BYTES, bytes(range(256)))]
)
def test_a_mutation_comes_back(kind: Kind, body: bytes, encoding: Encoding) -> None:
    raw = sync_bodies.write_mutation(body, kind, encoding)
    assert sync_bodies.read_mutation(raw, kind, encoding) == body


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.JSON, PATCH),
        (Kind.JSON, b"null"),
        (Kind.YJS, b"\0\0"),
        (Kind.BYTES, msgspec.msgpack.encode([b"", b"\xff" * 70_000, b"a"])),
        (Kind.BYTES, b"\x90"),
    ],
)
def test_a_state_comes_back(kind: Kind, body: bytes, encoding: Encoding) -> None:
    raw = sync_bodies.write_state(body, kind, encoding)
    assert sync_bodies.read_state(raw, kind, encoding) == body


def test_updates_of_a_state() -> None:
    assert sync_bodies.split_updates(msgspec.msgpack.encode([b"a", b""])) == [b"a", b""]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_presence_comes_back(encoding: Encoding) -> None:
    for body in (b"null", b'{"cursor":[3,4]}', b'"here"'):
        raw = sync_bodies.write_presence(body, encoding)
        assert sync_bodies.read_presence(raw, encoding) == body


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_presence_is_small(encoding: Encoding) -> None:
    most = b'"%b"' % (b"x" * (limits.presence_bytes_max - 2))
    assert sync_bodies.read_presence(sync_bodies.write_presence(most, encoding), encoding) == most
    more = sync_bodies.write_presence(b'"x' + most[1:], encoding)
    with pytest.raises(LimitExceededError, match="`state`"):
        sync_bodies.read_presence(more, encoding)


def test_json_text_is_kept_as_it_came() -> None:
    text = b'{ "b" : 1.50,\n "a":"\\u00e9" , "b":2 }'
    assert sync_bodies.read_mutation(Raw(text), Kind.JSON, "json") == text
    assert bytes(sync_bodies.write_mutation(text, Kind.JSON, "json")) == text


def test_what_each_encoding_carries() -> None:
    assert bytes(sync_bodies.write_mutation(b"\xfb\xff", Kind.YJS, "json")) == b'"+/8="'
    assert (
        bytes(sync_bodies.write_mutation(b"\xfb\xff", Kind.YJS, "msgpack")) == b"\xc4\x02\xfb\xff"
    )
    assert bytes(sync_bodies.write_mutation(b'{"a":1}', Kind.JSON, "msgpack")) == b"\x81\xa1a\x01"
    state = msgspec.msgpack.encode([b"\xfb\xff", b""])
    assert bytes(sync_bodies.write_state(state, Kind.BYTES, "json")) == b'["+/8=",""]'


@pytest.mark.parametrize(
    ("kind", "encoding", "raw"),
    [
        (Kind.JSON, "json", b"[1]"),
        (Kind.JSON, "json", b"null"),
        (Kind.JSON, "json", b'"{}"'),
        (Kind.JSON, "json", b'{"a":"\\ud800"}'),
        (Kind.JSON, "json", b'{"a":"\xff"}'),
        (Kind.JSON, "json", b'{"a":1e999}'),
        (Kind.JSON, "json", b'{"a":NaN}'),
        (Kind.JSON, "json", b'{"a":18446744073709551616}'),
        (Kind.JSON, "json", b'{"a":-9223372036854775809}'),
        (Kind.JSON, "json", b'{"a":%b}' % (b"9" * 5_000)),
        (Kind.JSON, "json", b"{" + b",".join([b'"a":[]'] * 65) + b',"b":18446744073709551616}'),
        (Kind.JSON, "json", b""),
        (Kind.JSON, "msgpack", b"\x90"),
        (Kind.JSON, "msgpack", b"\x81\x01\x02"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\x81\xc4\x01k\x02"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xc4\x01b"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xcb\x7f\xf8\0\0\0\0\0\0"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xca\x7f\x80\0\0"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xd4\x05\x00"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xd6\xff\0\0\0\0"),
        (Kind.JSON, "msgpack", b"\x81\xa1a\xa1\xff"),
        (Kind.JSON, "msgpack", b"\x81\x80\x01"),
        (Kind.JSON, "msgpack", b"\xdf\xff\xff\xff\xff"),
        (Kind.YJS, "json", b'"AA"'),
        (Kind.YJS, "json", b'"-_8="'),
        (Kind.YJS, "json", b'"AA =="'),
        (Kind.YJS, "json", b"{}"),
        (Kind.YJS, "json", b"[0,0]"),
        (Kind.YJS, "json", b'"\xff"'),
        (Kind.YJS, "msgpack", b"\xa2AA"),
        (Kind.BYTES, "json", b"null"),
        (Kind.BYTES, "msgpack", b"\x90"),
    ],
)
def test_no_mutation(kind: Kind, encoding: Encoding, raw: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="`mutation`"):
        sync_bodies.read_mutation(Raw(raw), kind, encoding)


@pytest.mark.parametrize(
    ("kind", "encoding", "raw"),
    [
        (Kind.JSON, "json", b"tru"),
        (Kind.YJS, "json", b"[]"),
        (Kind.BYTES, "json", b'"AA=="'),
        (Kind.BYTES, "json", b'["A"]'),
        (Kind.BYTES, "json", b'["\xff"]'),
        (Kind.BYTES, "msgpack", b"\x91\xa1a"),
        (Kind.BYTES, "msgpack", b"\xdd\xff\xff\xff\xff"),
    ],
)
def test_no_state(kind: Kind, encoding: Encoding, raw: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="`state`"):
        sync_bodies.read_state(Raw(raw), kind, encoding)


def nested(levels: int, inmost: bytes, encoding: Encoding) -> Raw:
    """A map around `levels - 1` lists around the inmost value."""
    if encoding == "json":
        return Raw(b'{"a":' + b"[" * (levels - 1) + inmost + b"]" * (levels - 1) + b"}")
    return Raw(b"\x81\xa1a" + b"\x91" * (levels - 1) + inmost)


@pytest.mark.parametrize(("encoding", "inmost"), [("json", b"0"), ("msgpack", b"\0")])
def test_nesting_has_an_end(encoding: Encoding, inmost: bytes) -> None:
    deepest = limits.json_depth_max
    sync_bodies.read_mutation(nested(deepest, inmost, encoding), Kind.JSON, encoding)
    for levels in (deepest + 1, 50_000):
        with pytest.raises(LimitExceededError, match="nesting of the field `mutation`"):
            sync_bodies.read_mutation(nested(levels, inmost, encoding), Kind.JSON, encoding)


def test_many_brackets_are_not_deep() -> None:
    wide = b'{"a":[' + b",".join([b"{}"] * 1_000) + b"]}"
    assert sync_bodies.read_mutation(Raw(wide), Kind.JSON, "json") == wide


def test_the_largest_integers_pass_both_ways() -> None:
    text = b'{"a":18446744073709551615,"b":-9223372036854775808}'
    raw = sync_bodies.write_mutation(text, Kind.JSON, "msgpack")
    assert sync_bodies.read_mutation(raw, Kind.JSON, "msgpack") == text
    assert sync_bodies.read_mutation(Raw(text), Kind.JSON, "json") == text


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        (b'{"a":18446744073709551615}', True),
        (b'{"a":-9223372036854775808}', True),
        (b'{"a":18446744073709551616}', False),
        (b'{"a":-9223372036854775809}', False),
        (b'{"a":"18446744073709551616"}', True),
        (b'{"a":1234567890123456789.5}', True),
    ],
)
def test_of_numbers_only_those_beyond_64_bits_are_refused(text: bytes, is_taken: bool) -> None:
    if is_taken:
        assert sync_bodies.read_patch(Raw(text), "json")[0] == text
    else:
        with pytest.raises(MalformedMessageError):
            sync_bodies.read_patch(Raw(text), "json")
