"""What only extended sessions know: it reads back, fits a block, and nobody else sees it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import SetHashes, SetState
from syncline.wire.reconciliation.runs import PART_BYTES_MAX
from syncline.wire.smp import failures
from syncline.wire.smp.commands import (
    BUS_ID_COUNT_MAX,
    Bus,
    Command,
    Nsubs,
    Recq,
    Subs,
    credentials_fault,
    decode_command,
    encode_command,
    role_of,
)
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.forwards import FORWARDED_VERSIONS
from syncline.wire.smp.hellos import ALL_VERSIONS
from syncline.wire.smp.messages import Reca, RouterMessage, Soks, decode_message, encode_message
from syncline.wire.smp.transmissions import TRANSMISSION_BYTES_MAX, encode_transmission
from syncline.wire.smp.versions import EXTENDED, session_version
from tests.unit.wire.smp import test_commands, test_messages
from tests.unit.wire.smp.vectors import AA, BB, CORR_ID, IDS_HASH, SESSION_ID

HASHES = SetHashes(b"x" * 16, b"s" * 16)
STATE = SetState(7, 2, b"x" * 16, b"s" * 16)
COMMANDS: list[Command] = [
    Subs(2, IDS_HASH, HASHES),
    Nsubs(2, IDS_HASH, HASHES),
    Recq(b"part"),
    Recq(b""),
    Bus((AA, BB)),
]
MESSAGES: list[RouterMessage] = [
    Soks(2, IDS_HASH, STATE),
    Soks(2, IDS_HASH, STATE, b"opening"),
    Reca(b"part"),
]


def refusal(version: int, data: bytes) -> failures.Failure:
    with pytest.raises(FailureError) as refused:
        decode_command(version, data)
    return refused.value.failure


@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_a_command_reads_back(command: Command) -> None:
    assert decode_command(EXTENDED, encode_command(EXTENDED, command)) == command


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_reads_back(message: RouterMessage) -> None:
    assert decode_message(EXTENDED, encode_message(EXTENDED, message)) == message


@pytest.mark.parametrize("version", range(6, 21))
def test_a_public_version_knows_nothing_of_it(version: int) -> None:
    for command in (Recq(b"part"), Bus((AA,))):
        assert refusal(version, encode_command(EXTENDED, command)) == failures.UNKNOWN
        with pytest.raises(ValueError, match="has no"):
            encode_command(version, command)
    with pytest.raises(MalformedMessageError, match="does not know the word"):
        decode_message(version, b"RECA part")
    if version >= 19:
        # The state is not even told.
        plain = encode_message(version, Soks(2, IDS_HASH))
        assert encode_message(version, Soks(2, IDS_HASH, STATE, b"opening")) == plain
        assert encode_command(version, Subs(2, IDS_HASH, HASHES)) == encode_command(
            version, Subs(2, IDS_HASH)
        )
        assert refusal(version, encode_command(EXTENDED, COMMANDS[0])) == failures.SYNTAX


def test_everything_public_is_said_as_in_the_newest_version() -> None:
    for command, _, encoded in test_commands.EACH:
        if not isinstance(command, Subs | Nsubs):
            assert encode_command(EXTENDED, command) == encoded
            assert decode_command(EXTENDED, encoded) == command
    for message, _, encoded in test_messages.EACH:
        if not isinstance(message, Soks):
            assert encode_message(EXTENDED, message) == encoded
            assert decode_message(EXTENDED, encoded) == message


def test_it_takes_our_protocol_and_the_newest_version() -> None:
    assert session_version(20, is_syncline=True) == EXTENDED
    assert session_version(20, is_syncline=False) == 20
    assert session_version(19, is_syncline=True) == 19


def test_nobody_can_name_it() -> None:
    assert EXTENDED not in ALL_VERSIONS
    assert EXTENDED not in FORWARDED_VERSIONS


def test_what_is_missing_is_not_sent() -> None:
    for command in (Subs(2, IDS_HASH), Nsubs(2, IDS_HASH)):
        with pytest.raises(ValueError, match="XXH3"):
            encode_command(EXTENDED, command)
    for message in (Soks(2, IDS_HASH), Soks(3, IDS_HASH, STATE)):
        with pytest.raises(ValueError, match="state"):
            encode_message(EXTENDED, message)


@pytest.mark.parametrize("count", [0, BUS_ID_COUNT_MAX + 1, 0xFFFF])
def test_too_few_or_too_many_ids_are_refused(count: int) -> None:
    data = b"BUS " + count.to_bytes(2, "big") + AA * count
    assert refusal(EXTENDED, data) == failures.SYNTAX


@pytest.mark.parametrize("cut", [1, 23, 24, 25])
def test_ids_that_are_not_all_there_are_refused(cut: int) -> None:
    assert refusal(EXTENDED, encode_command(EXTENDED, Bus((AA, BB)))[:-cut]) == failures.SYNTAX


def test_the_largest_fits_a_block() -> None:
    part = bytes(PART_BYTES_MAX)
    commands: list[Command] = [Recq(part), Bus((AA,) * BUS_ID_COUNT_MAX)]
    messages: list[RouterMessage] = [Reca(part), Soks(2, IDS_HASH, STATE, part)]
    bodies = [encode_command(EXTENDED, each) for each in commands]
    bodies += [encode_message(EXTENDED, each) for each in messages]
    for body in bodies:
        sent = encode_transmission(EXTENDED, SESSION_ID, bytes(64), None, CORR_ID, AA, body)
        assert len(sent) <= TRANSMISSION_BYTES_MAX


def test_a_service_of_any_role_may_ask_with_its_own_key() -> None:
    for command in (Recq(b""), Bus((AA,))):
        assert role_of(command) is None
        assert credentials_fault(command, has_authorization=True, has_entity=True) is None
        assert credentials_fault(command, has_authorization=False, has_entity=True)
    assert role_of(Subs()) is ServiceRole.MESSAGING


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    for word in (b"", b"SUBS ", b"BUS ", b"RECQ "):
        try:
            command = decode_command(EXTENDED, word + data)
        except FailureError:
            continue
        assert encode_command(EXTENDED, command)
    for word in (b"", b"SOKS ", b"RECA "):
        try:
            message = decode_message(EXTENDED, word + data)
        except MalformedMessageError:
            continue
        assert encode_message(EXTENDED, message)
