"""Commands and messages have the bytes of the reference, in every version that a form is of."""

import pytest

from syncline.wire.smp.commands import decode_command, encode_command
from syncline.wire.smp.messages import decode_message, encode_message
from tests.unit.wire.smp.vectors import COMMANDS, MESSAGES, OfCommand, OfMessage

OF_COMMANDS = [
    pytest.param(version, vector, id=f"{vector.name} in {version}")
    for vector in COMMANDS
    for version in vector.versions
]
OF_MESSAGES = [
    pytest.param(version, vector, id=f"{vector.name} in {version}")
    for vector in MESSAGES
    for version in vector.versions
]


@pytest.mark.parametrize(("version", "vector"), OF_COMMANDS)
def test_a_command_has_the_bytes_of_the_reference(version: int, vector: OfCommand) -> None:
    encoded = bytes.fromhex(vector.encoded)
    assert encode_command(version, vector.command) == encoded
    assert decode_command(version, encoded) == vector.command


@pytest.mark.parametrize(("version", "vector"), OF_MESSAGES)
def test_a_message_has_the_bytes_of_the_reference(version: int, vector: OfMessage) -> None:
    encoded = bytes.fromhex(vector.encoded)
    assert encode_message(version, vector.message) == encoded
    assert decode_message(version, encoded) == vector.message
