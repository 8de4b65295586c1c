"""Commands: which version knows which, what is refused and how, what each needs beside it."""

from typing import get_args

import pytest

from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import (
    Ack,
    Bus,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    NotifierKeys,
    Nsub,
    Nsubs,
    Off,
    Pfwd,
    Ping,
    Prxy,
    Que,
    Recq,
    Rfwd,
    Rkey,
    Rslv,
    Send,
    Skey,
    Sub,
    Subs,
    credentials_fault,
    decode_command,
    encode_command,
    role_of,
)
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.keys import KeyKind, PublicKey
from tests.unit.wire.smp.vectors import AA, AUTH_KEY, CC, DH_KEY, ED25519, IDS_HASH, X25519_04

NEWEST = 20
X448 = PublicKey(KeyKind.X448, bytes(56))
ED448 = PublicKey(KeyKind.ED448, bytes(57))
ADDRESS = RouterAddress(b"\x09" * 32, ("a.example",))

# Each command, with the first version that knows its word and its bytes in the newest.
EACH: list[tuple[Command, int, bytes]] = [
    (New(AUTH_KEY, DH_KEY), 6, bytes.fromhex(f"4e455720 2c{ED25519} 2c{X25519_04} 30 53 30 30")),
    (Sub(), 6, b"SUB"),
    (Subs(2, IDS_HASH), 16, b"SUBS " + bytes(7) + b"\x02\x10" + IDS_HASH),
    (Key(AUTH_KEY), 6, b"KEY \x2c" + AUTH_KEY.encoded),
    (Rkey((ED448,)), 6, b"RKEY \x01\x45" + ED448.encoded),
    (
        Nkey(NotifierKeys(AUTH_KEY, DH_KEY)),
        6,
        b"NKEY \x2c" + AUTH_KEY.encoded + b"\x2c" + DH_KEY.encoded,
    ),
    (Ndel(), 6, b"NDEL"),
    (Get(), 6, b"GET"),
    (Ack(AA), 6, b"ACK \x18" + AA),
    (Off(), 6, b"OFF"),
    (Del(), 6, b"DEL"),
    (Que(), 6, b"QUE"),
    (Skey(DH_KEY), 9, b"SKEY \x2c" + DH_KEY.encoded),
    (Send(b"F", b"hello you"), 6, b"SEND F hello you"),
    (Nsub(), 6, b"NSUB"),
    (Nsubs(-1, IDS_HASH), 16, b"NSUBS " + b"\xff" * 8 + b"\x10" + IDS_HASH),
    (Ping(), 6, b"PING"),
    (Lset(CC, b"fix", b"user"), 15, b"LSET \x18" + CC + b"\x00\x03fix\x00\x04user"),
    (Ldel(), 15, b"LDEL"),
    (Lkey(AUTH_KEY), 15, b"LKEY \x2c" + AUTH_KEY.encoded),
    (Lget(), 15, b"LGET"),
    (Prxy(ADDRESS), 8, b"PRXY \x01\x09a.example\x045223\x20" + b"\x09" * 32 + b"0"),
    (Pfwd(19, DH_KEY, b"boxed"), 8, b"PFWD \x00\x13\x2c" + DH_KEY.encoded + b"boxed"),
    (Rfwd(b" boxed"), 8, b"RFWD  boxed"),
    (Rslv("a.example"), 20, b"RSLV a.example"),
]
NAMES = [type(command).__name__.upper() for command, _, _ in EACH]
# As they look in every version, SUBS and NSUBS and NEW aside.
SAME = [each for each in EACH if not isinstance(each[0], New | Subs | Nsubs)]


def refusal(version: int, data: bytes) -> Failure:
    with pytest.raises(FailureError) as refused:
        decode_command(version, data)
    return refused.value.failure


def test_every_command_is_here() -> None:
    # What only extended sessions know: test_extended.py.
    assert {type(command) for command, _, _ in EACH} == set(get_args(Command)) - {Recq, Bus}
    assert len(NAMES) == 25


@pytest.mark.parametrize(("command", "_since", "encoded"), EACH, ids=NAMES)
def test_a_command_in_the_newest_version(command: Command, _since: int, encoded: bytes) -> None:
    assert encode_command(NEWEST, command) == encoded
    assert decode_command(NEWEST, encoded) == command


@pytest.mark.parametrize("version", range(6, 21))
def test_a_version_knows_what_came_with_it_and_before(version: int) -> None:
    for command, since, encoded in SAME:
        if version >= since:
            assert encode_command(version, command) == encoded
            assert decode_command(version, encoded) == command
        else:
            assert refusal(version, encoded) == failures.UNKNOWN
            with pytest.raises(ValueError, match=f"version {version} has no"):
                encode_command(version, command)


@pytest.mark.parametrize("version", range(6, 21))
@pytest.mark.parametrize("kind", [Subs, Nsubs])
def test_a_service_says_what_it_has_from_19_on(version: int, kind: type[Subs | Nsubs]) -> None:
    word = kind.__name__.upper().encode()
    with_digest = word + b" " + bytes(7) + b"\x02\x10" + IDS_HASH
    if version >= 19:
        assert decode_command(version, with_digest) == kind(2, IDS_HASH)
        assert encode_command(version, kind(2, IDS_HASH)) == with_digest
        assert refusal(version, word) == failures.SYNTAX
        with pytest.raises(ValueError, match="a count and a hash"):
            encode_command(version, kind())
    elif version >= 16:
        assert decode_command(version, word) == kind()
        # What it has is left out, not refused.
        assert encode_command(version, kind(2, IDS_HASH)) == word
        assert refusal(version, with_digest) == failures.SYNTAX
    else:
        assert refusal(version, word) == refusal(version, with_digest) == failures.UNKNOWN
        with pytest.raises(ValueError, match="has no"):
            encode_command(version, kind())


def test_a_hash_of_another_length_is_taken() -> None:
    assert decode_command(19, b"SUBS " + bytes(8) + b"\x00") == Subs(0, b"")
    assert decode_command(19, b"SUBS " + bytes(8) + b"\x03abc") == Subs(0, b"abc")


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"sub", b"Sub", b"SUBX", b"SU", b"SUB\n", b"HELLO", b"\xff\xfe", b" SUB", b"OK"],
)
@pytest.mark.parametrize("version", [6, NEWEST])
def test_another_word_is_unknown(version: int, data: bytes) -> None:
    assert refusal(version, data) == failures.UNKNOWN


def test_a_version_that_is_not_spoken_knows_no_command() -> None:
    for version in (0, 5, 21, 65_535):
        assert refusal(version, b"SUB") == failures.UNKNOWN


BOUNDED = [each for each in EACH if not isinstance(each[0], Send | Pfwd | Rfwd | Rslv)]


@pytest.mark.parametrize(("command", "since", "encoded"), BOUNDED)
def test_trailing_bytes_are_refused(command: Command, since: int, encoded: bytes) -> None:
    for version in {max(since, 19), NEWEST}:
        for more in (b" ", b"0", b"\x00", b"SUB"):
            if b" " in encoded or more == b" ":
                assert refusal(version, encoded + more) == failures.SYNTAX
        assert refusal(version, encoded + b" 0") == failures.SYNTAX


@pytest.mark.parametrize(("command", "_since", "encoded"), EACH, ids=NAMES)
def test_a_command_that_is_cut_short_is_refused(
    command: Command, _since: int, encoded: bytes
) -> None:
    word = encoded.partition(b" ")[0]
    # Where the rest is a body, a cut leaves a shorter one.
    whole_from = {Send: 7, Pfwd: 52, Rfwd: 5, Rslv: 5}.get(type(command), len(encoded))
    for cut in range(whole_from):
        words_known = {b"SUB", b"NSUB", word} if cut >= 3 else set[bytes]()
        if encoded[:cut] in (b"SUB", b"NSUB"):
            continue
        is_word = encoded[:cut].partition(b" ")[0] in words_known
        assert refusal(NEWEST, encoded[:cut]) == (failures.SYNTAX if is_word else failures.UNKNOWN)


# --------------------------------------------------------------------------------------------- SEND


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (b"SEND T hello", Send(b"T", b"hello")),
        (b"SEND F ", Send(b"F", b"")),
        (b"SEND F  ", Send(b"F", b" ")),
        (b"SEND T T x", Send(b"T", b"T x")),
        (b"SEND Txyz hello", Send(b"T", b"hello")),
        (b"SEND Tabcdef hello", Send(b"T", b"hello")),
        (b"SEND F\x00\xff hello", Send(b"F", b"hello")),
    ],
)
@pytest.mark.parametrize("version", [6, NEWEST])
def test_flags_end_at_a_space_and_only_the_first_counts(
    version: int, data: bytes, command: Send
) -> None:
    assert decode_command(version, data) == command


@pytest.mark.parametrize(
    "data",
    [
        *(b"SEND", b"SEND ", b"SEND F", b"SEND  ", b"SEND  hello", b"SEND X hello"),
        *(b"SEND t hello", b"SEND Tabcdefg hello", b"SEND Thello", b"SEND hello"),
    ],
)
def test_a_message_without_flags_is_refused(data: bytes) -> None:
    assert refusal(NEWEST, data) == failures.SYNTAX


def test_only_t_wants_a_notification() -> None:
    assert Send(b"T", b"").wants_notification
    assert not Send(b"F", b"").wants_notification


# --------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("word", [b"KEY", b"SKEY", b"LKEY"])
def test_a_key_of_a_kind_that_authorizes_is_taken(word: bytes) -> None:
    for key in (AUTH_KEY, ED448, DH_KEY):
        encoded = word + b" " + bytes((len(key.encoded),)) + key.encoded
        assert getattr(decode_command(NEWEST, encoded), "key") == key  # noqa: B009
    assert refusal(NEWEST, word + b" \x44" + X448.encoded) == failures.SYNTAX
    assert refusal(NEWEST, word + b" \x00") == failures.SYNTAX


def test_a_list_of_keys_is_not_empty() -> None:
    assert refusal(NEWEST, b"RKEY \x00") == failures.SYNTAX
    assert refusal(NEWEST, b"RKEY \x01\x44" + X448.encoded) == failures.SYNTAX
    assert decode_command(NEWEST, b"RKEY \x01\x2c" + AUTH_KEY.encoded) == Rkey((AUTH_KEY,))


def test_only_x25519_makes_secrets() -> None:
    auth = b"\x2c" + AUTH_KEY.encoded
    assert refusal(NEWEST, b"NKEY " + auth + auth) == failures.SYNTAX
    assert refusal(NEWEST, b"NEW " + auth + auth + b"0S00") == failures.SYNTAX
    assert refusal(NEWEST, b"PFWD \x00\x13" + auth + b"boxed") == failures.SYNTAX


def test_a_name_to_look_up_is_utf_8() -> None:
    assert decode_command(20, "RSLV ä.example".encode()) == Rslv("ä.example")
    assert refusal(20, b"RSLV \xff") == failures.SYNTAX


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(New(AUTH_KEY, DH_KEY, b"secret"))
    assert "secret" not in repr(Prxy(ADDRESS, b"secret"))


# ----------------------------------------------------------------------------------- what they need

NONE, NO_AUTH, HAS_AUTH = None, failures.NO_AUTH, failures.HAS_AUTH
NO_ENTITY = failures.NO_ENTITY


@pytest.mark.parametrize(("command", "_since", "_encoded"), EACH, ids=NAMES)
def test_credentials(command: Command, _since: int, _encoded: bytes) -> None:
    # Neither; an entity alone; an authorization alone; both.
    match command:
        case New():
            expected = [NO_AUTH, NO_AUTH, NONE, HAS_AUTH]
        case Send():
            expected = [NO_ENTITY, NONE, NO_ENTITY, NONE]
        case Lget() | Pfwd():
            expected = [NO_ENTITY, NONE, HAS_AUTH, HAS_AUTH]
        case Ping() | Prxy() | Rfwd() | Rslv():
            expected = [NONE, HAS_AUTH, HAS_AUTH, HAS_AUTH]
        case _:
            expected = [NO_AUTH, NO_AUTH, NO_AUTH, NONE]
    given = [(False, False), (False, True), (True, False), (True, True)]
    assert [credentials_fault(command, *each) for each in given] == expected


@pytest.mark.parametrize(("command", "_since", "_encoded"), EACH, ids=NAMES)
def test_the_role_that_a_service_needs(command: Command, _since: int, _encoded: bytes) -> None:
    others = {Nsub: ServiceRole.NOTIFIER, Nsubs: ServiceRole.NOTIFIER, Rfwd: ServiceRole.PROXY}
    expected = (
        None if isinstance(command, Ping) else others.get(type(command), ServiceRole.MESSAGING)
    )
    assert role_of(command) is expected
