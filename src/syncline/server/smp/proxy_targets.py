"""Which routers clients may reach through this one, and at which addresses these really are.

A proxy connects to where strangers tell it to. Unless it is for this machine alone, it goes to
public addresses only: otherwise whoever may use it could look around in the operator's network. So
names are resolved here, what they lead to is judged, and that very address is connected to: a name
could lead elsewhere the next time it is asked for.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from typing import Final

from syncline.server.origins import is_loopback
from syncline.server.settings import Settings
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import HOST_COUNT_MAX, RouterAddress
from syncline.wire.smp.failures import FailureError

_ONION: Final = ".onion"
# Names that take long to resolve hold up one another, and nothing else.
_RESOLVER_COUNT: Final = 4
# Where the machines of the internet are. Elsewhere an IPv6 address may be that of a translator, or
# an IPv4 address in disguise.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# What the library takes for public, and is not.
_SPECIAL: Final = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("3fff::/20"),
)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The addresses of a host; raises OSError if it has none.
Resolve = Callable[[str], Awaitable[Sequence[str]]]


class Reach(Enum):
    NOBODY = "none"
    PUBLIC = "public"
    ANYBODY = "any"


def reach_of(settings: Settings) -> Reach:
    if settings.smp_proxy == "auto":
        # What only this machine reaches, only this machine can misuse.
        return Reach.ANYBODY if is_loopback(settings.smp_host) else Reach.PUBLIC
    return Reach(settings.smp_proxy)


def is_public(text: str) -> bool:
    """Whether the address is that of a machine on the internet, by whatever way it is written."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public(address.ipv4_mapped)
        is_tunnel = address.sixtofour is not None or address.teredo is not None
        return address in _GLOBAL_UNICAST and not is_tunnel and _is_public(address)
    return _is_public(address)


def _is_public(address: _Address) -> bool:
    is_special = any(address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not is_special


class Targets:
    """Turns the address of a router into one that may be connected to."""

    def __init__(self, reach: Reach, resolve: Resolve) -> None:
        self._reach = reach
        self._resolve = resolve

    async def reachable(self, address: RouterAddress) -> RouterAddress:
        """With addresses in place of names. Raises FailureError with why there is none."""
        found: dict[str, None] = {}
        is_resolved = False
        for host in address.hosts:
            addresses = await self._addresses(host)
            is_resolved = is_resolved or bool(addresses)
            found.update((each, None) for each in addresses if self._is_allowed(each))
        if found:
            return replace(address, hosts=tuple(found)[:HOST_COUNT_MAX])
        # A name that leads nowhere is as good as a machine that does not answer.
        raise FailureError(failures.BROKER_HOST if is_resolved else failures.BROKER_NETWORK)

    async def _addresses(self, host: str) -> Sequence[str]:
        if is_literal(host):
            return [host]
        if host.lower().endswith(_ONION):
            return []
        try:
            return await self._resolve(host)
        except (OSError, UnicodeError):
            return []

    def _is_allowed(self, text: str) -> bool:
        # An address with a zone is of a network next door, and no address of a router.
        if not is_literal(text):
            return False
        return self._reach is Reach.ANYBODY or is_public(text)


def is_literal(host: str) -> bool:
    if "%" in host:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Resolver:
    """Asks the system for addresses, on threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_COUNT, "resolver")

    async def resolve(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
