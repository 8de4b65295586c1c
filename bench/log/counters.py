"""What one durable message costs the device: flushes and bytes, from the device's own counters.

Counters do not depend on how busy the machine is, so each store runs once. The embedded stores do
the same work: groups of 64 messages, nine queues in ten acknowledged a thousand messages later.
Redis and NATS only append.
"""

import random
from collections.abc import Mapping

from bench.log.in_process import available_peers
from bench.log.plan import KB
from bench.log.resp import make_queues
from bench.log.setting import Setting
from bench.log.sockets import CONNECTIONS
from bench.log.worker import OURS
from bench.peers import nats, redis
from bench.support.device import (
    Counters,
    PrivateDevice,
    private_device,
    read_counters,
    sync_file_system,
    why_no_device,
)
from bench.support.figures import Bar, Figure, as_text, at_most, values_table
from bench.support.processes import run_worker
from bench.support.redis_benchmark import append_messages, body_of

_FLUSH_NAME = "device flushes per durable 1 KB message, 64 in flight"
_FLUSH_BAR = at_most("<= 1/60", 1 / 60)
_BYTES_NAME = "device bytes per payload byte, 1 KB, 64 in flight, checkpoint included"
_BYTES_BAR = at_most("<= 1.20 x payload", 1.20)

Cost = dict[str, float]


def measure(setting: Setting) -> list[Figure]:
    reason = why_no_device()
    if reason is None:
        try:
            with private_device(setting.plan.device_image_bytes, setting.folder) as device:
                costs = _all_costs(setting, device)
        except OSError as error:
            reason = str(error)
    if reason is not None:
        setting.console.print(f"[yellow]Device counters are not measured: {reason}[/]")
        return [
            Figure(_FLUSH_NAME, None, bar=_FLUSH_BAR, note=reason),
            Figure(_BYTES_NAME, None, bar=_BYTES_BAR, note=reason),
        ]
    _print_costs(setting, costs)
    setting.details["device cost"] = costs
    return [
        _figure(_FLUSH_NAME, costs, "flushes", 1, _FLUSH_BAR),
        _figure(_BYTES_NAME, costs, "device_bytes", 1 * KB, _BYTES_BAR),
    ]


def _all_costs(setting: Setting, device: PrivateDevice) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    for store in (OURS, *available_peers(setting)):
        setting.doing(f"device cost: {store}")
        costs[store] = _embedded_cost(setting, device, store)
    if redis.missing() is None:
        setting.doing("device cost: Redis")
        costs["Redis, c64"] = _redis_cost(setting, device)
    if nats.missing() is None:
        setting.doing("device cost: NATS")
        costs["NATS, 64 un-acked"] = _nats_cost(setting, device)
    return costs


def _embedded_cost(setting: Setting, device: PrivateDevice, store: str) -> Cost:
    plan = setting.plan
    # Only ours uses its files again and has to be led up to that; peers need not run so long.
    is_ours = store == OURS
    with setting.fresh_folder(device.folder) as folder:
        result: Cost = run_worker(
            "bench.log.worker",
            {
                "task": "device_cost",
                "store": store,
                "kind": setting.kind,
                "folder": str(folder),
                "device": device.name,
                "queue_count": plan.queue_count,
                "body_bytes": 1 * KB,
                "in_flight": 64,
                "lag": 1024,
                "unmeasured": plan.cost_unmeasured_count if is_ours else plan.cost_peer_count // 4,
                "message_count": plan.cost_count if is_ours else plan.cost_peer_count,
            },
        )
    return result


def _redis_cost(setting: Setting, device: PrivateDevice) -> Cost:
    count = setting.plan.socket_counts[1 * KB, 1]
    with setting.fresh_folder(device.folder) as folder, redis.redis_always(folder) as server:
        make_queues(server.port, setting.plan.queue_count)
        before = _settled_counters(device)
        result = append_messages(
            server,
            count=count,
            connections=CONNECTIONS,
            pipelined=1,
            queues=setting.plan.queue_count,
            body=body_of(1 * KB),
        )
        used = _settled_counters(device).since(before)
    return _cost(used, count) | {"cpu_us": result.cpu_us}


def _nats_cost(setting: Setting, device: PrivateDevice) -> Cost:
    count = setting.plan.nats_counts[64]
    chance = random.Random(6)
    subjects = [b"%d" % chance.randrange(setting.plan.queue_count) for _ in range(count)]
    with setting.fresh_folder(device.folder) as folder, nats.jetstream_always(folder) as server:
        publisher = nats.Publisher(server)
        before, cpu_before = _settled_counters(device), server.cpu_seconds()
        publisher.publish(subjects, [chance.randbytes(1 * KB)] * count, 64)
        cpu = server.cpu_seconds() - cpu_before
        used = _settled_counters(device).since(before)
        publisher.close()
    return _cost(used, count) | {"cpu_us": cpu / count * 1e6}


def _settled_counters(device: PrivateDevice) -> Counters:
    sync_file_system(device.folder)
    return read_counters(device.name)


def _cost(used: Counters, count: int) -> Cost:
    return {"flushes": used.flush_count / count, "device_bytes": used.written_bytes / count}


def _print_costs(setting: Setting, costs: Mapping[str, Cost]) -> None:
    rows = [
        [name, *(as_text(cost[key]) for key in ("flushes", "device_bytes", "cpu_us"))]
        for name, cost in costs.items()
    ]
    header = ["store", "flushes / message", "device bytes / message", "CPU µs"]
    title = "One durable 1 KB message, 64 in flight, on a private device"
    setting.console.print(values_table(title, header, rows))


def _figure(name: str, costs: Mapping[str, Cost], key: str, unit: float, bar: Bar) -> Figure:
    """Beside the peer that costs least."""
    ours = costs[OURS][key] / unit
    peers = {peer: cost[key] / unit for peer, cost in costs.items() if peer != OURS}
    if not peers:
        return Figure(name, ours, bar=bar, note="no peer is installed")
    best = min(peers, key=lambda peer: peers[peer])
    return Figure(name, ours, best, peers[best], ours / peers[best], bar)
