"""Where a proxy goes: by the address that a name leads to, never by the name."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.server.settings import Settings
from syncline.server.smp.proxy_targets import (
    Reach,
    Resolver,
    Targets,
    is_literal,
    is_public,
    reach_of,
)
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import HOST_COUNT_MAX, RouterAddress
from syncline.wire.smp.failures import Failure, FailureError

PUBLIC = ["198.51.99.1", "8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.255.0.1", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1"),
    *("2001:db8::1", "3fff::1", "64:ff9b::7f00:1", "64:ff9b:1::1", "::127.0.0.1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2001:0:7f00:1::"),
    *("", "localhost", "127.1", "0x7f000001", "2130706433"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_machine_on_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_whatever_else_is_not(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses() | st.text(max_size=40))
def test_no_address_is_too_strange_to_be_judged(address: object) -> None:
    is_public(str(address))
    is_literal(str(address))


@pytest.mark.parametrize(
    ("setting", "host", "reach"),
    [
        ("auto", "127.0.0.1", Reach.ANYBODY),
        ("auto", "::1", Reach.ANYBODY),
        ("auto", "localhost", Reach.ANYBODY),
        ("auto", "0.0.0.0", Reach.PUBLIC),
        ("auto", "::", Reach.PUBLIC),
        ("auto", "192.168.1.1", Reach.PUBLIC),
        ("auto", "smp.example.org", Reach.PUBLIC),
        ("any", "0.0.0.0", Reach.ANYBODY),
        ("public", "127.0.0.1", Reach.PUBLIC),
        ("none", "127.0.0.1", Reach.NOBODY),
    ],
)
def test_what_may_be_reached_is_set_or_follows_from_who_can_ask(
    setting: str, host: str, reach: Reach
) -> None:
    assert reach_of(Settings(smp_proxy=setting, smp_host=host)) is reach


class Names:
    """What names lead to, for as long as the test says."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = {name.replace("_", "."): found for name, found in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]


def router(*hosts: str) -> RouterAddress:
    return RouterAddress(b"f" * 32, hosts, 5223)


async def hosts(reach: Reach, names: Names, *wanted: str) -> tuple[str, ...]:
    found = await Targets(reach, names.resolve).reachable(router(*wanted))
    assert (found.fingerprint, found.port) == (b"f" * 32, 5223)
    return found.hosts


async def refusal(reach: Reach, names: Names, *wanted: str) -> Failure:
    with pytest.raises(FailureError) as caught:
        await hosts(reach, names, *wanted)
    return caught.value.failure


async def test_names_are_replaced_by_what_they_lead_to() -> None:
    names = Names(a_example=["8.8.8.8", "2606:4700::1"], b_example=["8.8.8.8", "8.8.4.4"])
    for reach in (Reach.PUBLIC, Reach.ANYBODY):
        found = await hosts(reach, names, "a.example", "b.example")
        assert found == ("8.8.8.8", "2606:4700::1", "8.8.4.4")


async def test_of_several_addresses_only_the_public_ones_are_connected_to() -> None:
    names = Names(a_example=["127.0.0.1", "8.8.8.8", "10.0.0.1"], b_example=["192.168.0.1"])
    assert await hosts(Reach.PUBLIC, names, "a.example", "b.example") == ("8.8.8.8",)
    found = await hosts(Reach.ANYBODY, names, "a.example", "b.example")
    assert found == ("127.0.0.1", "8.8.8.8", "10.0.0.1", "192.168.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.1", "inside.example", "sly.example"])
async def test_a_machine_next_door_is_not_reached(host: str) -> None:
    names = Names(inside_example=["10.0.0.1", "fd00::1"], sly_example=["127.0.0.1"])
    assert await refusal(Reach.PUBLIC, names, host) == failures.BROKER_HOST
    assert await hosts(Reach.ANYBODY, names, host)


async def test_a_name_that_looks_like_a_number_is_judged_by_what_it_is() -> None:
    names = Names(**{"127_1": ["127.0.0.1"], "2130706433": ["127.0.0.1"]})
    for host in ("127.1", "2130706433"):
        assert await refusal(Reach.PUBLIC, names, host) == failures.BROKER_HOST


async def test_a_name_that_leads_nowhere_is_like_a_machine_that_does_not_answer() -> None:
    assert await refusal(Reach.PUBLIC, Names(), "nobody.example") == failures.BROKER_NETWORK
    names = Names()
    assert await refusal(Reach.ANYBODY, names, "hidden.ONION") == failures.BROKER_NETWORK
    assert names.asked == [], "nobody is told of hidden names"
    found = await hosts(Reach.PUBLIC, names, "hidden.onion", "8.8.8.8")
    assert found == ("8.8.8.8",)


async def test_an_address_with_a_zone_is_none() -> None:
    names = Names(a_example=["fe80::1%eth0"])
    assert await refusal(Reach.ANYBODY, names, "a.example") == failures.BROKER_HOST


async def test_a_name_with_a_thousand_addresses_leads_to_some_of_them() -> None:
    names = Names(a_example=[f"8.8.{at // 250}.{at % 250}" for at in range(1_000)])
    assert len(await hosts(Reach.PUBLIC, names, "a.example")) == HOST_COUNT_MAX


async def test_the_system_is_asked() -> None:
    resolver = Resolver()
    try:
        assert "127.0.0.1" in await resolver.resolve("localhost")
        assert await resolver.resolve("127.1") == ["127.0.0.1"]
        with pytest.raises(OSError, match=r"."):
            await resolver.resolve("256.256.256.256")
    finally:
        resolver.close()
