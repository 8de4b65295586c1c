"""What follows `ERR `: why the router says no (docs/formats/smp.md).

    failure   = code, or code SP detail
    BLOCKED                           detail: `reason=` word, from 18 maybe `,notice=` JSON
    STORE, NAME RESOLVER              detail: text to the end
    PROXY PROTOCOL                    detail: a failure
    PROXY BROKER RESPONSE, UNEXPECTED detail: a short string
    PROXY BROKER TRANSPORT            detail: the words of a transport failure
    PROXY BROKER NETWORK              detail, which may be absent: see `_NETWORK_WORDS`

`Failure.detail` is the detail without its length byte.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from syncline.errors import MalformedMessageError, RefusedError
from syncline.values.queue_records import BlockReason
from syncline.wire.smp import versions
from syncline.wire.smp.primitives import Reader, short


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    detail: bytes = b""

    def __str__(self) -> str:
        """For people. The detail may be what a peer wrote, so it stands here as Python shows it."""
        return f"{self.code} {self.detail!r}" if self.detail else self.code


class FailureError(RefusedError):
    """A command is answered with `failure` and nothing else happens."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


BLOCK: Final = Failure("BLOCK")
SESSION: Final = Failure("SESSION")
UNKNOWN: Final = Failure("CMD UNKNOWN")
SYNTAX: Final = Failure("CMD SYNTAX")
PROHIBITED: Final = Failure("CMD PROHIBITED")
NO_AUTH: Final = Failure("CMD NO_AUTH")
HAS_AUTH: Final = Failure("CMD HAS_AUTH")
NO_ENTITY: Final = Failure("CMD NO_ENTITY")
AUTH: Final = Failure("AUTH")
SERVICE: Final = Failure("SERVICE")
CRYPTO: Final = Failure("CRYPTO")
QUOTA: Final = Failure("QUOTA")
EXPIRED: Final = Failure("EXPIRED")
NO_MSG: Final = Failure("NO_MSG")
LARGE_MSG: Final = Failure("LARGE_MSG")
INTERNAL: Final = Failure("INTERNAL")
BASIC_AUTH: Final = Failure("PROXY BASIC_AUTH")
NO_SESSION: Final = Failure("PROXY NO_SESSION")
BROKER_NETWORK: Final = Failure("PROXY BROKER NETWORK")
BROKER_TIMEOUT: Final = Failure("PROXY BROKER TIMEOUT")
BROKER_HOST: Final = Failure("PROXY BROKER HOST")
BROKER_NO_SERVICE: Final = Failure("PROXY BROKER NO_SERVICE")
BROKER_VERSION: Final = Failure("PROXY BROKER TRANSPORT", b"VERSION")
NO_RESOLVER: Final = Failure("NAME NO_RESOLVER")
NAME_NOT_FOUND: Final = Failure("NAME NOT_FOUND")

_BARE: Final = {
    failure.code.encode(): failure
    for failure in (
        *(BLOCK, SESSION, UNKNOWN, SYNTAX, PROHIBITED, NO_AUTH, HAS_AUTH, NO_ENTITY, AUTH, SERVICE),
        *(CRYPTO, QUOTA, EXPIRED, NO_MSG, LARGE_MSG, INTERNAL, BASIC_AUTH, NO_SESSION),
        *(BROKER_NETWORK, BROKER_TIMEOUT, BROKER_HOST, BROKER_NO_SERVICE),
        *(NO_RESOLVER, NAME_NOT_FOUND),
    )
}
# How NO_ENTITY was spelt once.
_BARE[b"CMD NO_QUEUE"] = NO_ENTITY

TRANSPORT_FAILURES: Final = frozenset(
    {
        *("BLOCK", "VERSION", "LARGE_MSG", "SESSION", "NO_AUTH"),
        *("HANDSHAKE PARSE", "HANDSHAKE IDENTITY", "HANDSHAKE BAD_AUTH", "HANDSHAKE BAD_SERVICE"),
    }
)
_NETWORK_WORDS: Final = frozenset({b"UNKNOWNCA", b"FAILED", b"TIMEOUT"})
_NETWORK_TEXTS: Final = (b"CONNECT ", b"TLS ", b"SUBSCRIBE ")

_SHORT_DETAILS: Final = frozenset({"PROXY BROKER RESPONSE", "PROXY BROKER UNEXPECTED"})
# The space before the detail stands even if the detail is empty.
_DETAILED_ALWAYS: Final = (
    *("BLOCKED", "STORE", "NAME RESOLVER", "PROXY PROTOCOL"),
    *("PROXY BROKER TRANSPORT", "PROXY BROKER RESPONSE", "PROXY BROKER UNEXPECTED"),
)
_DETAILED: Final = (*_DETAILED_ALWAYS, "PROXY BROKER NETWORK")
_PROTOCOL: Final = "PROXY PROTOCOL"
# A relay answers its proxy; nobody needs more than that, and a peer could nest a thousand.
_NESTED_COUNT_MAX: Final = 4

_BLOCKED = re.compile(rb"reason=([a-z]{1,32})(?:,notice=(\{.*\}))?", re.DOTALL)


class _Notice(msgspec.Struct, omit_defaults=True):
    ttl: int | None = None


# ---------------------------------------------------------------------------------------- building


def blocked(reason: str, ttl_seconds: int | None = None) -> Failure:
    """`ttl_seconds`: for how long a client should believe it; only from version 18 it is told."""
    notice = b""
    if ttl_seconds is not None:
        notice = b",notice=" + msgspec.json.encode(_Notice(ttl_seconds))
    return Failure("BLOCKED", b"reason=" + reason.encode() + notice)


def block_reason(failure: Failure) -> BlockReason:
    """What a failure with the code BLOCKED says."""
    match = _BLOCKED.fullmatch(failure.detail)
    if failure.code != "BLOCKED" or match is None:
        raise MalformedMessageError("no reason why the queue is blocked")
    reason, notice = match.groups()
    try:
        ttl_seconds = msgspec.json.decode(notice, type=_Notice).ttl if notice else None
    except (msgspec.DecodeError, RecursionError):
        raise MalformedMessageError("a notice about a blocked queue is no JSON") from None
    return BlockReason(reason.decode(), ttl_seconds)


def store(text: str) -> Failure:
    return Failure("STORE", text.encode())


def name_resolver(text: str) -> Failure:
    return Failure("NAME RESOLVER", text.encode())


def proxy_protocol(failure: Failure) -> Failure:
    """A relay answered its proxy, not the client, with this."""
    return Failure(_PROTOCOL, encode_failure(versions.VERSION_MAX, failure))


def proxy_broker(kind: str, detail: bytes = b"") -> Failure:
    """`kind`: RESPONSE, UNEXPECTED, NETWORK, TIMEOUT, HOST, NO_SERVICE, TRANSPORT."""
    return Failure(f"PROXY BROKER {kind}", detail)


# ------------------------------------------------------------------------------------------- codec


def encode_failure(version: int, failure: Failure) -> bytes:
    """As a session of this version may read it."""
    code, detail = failure.code, failure.detail
    if code == "BLOCKED":
        if version < versions.BLOCKED_QUEUES:
            return b"AUTH"
        if version < versions.BLOCK_NOTICES:
            detail = detail.partition(b",")[0]
    elif code == _PROTOCOL:
        detail = encode_failure(version, decode_failure(detail))
    elif code in _SHORT_DETAILS:
        detail = short(detail)
    encoded = code.encode()
    return encoded + b" " + detail if detail or code in _DETAILED_ALWAYS else encoded


def decode_failure(data: bytes) -> Failure:
    """Raises MalformedMessageError for what is no failure."""
    return _decode(data, _NESTED_COUNT_MAX)


def _decode(data: bytes, nested_left: int) -> Failure:
    bare = _BARE.get(data)
    if bare is not None:
        return bare
    for code in _DETAILED:
        prefix = code.encode() + b" "
        if data.startswith(prefix):
            return Failure(code, _read_detail(code, data[len(prefix) :], nested_left))
    raise MalformedMessageError("the router answered with an error of no known kind")


def _read_detail(code: str, detail: bytes, nested_left: int) -> bytes:
    if code in _SHORT_DETAILS:
        return _whole_short(detail)
    if code == _PROTOCOL:
        if not nested_left:
            raise MalformedMessageError("an error of an error of an error goes on for too long")
        _decode(detail, nested_left - 1)
    elif code == "BLOCKED":
        block_reason(Failure(code, detail))
    elif code == "PROXY BROKER TRANSPORT":
        read_transport_failure(detail)
    elif code == "PROXY BROKER NETWORK":
        _check_network(detail)
    return detail


def read_transport_failure(data: bytes) -> str:
    """The words of a failure below the commands, as a service's hello may be answered."""
    words = data.decode("ascii", "replace")
    if words not in TRANSPORT_FAILURES:
        raise MalformedMessageError("a transport error is of no known kind")
    return words


def _check_network(detail: bytes) -> None:
    if detail in _NETWORK_WORDS:
        return
    for word in _NETWORK_TEXTS:
        if detail.startswith(word):
            _whole_short(detail[len(word) :])
            return
    raise MalformedMessageError("a network error is of no known kind")


def _whole_short(data: bytes) -> bytes:
    reader = Reader(data)
    value = reader.short()
    reader.finish()
    return value
