"""Addresses of SMP routers.

    text     `smp://` fingerprint [`:`password] `@` host {`,`host} [`:`port]
    binary   items (short host), short port, short fingerprint         in PRXY alone

The fingerprint, 32 bytes, is the SHA-256 of the certificate that is the router's identity; in text
it is base64url with its padding. A host is a name, an IPv4 address or an IPv6 address, the last in
brackets where a colon could mean more. Several hosts are the same router.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Final, Self

from syncline.errors import MalformedMessageError
from syncline.wire.smp.primitives import Reader, items, short

PORT_DEFAULT: Final = 5223
FINGERPRINT_BYTES: Final = 32
# No router has more names than that, and a proxy tries them one after the other.
HOST_COUNT_MAX: Final = 16

_HOST = r"(?:[^,:\[\]@/\s]+|\[[^\[\]]+\])"
_PASSWORD = re.compile(r"[!-.0-9;-?A-~]{1,255}")
_PORT = re.compile("[0-9]{1,5}")
_TEXT = re.compile(
    rf"smp://([A-Za-z0-9_-]{{43}}=)(?::({_PASSWORD.pattern}))?@({_HOST}(?:,{_HOST})*)"
    rf"(?::({_PORT.pattern}))?/?"
)
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class RouterAddress:
    fingerprint: bytes
    hosts: tuple[str, ...]
    port: int = PORT_DEFAULT
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.fingerprint) != FINGERPRINT_BYTES:
            raise MalformedMessageError("the fingerprint of a router has 32 bytes")
        if not 0 < len(self.hosts) <= HOST_COUNT_MAX or not all(map(_is_host, self.hosts)):
            raise MalformedMessageError("a router's address has no host, too many, or a wrong one")
        if not 0 < self.port < 65_536:
            raise MalformedMessageError("a port is a number from 1 to 65535")
        if self.password is not None and not _PASSWORD.fullmatch(self.password):
            raise MalformedMessageError("a password is printable, without space, @, : and /")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` or `full_text` gives. The error does not repeat the text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise MalformedMessageError(
                "a router's address is written smp://fingerprint@host:port, the fingerprint in "
                "base64url with its `=`"
            )
        fingerprint, password, hosts, port = match.groups()
        return cls(
            urlsafe_b64decode(fingerprint),
            tuple(map(_unbracketed, hosts.split(","))),
            int(port or PORT_DEFAULT),
            password,
        )

    def __str__(self) -> str:
        """Without the password, so that it may be shown."""
        return self._text("")

    def full_text(self) -> str:
        return self._text("" if self.password is None else f":{self.password}")

    def _text(self, password: str) -> str:
        fingerprint = urlsafe_b64encode(self.fingerprint).decode()
        hosts = ",".join(_bracketed(host) for host in self.hosts)
        port = "" if self.port == PORT_DEFAULT else f":{self.port}"
        return f"smp://{fingerprint}{password}@{hosts}{port}"


def read_address(reader: Reader) -> RouterAddress:
    hosts = reader.some(lambda: _unbracketed(_ascii(reader.short())))
    port = _ascii(reader.short())
    if port and not _PORT.fullmatch(port):
        raise MalformedMessageError("a port is a number from 1 to 65535")
    return RouterAddress(reader.short(), hosts, int(port or PORT_DEFAULT))


def write_address(address: RouterAddress) -> bytes:
    """Without the password: PRXY has a place of its own for it."""
    hosts = tuple(short(_bracketed(host).encode()) for host in address.hosts)
    return items(hosts) + short(str(address.port).encode()) + short(address.fingerprint)


def _is_host(host: str) -> bool:
    return bool(_IPV6.fullmatch(host) if ":" in host else _NAME.fullmatch(host))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _unbracketed(host: str) -> str:
    is_bracketed = host.startswith("[") and host.endswith("]") and ":" in host
    return host[1:-1] if is_bracketed else host


def _ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedMessageError("a router's address is not ASCII") from None
