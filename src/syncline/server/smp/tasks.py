"""Work of the router that takes more than one turn of the loop; it ends with the router."""

import asyncio
from collections.abc import Coroutine

from syncline.server.logs import Log


class Tasks:
    """Keeps hold of tasks while they run. One that fails is reported: it is a mistake of ours."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("work was cut off", work=task.get_name(), error=repr(error))
