"""A router without sockets: its API over a store in memory, and a clock moved by hand."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest

from syncline.server.api import Api
from syncline.server.committer import Committer
from syncline.server.health import Health
from syncline.server.hot_backup import HotBackup
from syncline.server.metrics import Metrics
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.storage.files import DiskFiles
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions


@dataclass
class Rig:
    """Everything that stands behind the API."""

    store: MemoryStore
    committer: Committer
    queues: Queues
    health: Health
    metrics: Metrics
    api: Api
    now_ms: int = 1_000_000
    token: str = ""
    _clients: list[httpx.AsyncClient] = field(default_factory=list[httpx.AsyncClient])

    def client(self, token: str = "", **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.api.app(token))
        made = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080", headers=headers
        )
        self._clients.append(made)
        return made

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        await self.committer.close()


SETTINGS = Settings(
    http_message_bytes_max=2_000,
    http_body_bytes_max=8_000,
    http_request_seconds_max=5,
    http_wait_seconds_max=10,
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    files = DiskFiles()
    store = MemoryStore.open("data", files, StoreOptions(), now_ms=1, random_bytes=bytes)
    committer = Committer.on_thread(store)
    numbers = count(1)
    made: Rig

    def clock_ms() -> int:
        return made.now_ms

    queues = Queues(store, committer, clock_ms, lambda size: next(numbers).to_bytes(size, "big"))
    health, metrics = Health(), Metrics()
    health.watch(store, committer, queues)
    metrics.watch(store, committer, lambda: 10**9, lambda: queues.waiting_reader_count)
    api = Api(SETTINGS, health, metrics, clock_ms)
    api.attach(queues, HotBackup(store, files, str(tmp_path / "data"), clock_ms))
    made = Rig(store, committer, queues, health, metrics, api)
    yield made
    await made.close()
