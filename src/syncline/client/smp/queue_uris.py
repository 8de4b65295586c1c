"""The address of a queue, as a recipient gives it to a sender.

    smp://fingerprint@host:port/sender-id#/?v=1-4&dh=key&q=mode

The part before the last slash is the router's address without a password. `sender-id` and `key`
(X25519, DER) are base64url; `v` are the versions of envelopes that the recipient reads; `q` is `m`
for a queue that its sender secures, `c` for one that many may write to. `k=s` is an older word for
`q=m`. Further parameters are ignored. What stands behind `#` is never sent to a router.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import parse_qs, quote

from syncline.client.smp import envelopes
from syncline.errors import MalformedMessageError
from syncline.values.queue_records import QueueMode
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.keys import KeyKind, PublicKey

_TEXT = re.compile(r"(?P<router>smp://[^/#?]+)/(?P<sender>[\w-]+=*)#/?\?(?P<query>[^#]+)", re.ASCII)
_VERSIONS = re.compile(r"(?P<min>[0-9]{1,5})(?:-(?P<max>[0-9]{1,5}))?")
TEXT_CHARACTERS_MAX = 2_000
_SENDER_ID_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class QueueUri:
    router: RouterAddress
    sender_id: bytes
    dh_key: PublicKey
    mode: QueueMode = QueueMode.MESSAGING

    def __str__(self) -> str:
        versions = f"{envelopes.VERSION_MIN}-{envelopes.VERSION}"
        key = quote(_text(self.dh_key.encoded), safe="")
        query = f"v={versions}&dh={key}&q={self.mode.value.lower()}"
        return f"{self.router}/{_text(self.sender_id)}#/?{query}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises MalformedMessageError."""
        match = _TEXT.fullmatch(text) if len(text) <= TEXT_CHARACTERS_MAX else None
        if match is None:
            raise MalformedMessageError(
                "the address of a queue is written smp://fingerprint@host/id#/?v=1-4&dh=key&q=m"
            )
        query = {name: values[-1] for name, values in parse_qs(match["query"]).items()}
        _check_versions(query.get("v", "1"))
        sender_id = _bytes(match["sender"])
        if not 0 < len(sender_id) <= _SENDER_ID_BYTES_MAX:
            raise MalformedMessageError("the address of a queue has no id, or one too long")
        key = PublicKey.decode(_bytes(query.get("dh", "")))
        if key.kind is not KeyKind.X25519:
            raise MalformedMessageError("the key in the address of a queue is not X25519")
        # A password is for making queues: it has no place here.
        router = replace(RouterAddress.parse(match["router"]), password=None)
        return cls(router, sender_id, key, _mode(query))


def _check_versions(text: str) -> None:
    match = _VERSIONS.fullmatch(text)
    if match is None:
        raise MalformedMessageError("the versions in the address of a queue cannot be read")
    lowest, highest = int(match["min"]), int(match["max"] or match["min"])
    if not lowest <= envelopes.VERSION or highest < envelopes.VERSION_MIN or lowest > highest:
        raise MalformedMessageError(
            f"the recipient reads envelopes of versions {text}, we write {envelopes.VERSION}"
        )


def _mode(query: dict[str, str]) -> QueueMode:
    mode = query.get("q", "m" if query.get("k") == "s" else "c")
    if mode not in ("m", "c"):
        raise MalformedMessageError("the address of a queue is of no known mode")
    return QueueMode(mode.upper())


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode("ascii")


def _bytes(text: str) -> bytes:
    try:
        value = urlsafe_b64decode(text.encode("ascii"))
    except (Base64Error, ValueError):
        value = b""
    # The library passes over what it does not know.
    if _text(value) != text:
        raise MalformedMessageError("the address of a queue is not in base64url")
    return value
