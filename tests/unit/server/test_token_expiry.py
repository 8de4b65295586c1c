"""A token ends when the machine's clock says so, though that be set meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from syncline.testing.clock import ManualClock
from tests.unit.server.documents_rig import AllowAll, DocumentsRig, FakePeer, open_memory

HOUR_MS = 60 * 60 * 1_000
SOON_MS = 50


class Expiring(AllowAll):
    def __init__(self, expires_ms: int) -> None:
        self.expires_ms = expires_ms


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DocumentsRig]:
    monkeypatch.setattr("syncline.server.token_expiry.LOOK_SECONDS", 0.01)
    rig = DocumentsRig(open_memory())
    yield rig
    await rig.committer.close()


def joined(rig: DocumentsRig, expires_ms: int) -> list[FakePeer]:
    """One at each face."""
    for face in (rig.face, rig.yjs_face, rig.cable_face):
        face.authorize = lambda token: Expiring(expires_ms)
    clients = (rig.subscribed("a", kind="yjs"), rig.yjs_joined(), rig.cable_joined())
    return [client.peer for client in clients]


def close_codes(peers: list[FakePeer]) -> list[int | None]:
    return [peer.close_code for peer in peers]


async def test_a_clock_that_is_set_back_ends_nothing_early(rig: DocumentsRig) -> None:
    peers = joined(rig, rig.wall() + SOON_MS)
    rig.wall = ManualClock(rig.wall() - HOUR_MS)
    await asyncio.sleep(3 * SOON_MS / 1_000)
    assert close_codes(peers) == [None, None, None]
    rig.wall.advance(HOUR_MS + SOON_MS)
    await asyncio.sleep(SOON_MS / 1_000)
    assert close_codes(peers) == [4401, 4401, 1000]


async def test_a_clock_that_is_set_forward_ends_what_has_expired(rig: DocumentsRig) -> None:
    peers = joined(rig, rig.wall() + HOUR_MS)
    rig.wall = ManualClock(rig.wall() + 2 * HOUR_MS)
    await asyncio.sleep(SOON_MS / 1_000)
    assert close_codes(peers) == [4401, 4401, 1000]


async def test_who_has_left_is_not_looked_after(rig: DocumentsRig) -> None:
    rig.face.authorize = lambda token: Expiring(rig.wall() + SOON_MS)
    client = rig.subscribed("a")
    client.drop()
    rig.wall.advance(HOUR_MS)
    await asyncio.sleep(SOON_MS / 1_000)
    assert client.peer.close_code is None
