"""Failures: their words, their details, and what an older version is told in their place."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import BlockReason
from syncline.wire.smp import failures
from syncline.wire.smp.failures import Failure, FailureError, decode_failure, encode_failure

NEWEST = 20

BARE = {
    "BLOCK": failures.BLOCK,
    "SESSION": failures.SESSION,
    "CMD UNKNOWN": failures.UNKNOWN,
    "CMD SYNTAX": failures.SYNTAX,
    "CMD PROHIBITED": failures.PROHIBITED,
    "CMD NO_AUTH": failures.NO_AUTH,
    "CMD HAS_AUTH": failures.HAS_AUTH,
    "CMD NO_ENTITY": failures.NO_ENTITY,
    "PROXY BASIC_AUTH": failures.BASIC_AUTH,
    "PROXY NO_SESSION": failures.NO_SESSION,
    "PROXY BROKER NETWORK": failures.BROKER_NETWORK,
    "PROXY BROKER TIMEOUT": failures.BROKER_TIMEOUT,
    "PROXY BROKER HOST": failures.BROKER_HOST,
    "PROXY BROKER NO_SERVICE": failures.BROKER_NO_SERVICE,
    "AUTH": failures.AUTH,
    "SERVICE": failures.SERVICE,
    "CRYPTO": failures.CRYPTO,
    "QUOTA": failures.QUOTA,
    "EXPIRED": failures.EXPIRED,
    "NO_MSG": failures.NO_MSG,
    "LARGE_MSG": failures.LARGE_MSG,
    "INTERNAL": failures.INTERNAL,
    "NAME NO_RESOLVER": failures.NO_RESOLVER,
    "NAME NOT_FOUND": failures.NAME_NOT_FOUND,
}

DETAILED = {
    b"BLOCKED reason=spam": failures.blocked("spam"),
    b"BLOCKED reason=content": failures.blocked("content"),
    b'BLOCKED reason=spam,notice={"ttl":60}': failures.blocked("spam", 60),
    b"BLOCKED reason=spam,notice={}": Failure("BLOCKED", b"reason=spam,notice={}"),
    b"STORE no \xe2\x82\xac left": failures.store("no € left"),
    b"STORE ": failures.store(""),
    b"NAME RESOLVER went away": failures.name_resolver("went away"),
    b"PROXY PROTOCOL CMD SYNTAX": failures.proxy_protocol(failures.SYNTAX),
    b"PROXY PROTOCOL PROXY BROKER RESPONSE \x01a": failures.proxy_protocol(
        failures.proxy_broker("RESPONSE", b"a")
    ),
    b"PROXY BROKER RESPONSE \x05BLOCK": failures.proxy_broker("RESPONSE", b"BLOCK"),
    b"PROXY BROKER RESPONSE \x00": failures.proxy_broker("RESPONSE"),
    b"PROXY BROKER UNEXPECTED \x02 a": failures.proxy_broker("UNEXPECTED", b" a"),
    b"PROXY BROKER TRANSPORT VERSION": failures.BROKER_VERSION,
    b"PROXY BROKER TRANSPORT HANDSHAKE BAD_AUTH": failures.proxy_broker(
        "TRANSPORT", b"HANDSHAKE BAD_AUTH"
    ),
    b"PROXY BROKER NETWORK UNKNOWNCA": failures.proxy_broker("NETWORK", b"UNKNOWNCA"),
    b"PROXY BROKER NETWORK CONNECT \x02no": failures.proxy_broker("NETWORK", b"CONNECT \x02no"),
}


@pytest.mark.parametrize("words", BARE)
@pytest.mark.parametrize("version", [6, NEWEST])
def test_a_failure_is_its_words(words: str, version: int) -> None:
    assert encode_failure(version, BARE[words]) == words.encode()
    assert decode_failure(words.encode()) == BARE[words]
    assert str(BARE[words]) == words


@pytest.mark.parametrize("encoded", DETAILED)
def test_a_failure_with_its_detail(encoded: bytes) -> None:
    assert encode_failure(NEWEST, DETAILED[encoded]) == encoded
    assert decode_failure(encoded) == DETAILED[encoded]


def test_the_old_word_for_a_missing_entity_is_read() -> None:
    assert decode_failure(b"CMD NO_QUEUE") == failures.NO_ENTITY
    assert encode_failure(6, failures.NO_ENTITY) == b"CMD NO_ENTITY"


@pytest.mark.parametrize("version", range(6, 21))
def test_a_blocked_queue_is_told_as_the_version_knows_it(version: int) -> None:
    told = {
        failures.blocked("spam", 60): b'BLOCKED reason=spam,notice={"ttl":60}',
        failures.proxy_protocol(failures.blocked("spam", 60)): (
            b'PROXY PROTOCOL BLOCKED reason=spam,notice={"ttl":60}'
        ),
    }
    for failure, newest in told.items():
        if version >= 18:
            expected = newest
        elif version >= 12:
            expected = newest.partition(b",")[0]
        else:
            expected = newest.partition(b"BLOCKED")[0] + b"AUTH"
        assert encode_failure(version, failure) == expected


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        (b"reason=spam", BlockReason("spam")),
        (b"reason=content,notice={}", BlockReason("content")),
        (b'reason=spam,notice={"ttl":60}', BlockReason("spam", 60)),
        (b'reason=spam,notice={"ttl":null,"later":[1]}', BlockReason("spam")),
    ],
)
def test_why_a_queue_is_blocked(detail: bytes, reason: BlockReason) -> None:
    assert failures.block_reason(Failure("BLOCKED", detail)) == reason
    assert failures.block_reason(failures.blocked(reason.reason, reason.ttl_seconds)) == reason


def test_another_failure_is_no_reason() -> None:
    with pytest.raises(MalformedMessageError):
        failures.block_reason(failures.AUTH)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"auth",
        b"AUTH ",
        b"AUTHOR",
        b"CMD",
        b"CMD ",
        b"CMD SYNTAX ",
        b"CMD  SYNTAX",
        b"STORE",
        b"BLOCKED",
        b"BLOCKED ",
        b"BLOCKED spam",
        b"BLOCKED reason=",
        b"BLOCKED reason=spam,",
        b"BLOCKED reason=spam,notice=",
        b"BLOCKED reason=spam,notice={",
        b'BLOCKED reason=spam,notice={"ttl":"x"}',
        b'BLOCKED reason=spam,notice={"ttl":1}x',
        b"BLOCKED reason=spam,notice={" + b'"a":{' * 3_000 + b"}" * 3_001,
        b"PROXY",
        b"PROXY PROTOCOL",
        b"PROXY PROTOCOL ",
        b"PROXY PROTOCOL NOTHING",
        b"PROXY BROKER",
        b"PROXY BROKER NOTHING",
        b"PROXY BROKER RESPONSE",
        b"PROXY BROKER RESPONSE \x02a",
        b"PROXY BROKER RESPONSE \x01ab",
        b"PROXY BROKER TRANSPORT",
        b"PROXY BROKER TRANSPORT NOTHING",
        b"PROXY BROKER TRANSPORT HANDSHAKE",
        b"PROXY BROKER NETWORK ",
        b"PROXY BROKER NETWORK NOTHING",
        b"PROXY BROKER NETWORK CONNECT",
        b"PROXY BROKER NETWORK CONNECT \x01",
        b"NAME",
        b"NAME RESOLVER",
        b"PROXY PROTOCOL " * 1_000 + b"AUTH",
    ],
    ids=lambda encoded: encoded[:40].decode("latin-1"),
)
def test_no_failure(encoded: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_failure(encoded)


def test_a_failure_is_raised_with_what_it_says() -> None:
    error = FailureError(failures.store("full"))
    assert error.failure == failures.store("full")
    assert str(error) == "STORE b'full'"


@pytest.mark.parametrize("words", sorted(failures.TRANSPORT_FAILURES))
def test_transport_failures_are_read(words: str) -> None:
    assert failures.read_transport_failure(words.encode()) == words


@pytest.mark.parametrize("words", [b"", b"HANDSHAKE", b"BLOCK ", b"\xff"])
def test_no_transport_failure(words: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        failures.read_transport_failure(words)
