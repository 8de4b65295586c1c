"""Messages of the router: which version is told what, and what a client refuses to read."""

from typing import get_args

import pytest

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.hellos import CertifiedKey, VersionRange
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Err,
    Ids,
    Info,
    Lnk,
    Msg,
    Nid,
    Nmsg,
    Ok,
    Pkey,
    Pong,
    Pres,
    Reca,
    Rname,
    RouterMessage,
    Rres,
    Sok,
    Soks,
    decode_message,
    encode_message,
)
from tests.unit.wire.smp.vectors import AA, AUTH_KEY, BB, CC, CORR_ID, DD, DH_KEY, EE, IDS_HASH

NEWEST = 20
CERTIFIED = CertifiedKey((b"leaf", b"identity"), b"signed")
IDS_HEAD = b"IDS \x18" + AA + b"\x18" + BB + b"\x2c" + DH_KEY.encoded

# Each message, with the first version that knows its word and its bytes in the newest.
EACH: list[tuple[RouterMessage, int, bytes]] = [
    (Ids(AA, BB, DH_KEY), 6, IDS_HEAD + b"0000"),
    (Sok(EE), 16, b"SOK 1\x18" + EE),
    (Soks(2, IDS_HASH), 16, b"SOKS " + bytes(7) + b"\x02\x10" + IDS_HASH),
    (Msg(CORR_ID, b" boxed"), 6, b"MSG \x18" + CORR_ID + b" boxed"),
    (Alls(), 16, b"ALLS"),
    (Nid(CC, DH_KEY), 6, b"NID \x18" + CC + b"\x2c" + DH_KEY.encoded),
    (Nmsg(CORR_ID, b"meta"), 6, b"NMSG " + CORR_ID + b"\x04meta"),
    (End(), 6, b"END"),
    (Ends(2, IDS_HASH), 16, b"ENDS " + bytes(7) + b"\x02\x10" + IDS_HASH),
    (Deld(), 10, b"DELD"),
    (Info(b'{"qiSnd":true}'), 6, b'INFO {"qiSnd":true}'),
    (Ok(), 6, b"OK"),
    (Err(failures.SYNTAX), 6, b"ERR CMD SYNTAX"),
    (Pong(), 6, b"PONG"),
    (Lnk(DD, b"fix", b"user"), 15, b"LNK \x18" + DD + b"\x00\x03fix\x00\x04user"),
    (
        Pkey(b"session", VersionRange(6, 20), CERTIFIED),
        8,
        b"PKEY \x07session\x00\x06\x00\x14\x02\x00\x04leaf\x00\x08identity\x00\x06signed",
    ),
    (Pres(b" boxed"), 8, b"PRES  boxed"),
    (Rres(b""), 8, b"RRES "),
    (Rname(b"{}"), 20, b"RNAME {}"),
]
NAMES = [type(message).__name__.upper() for message, _, _ in EACH]
SAME = [each for each in EACH if not isinstance(each[0], Ids | Soks | Ends)]


def test_every_message_is_here() -> None:
    # What only extended sessions know: test_extended.py.
    assert {type(message) for message, _, _ in EACH} == set(get_args(RouterMessage)) - {Reca}


@pytest.mark.parametrize(("message", "_since", "encoded"), EACH, ids=NAMES)
def test_a_message_in_the_newest_version(
    message: RouterMessage, _since: int, encoded: bytes
) -> None:
    assert encode_message(NEWEST, message) == encoded
    assert decode_message(NEWEST, encoded) == message


@pytest.mark.parametrize("version", range(6, 21))
def test_a_version_knows_what_came_with_it_and_before(version: int) -> None:
    for message, since, encoded in SAME:
        if version >= since:
            assert encode_message(version, message) == encoded
            assert decode_message(version, encoded) == message
        else:
            with pytest.raises(MalformedMessageError, match="does not know the word"):
                decode_message(version, encoded)


@pytest.mark.parametrize("version", range(6, 21))
def test_an_older_version_is_told_in_its_own_words(version: int) -> None:
    assert encode_message(version, Deld()) == (b"DELD" if version >= 10 else b"END")
    for sok, encoded in ((Sok(), b"SOK 0"), (Sok(EE), b"SOK 1\x18" + EE)):
        assert encode_message(version, sok) == (encoded if version >= 16 else b"OK")
    blocked = encode_message(version, Err(failures.blocked("content", 5)))
    if version >= 18:
        assert blocked == b'ERR BLOCKED reason=content,notice={"ttl":5}'
    else:
        assert blocked == (b"ERR BLOCKED reason=content" if version >= 12 else b"ERR AUTH")


@pytest.mark.parametrize("version", range(16, 21))
@pytest.mark.parametrize("kind", [Soks, Ends])
def test_the_hash_of_ids_is_told_from_19_on(version: int, kind: type[Soks | Ends]) -> None:
    word = kind.__name__.upper().encode()
    count = word + b" " + bytes(7) + b"\x02"
    with_hash = count + b"\x10" + IDS_HASH
    if version >= 19:
        assert encode_message(version, kind(2, IDS_HASH)) == with_hash
        assert decode_message(version, with_hash) == kind(2, IDS_HASH)
        with pytest.raises(MalformedMessageError):
            decode_message(version, count)
        with pytest.raises(ValueError, match="a hash of the ids"):
            encode_message(version, kind(2))
    else:
        assert encode_message(version, kind(2, IDS_HASH)) == count
        assert decode_message(version, count) == kind(2)
        with pytest.raises(MalformedMessageError):
            decode_message(version, with_hash)


@pytest.mark.parametrize("version", range(6, 21))
def test_ids_say_what_the_version_has_room_for(version: int) -> None:
    ids = Ids(AA, BB, DH_KEY, QueueMode.MESSAGING, CC, EE, Nid(DD, DH_KEY))
    if version >= 17:
        tail = b"1M1\x18" + CC + b"1\x18" + EE + b"1\x18" + DD + b"\x2c" + DH_KEY.encoded
        read = ids
    elif version == 16:
        tail = b"1M1\x18" + CC + b"1\x18" + EE
        read = Ids(AA, BB, DH_KEY, QueueMode.MESSAGING, CC, EE)
    elif version == 15:
        tail = b"1M1\x18" + CC
        read = Ids(AA, BB, DH_KEY, QueueMode.MESSAGING, CC)
    elif version >= 9:
        tail = b"T"
        read = Ids(AA, BB, DH_KEY, QueueMode.MESSAGING)
    else:
        tail = b""
        read = Ids(AA, BB, DH_KEY)
    assert encode_message(version, ids) == IDS_HEAD + tail
    assert decode_message(version, IDS_HEAD + tail) == read


@pytest.mark.parametrize("version", range(9, 21))
@pytest.mark.parametrize("mode", [None, *QueueMode])
def test_ids_say_the_mode(version: int, mode: QueueMode | None) -> None:
    encoded = encode_message(version, Ids(AA, BB, DH_KEY, mode))
    read = decode_message(version, encoded)
    assert isinstance(read, Ids)
    if version >= 15:
        assert read.mode is mode
    else:
        # A flag has no third state: what nobody asked for is not the sender's to secure.
        assert read.mode is (mode or QueueMode.CONTACT)


def test_a_plain_messaging_queue_ends_in_five_characters() -> None:
    assert encode_message(20, Ids(AA, BB, DH_KEY, QueueMode.MESSAGING)) == IDS_HEAD + b"1M000"


BOUNDED = [each for each in EACH if not isinstance(each[0], Msg | Info | Pres | Rres | Rname)]


@pytest.mark.parametrize(("_message", "_since", "encoded"), BOUNDED)
def test_trailing_bytes_are_refused(_message: RouterMessage, _since: int, encoded: bytes) -> None:
    for more in (b" ", b"0", b"\x00", b" 0"):
        with pytest.raises(MalformedMessageError):
            decode_message(NEWEST, encoded + more)


@pytest.mark.parametrize(("_message", "_since", "encoded"), EACH, ids=NAMES)
def test_a_message_that_is_cut_short_is_refused_or_another(
    _message: RouterMessage, _since: int, encoded: bytes
) -> None:
    for cut in range(len(encoded)):
        try:
            read = decode_message(NEWEST, encoded[:cut])
        except MalformedMessageError:
            continue
        # Either its last part is a body, or what is left is a message of its own: END of ENDS.
        assert isinstance(read, Msg | Info | Pres | Rname | End)
        assert encode_message(NEWEST, read) == encoded[:cut]


@pytest.mark.parametrize(
    "data", [b"", b" ", b"ok", b"OK ", b"HELLO", b"SUB", b"MSG", b"ERR", b"ERR "]
)
def test_no_message(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_message(NEWEST, data)


def test_a_version_that_is_not_spoken_has_no_messages() -> None:
    for version in (5, 21):
        with pytest.raises(MalformedMessageError, match="is not spoken"):
            decode_message(version, b"OK")


def test_a_mode_or_key_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="no known mode"):
        decode_message(NEWEST, IDS_HEAD + b"1X000")
    with pytest.raises(MalformedMessageError, match="no shared secret"):
        decode_message(NEWEST, b"NID \x18" + CC + b"\x2c" + AUTH_KEY.encoded)
    with pytest.raises(MalformedMessageError, match="versions from 7 to 6"):
        decode_message(NEWEST, b"PKEY \x00\x00\x07\x00\x06\x01\x00\x00\x00\x00")


def test_a_nonce_has_24_bytes() -> None:
    with pytest.raises(AssertionError):
        encode_message(NEWEST, Nmsg(b"short", b"meta"))
