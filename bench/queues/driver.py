"""Drives a running router from a process of its own: `python -m bench.queues.driver TASK`.

The CPU time of the router is read beside the work, so that starting and warming up do not count.
"""

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.queues.profiled import BEGIN, END
from bench.support.memory import memory_bytes
from bench.support.processes import BenchError, cpu_seconds
from syncline.certificates import ServiceCredentials, SigningKey
from syncline.client.smp import queues
from syncline.client.smp.queues import NewQueue
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkOptions, Request, SmpLink
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Send, Sub, Subs
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Alls, Msg, Ok, Sok, Soks

Task = dict[str, Any]
Result = dict[str, Any]

_BULK_SECONDS_MAX = 300.0
_PAGE_COUNT = 5_000
_CONNECTING_AT_ONCE = 50


class _Clock:
    """Wall time and CPU time of the router, from one moment to the next."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu, self._wall = cpu_seconds(pid), time.perf_counter()

    def read(self) -> tuple[float, float]:
        return cpu_seconds(self._pid) - self._cpu, time.perf_counter() - self._wall


def _new_key() -> PrivateKey:
    return PrivateKey.new(KeyKind.ED25519, secrets.token_bytes)


# ------------------------------------------------------------------------- one message a block


async def cycles(task: Task) -> Result:
    """Each pair has one message on its way: sent, delivered, acknowledged, and the next."""
    address = RouterAddress.parse(task["address"])
    body = bytes(task["body_bytes"])
    done_count = 0

    async def pair() -> None:
        nonlocal done_count
        reading, sending = await SmpLink.connect(address), await SmpLink.connect(address)
        queue, key = await queues.create(reading), _new_key()
        await queues.secure_as_sender(sending, queue.sender_id, key)
        while True:
            await queues.send(sending, queue.sender_id, body, key)
            event = await reading.next_event()
            assert isinstance(event.message, Msg)
            await queues.acknowledge(reading, queue, event.message.message_id)
            done_count += 1

    pairs = [asyncio.create_task(pair()) for _ in range(task["pair_count"])]
    await asyncio.sleep(task["warm_seconds"])
    before, clock = done_count, _Clock(task["pid"])
    if task["is_profiled"]:
        os.kill(task["pid"], BEGIN)
    await asyncio.sleep(task["seconds"])
    count, (cpu, wall) = done_count - before, clock.read()
    if task["is_profiled"]:
        os.kill(task["pid"], END)
    await _end(pairs)
    return {"count": count, "cpu_seconds": cpu, "seconds": wall}


# ---------------------------------------------------------------------------- as many as fit


async def batches(task: Task) -> Result:
    """SENDs of several queues, all that is asked in one turn sharing blocks."""
    address = RouterAddress.parse(task["address"])
    body = bytes(task["body_bytes"])
    done_count = 0

    async def sender() -> None:
        nonlocal done_count
        link = await SmpLink.connect(address)
        made: list[tuple[NewQueue, PrivateKey]] = []
        for _ in range(task["queue_count"]):
            queue, key = await queues.create(link, subscribes=False), _new_key()
            await queues.secure_as_sender(link, queue.sender_id, key)
            made.append((queue, key))
        requests = [Request(Send(b"F", body), queue.sender_id, key) for queue, key in made]
        while True:
            for outcome in await link.request_many(requests):
                if not isinstance(outcome, Ok):
                    raise BenchError(f"a message was not taken: {outcome}")
            done_count += len(requests)

    senders = [asyncio.create_task(sender()) for _ in range(task["link_count"])]
    while not done_count:
        await asyncio.sleep(0.05)
        for each in senders:
            if each.done():
                each.result()
    before, clock = done_count, _Clock(task["pid"])
    await asyncio.sleep(task["seconds"])
    count, (cpu, wall) = done_count - before, clock.read()
    await _end(senders)
    return {"count": count, "cpu_seconds": cpu, "seconds": wall}


# --------------------------------------------------------------------------------- services


def _login(task: Task) -> ServiceLogin:
    chain = tuple(bytes.fromhex(each) for each in task["chain"])
    key = SigningKey.decode(bytes.fromhex(task["service_key"]))
    return ServiceLogin(ServiceCredentials(chain, key), ServiceRole.MESSAGING)


async def bulk(task: Task) -> Result:
    """One SUBS for all."""
    address = RouterAddress.parse(task["address"])
    # As any client of the public protocol.
    options = LinkOptions(offers_extension=False)
    link = await SmpLink.connect(address, options, service=_login(task))
    assert link.service is not None
    clock = _Clock(task["pid"])
    command = Subs(task["count"], bytes.fromhex(task["ids_hash"]))
    answer = await link.request(command, link.service.service_id, link.service.key)
    _, answer_seconds = clock.read()
    if not isinstance(answer, Soks) or answer.count != task["count"]:
        raise BenchError(f"the router answered {answer}")
    async with asyncio.timeout(_BULK_SECONDS_MAX):
        while not isinstance((await link.next_event()).message, Alls):
            pass
    cpu, all_seconds = clock.read()
    memory = memory_bytes(task["pid"])
    await link.close()
    return {
        "answer_seconds": answer_seconds,
        "all_seconds": all_seconds,
        "cpu_seconds": cpu,
        "memory_bytes": memory,
    }


async def individual(task: Task) -> Result:
    """One SUB for each of the same queues."""
    address = RouterAddress.parse(task["address"])
    options = LinkOptions(answer_timeout_s=_BULK_SECONDS_MAX)
    link = await SmpLink.connect(address, options, service=_login(task))
    key = PrivateKey(KeyKind.ED25519, bytes.fromhex(task["queue_key"]))
    count = task["individual_count"]
    clock = _Clock(task["pid"])
    for start in range(0, count, _PAGE_COUNT):
        numbers = range(start, min(start + _PAGE_COUNT, count))
        requests = [Request(Sub(), number.to_bytes(24), key) for number in numbers]
        for outcome in await link.request_many(requests):
            if not isinstance(outcome, Sok):
                raise BenchError(f"a queue was not subscribed: {outcome}")
    cpu, wall = clock.read()
    await link.close()
    return {"count": count, "cpu_seconds": cpu, "seconds": wall}


# ------------------------------------------------------------------------------------- idle


async def idle(task: Task) -> Result:
    address = RouterAddress.parse(task["address"])
    pid = task["pid"]
    links: list[SmpLink] = []
    memory: dict[int, int] = {}
    for goal in (task["base_count"], task["count"]):
        while len(links) < goal:
            wanted = min(_CONNECTING_AT_ONCE, goal - len(links))
            links += await asyncio.gather(*(SmpLink.connect(address) for _ in range(wanted)))
        await asyncio.sleep(task["settle_seconds"])
        memory[goal] = memory_bytes(pid)
    clock = _Clock(pid)
    await asyncio.sleep(task["settle_seconds"])
    cpu, wall = clock.read()
    lost_count = sum(link.end is not None for link in links)
    if lost_count:
        raise BenchError(f"{lost_count} idle connections were lost")
    extra = memory[task["count"]] - memory[task["base_count"]]
    return {
        "bytes_each": extra / (task["count"] - task["base_count"]),
        "memory_bytes": memory[task["count"]],
        "cpu_ms_per_second": cpu / wall * 1e3,
    }


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """A task that has ended by itself has failed."""
    for each in tasks:
        if each.done():
            each.result()
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_TASKS: dict[str, Callable[[Task], Awaitable[Result]]] = {
    "cycles": cycles,
    "batches": batches,
    "bulk": bulk,
    "individual": individual,
    "idle": idle,
}


async def _main() -> None:
    task: Task = json.loads(sys.argv[1])
    result = await _TASKS[task["task"]](task)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(_main())
