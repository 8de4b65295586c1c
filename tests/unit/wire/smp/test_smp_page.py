"""docs/formats/smp.md is true: its bytes are those of the codec, its tables what it knows."""

import re
from collections.abc import Callable
from typing import get_args

import pytest

from syncline.errors import MalformedMessageError
from syncline.values.reconciliation import Open, SetHashes, SetState
from syncline.wire.reconciliation.requests import encode_request
from syncline.wire.smp import bodies, failures
from syncline.wire.smp.bodies import ReceivedMessage
from syncline.wire.smp.commands import (
    Bus,
    Command,
    Recq,
    Send,
    Subs,
    decode_command,
    encode_command,
)
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.messages import Err, RouterMessage, Soks, decode_message, encode_message
from syncline.wire.smp.stored import StoredMessage
from syncline.wire.smp.transmissions import Transmission, decode_block, encode_transmission, pack
from syncline.wire.smp.versions import EXTENDED
from syncline.wire.smp.words import UnknownWordError
from tests.documents import ROOT, section
from tests.unit.wire.smp.vectors import AA, BB, CORR_ID, IDS_HASH, SESSION_ID

PAGE = (ROOT / "docs" / "formats" / "smp.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- bytes: (\w+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))
MESSAGE_ID = bytes(range(0xA0, 0xB8))
SEND = Send(b"T", b"hello")
HASHES = SetHashes(bytes(range(16)), bytes(range(16, 32)))
STATE = SetState(7, 2, HASHES.xor128, HASHES.sum128)
(OPEN,) = encode_request(Open(None, 8))


def shown(name: str) -> bytes:
    """The bytes of a block: what stands before the remark on each line."""
    lines = BLOCKS[name].splitlines()
    return b"".join(bytes.fromhex(re.split(r" {2,}", line)[0]) for line in lines)


def content() -> bytes:
    (packed,) = pack(
        [encode_transmission(7, SESSION_ID, b"", None, CORR_ID, BB, encode_command(7, SEND))]
    )
    return packed


ENCODED: dict[str, Callable[[], bytes]] = {
    "content": content,
    "stored": lambda: StoredMessage(MESSAGE_ID, b"T", b"hello").encoded(),
    "received": lambda: bodies.encode_received(ReceivedMessage(1_700_000_000, b"T", b"hello")),
    "subs": lambda: encode_command(19, Subs(2, IDS_HASH)),
    "blocked": lambda: encode_message(18, Err(failures.blocked("spam", 60))),
    "extended_subs": lambda: encode_command(EXTENDED, Subs(2, IDS_HASH, HASHES)),
    "extended_soks": lambda: encode_message(EXTENDED, Soks(2, IDS_HASH, STATE)),
    "bus": lambda: encode_command(EXTENDED, Bus((AA, BB))),
    "recq": lambda: encode_command(EXTENDED, Recq(OPEN)),
}


def test_every_block_is_read() -> None:
    assert BLOCKS.keys() == ENCODED.keys()


@pytest.mark.parametrize("name", ENCODED)
def test_the_bytes_of_the_page_are_those_of_the_codec(name: str) -> None:
    assert shown(name) == ENCODED[name]()


@pytest.mark.parametrize("version", range(7, 21))
def test_the_content_on_the_page_is_read_by_every_version_it_is_of(version: int) -> None:
    (read,) = decode_block(version, SESSION_ID, shown("content"))
    assert isinstance(read, Transmission)
    assert (read.authorization, read.corr_id, read.entity_id) == (b"", CORR_ID, BB)
    assert decode_command(version, read.body) == SEND


def table(title: str) -> dict[str, int]:
    """The words of a table, with the version that brought each."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", section(PAGE, title), re.MULTILINE)
    return {word: int(since) for word, since in rows}


def knows_command(version: int, word: str) -> bool:
    try:
        decode_command(version, word.encode())
    except FailureError as error:
        return error.failure != failures.UNKNOWN
    return True


def knows_message(version: int, word: str) -> bool:
    try:
        decode_message(version, word.encode())
    except UnknownWordError:
        return False
    except MalformedMessageError:
        pass
    return True


@pytest.mark.parametrize(
    ("title", "kinds", "knows"),
    [
        ("## Commands", get_args(Command), knows_command),
        ("## Messages", get_args(RouterMessage), knows_message),
    ],
)
def test_the_tables_say_which_version_knows_what(
    title: str, kinds: tuple[type[object], ...], knows: Callable[[int, str], bool]
) -> None:
    since = table(title)
    extended = set(re.findall(r"^\| `(\w+)` \| extended \|", section(PAGE, title), re.MULTILINE))
    assert since.keys() | extended == {kind.__name__.upper() for kind in kinds}
    for version in range(6, 21):
        assert {word for word in since.keys() | extended if knows(version, word)} == {
            word for word, first in since.items() if version >= first
        }
    assert all(knows(EXTENDED, word) for word in since.keys() | extended)


def test_every_failure_is_named() -> None:
    constants = [value for value in vars(failures).values() if isinstance(value, Failure)]
    named = section(PAGE, "## Messages")
    words = {each.code for each in constants if each.code.split()[0] not in ("PROXY", "NAME")}
    assert len(words) == 16
    assert [word for word in words if f"`{word}`" not in named] == []
