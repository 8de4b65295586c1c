"""Verbs that are told to end: Ctrl-C and a loop, and SIGTERM where something is to be left behind
in order."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """What `work` comes to. Raises KeyboardInterrupt once it has ended after Ctrl-C.

    The loop itself hears the signal. Left to `asyncio.run`, one that comes as the loop goes to
    sleep is not heard before something else happens.
    """
    try:
        return asyncio.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _interruptible(work: Coroutine[Any, Any, _Result]) -> _Result:
    task = asyncio.current_task()
    assert task is not None
    # Signals are the main thread's; a verb that a program runs on another is not interrupted.
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await work


@contextmanager
def terminated_as_interrupted() -> Generator[None]:
    """Told to end in whatever way, the block takes its processes and temporary files with it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Signals are the main thread's.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
