"""Whose page asks: origins, hosts, and the names of this machine."""

import ipaddress
from urllib.parse import urlsplit

SAME_ORIGIN = "same"
ANY_ORIGIN = "*"

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def is_origin(text: str) -> bool:
    """Scheme, host and perhaps a port, and nothing behind them."""
    scheme, is_split, host = text.partition("://")
    return scheme in _DEFAULT_PORTS and bool(is_split) and host != "" and "/" not in host


def normal_origin(origin: str) -> str:
    """In lower case and without the port that goes without saying."""
    origin = origin.lower().rstrip("/")
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition(":")[0], "/"))


def is_same_host(origin: str, host: str) -> bool:
    try:
        scheme, name = urlsplit(origin)[:2]
    except ValueError:
        return False
    # A proxy with TLS in front passes the host on without a port, as the browser sent it.
    return bool(name) and name == host.removesuffix(_DEFAULT_PORTS.get(scheme, "/"))


def is_for_this_machine(host: str) -> bool:
    """A name that only looks like this machine may have been pointed at it by its owner."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return is_loopback(name.strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than localhost may be anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
