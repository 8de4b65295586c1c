"""Over the socket: the same client against Redis and against our store behind RESP.

Appends come from redis-benchmark, deliver+ack from `bench.log.resp_client`. Both servers answer an
append only after their sync. Redis does so for an acknowledgement as well; ours answers it at once
and writes it a moment later. Each run starts its server on an empty folder. Beside them runs our
front without a store: what it takes is Python's, whatever the store does.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from bench.log.http_rounds import measure_http
from bench.log.plan import KB
from bench.log.resp import check_stored_body, count_stored, make_queues
from bench.log.resp_server import NO_STORE
from bench.log.setting import Setting
from bench.log.worker import OURS
from bench.peers import nats, redis
from bench.support.figures import (
    Bar,
    Figure,
    as_text,
    at_least_ratio,
    at_most_ratio,
    values_table,
)
from bench.support.processes import (
    BenchError,
    free_port,
    run_worker,
    start,
    stop,
    wait_until_listening,
)
from bench.support.redis_benchmark import append_messages, body_of
from bench.support.rounds import alternate, median_ratio
from bench.support.servers import Server

Result = dict[str, float]
Results = dict[str, list[Result]]
Opener = Callable[[Path], AbstractContextManager[Server]]

CONNECTIONS = 64
_REDIS = "Redis"
_BARE_FRONT = "front alone"


@contextlib.contextmanager
def our_server(folder: Path, kind: str, name: str = OURS) -> Iterator[Server]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder.parent / "server.log"
    process = start(
        [
            *(sys.executable, "-m", "bench.log.resp_server"),
            *("--folder", str(folder), "--port", str(port), "--store", kind),
        ],
        log=log,
    )
    try:
        wait_until_listening(process, port, log)
        yield Server(name, port, process.pid)
    finally:
        stop(process)


def servers(setting: Setting) -> dict[str, Opener]:
    """Those that can be started here."""
    front = partial(our_server, kind=NO_STORE, name=_BARE_FRONT)
    return {**servers_with_store(setting), _BARE_FRONT: front}


def servers_with_store(setting: Setting) -> dict[str, Opener]:
    """Those of them that keep anything."""
    found: dict[str, Opener] = {OURS: partial(our_server, kind=setting.kind)}
    reason = redis.missing()
    if reason is None:
        found[_REDIS] = redis.redis_always
    else:
        setting.console.print(f"[yellow]{_REDIS} is left out: {reason}[/]")
    return found


def measure(setting: Setting) -> list[Figure]:
    openers = servers(setting)
    if redis.missing() is not None:
        return _unmeasured("redis-benchmark, the client of these rounds, is missing")
    appended = {
        cell: _append_rounds(setting, openers, *cell) for cell in setting.plan.socket_counts
    }
    delivered = _deliver_rounds(setting, openers)
    published = _publish_rounds(setting)
    http = measure_http(setting)
    _print_tables(setting, appended, delivered, published, http)
    setting.details["over the socket"] = {
        "append": {f"{size} B, P{deep}": found for (size, deep), found in appended.items()},
        "deliver+ack": delivered,
        "NATS publish": published,
        "HTTP append": http,
    }
    return [
        _cpu_figure(delivered),
        *_append_figures(appended),
        _deliver_figure(delivered),
        _nats_figure(appended, published),
    ]


# Rounds.


def _append_rounds(
    setting: Setting, openers: Mapping[str, Opener], body_bytes: int, pipelined: int
) -> Results:
    plan = setting.plan
    count = plan.socket_counts[body_bytes, pipelined]
    body = body_of(body_bytes)

    def run(opener: Opener) -> Result:
        with setting.fresh_folder() as folder, opener(folder) as server:
            make_queues(server.port, plan.queue_count)
            result = append_messages(
                server,
                count=count,
                connections=CONNECTIONS,
                pipelined=pipelined,
                queues=plan.queue_count,
                body=body,
            )
            stored = count_stored(server.port, plan.queue_count)
            check_stored_body(server.port, plan.queue_count, body)
        # The client sends whole pipelines: it may send a little more than it was asked to.
        if not count <= stored <= count + CONNECTIONS * pipelined:
            raise BenchError(f"{server.name} took {count} messages and holds {stored}")
        return asdict(result)

    label = f"appends over the socket, {body_bytes // KB} KB, {pipelined} pipelined"
    return alternate(
        plan.round_count,
        {name: partial(run, opener) for name, opener in openers.items()},
        on_turn=lambda name: setting.doing(f"{label}: {name}"),
    )


def _deliver_rounds(setting: Setting, openers: Mapping[str, Opener]) -> Results:
    plan = setting.plan

    def run(opener: Opener) -> Result:
        with setting.fresh_folder() as folder, opener(folder) as server:
            result: Result = run_worker(
                "bench.log.resp_client",
                {
                    "port": server.port,
                    "server_pid": server.pid,
                    "connections": CONNECTIONS,
                    "pipelined": 16,
                    "trip_count": plan.deliver_trip_count,
                    "cycle_count": plan.deliver_cycle_count,
                    "queue_count": plan.queue_count,
                    "body_bytes": 1 * KB,
                },
            )
        return result

    return alternate(
        plan.round_count,
        {name: partial(run, opener) for name, opener in openers.items()},
        on_turn=lambda name: setting.doing(f"deliver+ack over the socket: {name}"),
    )


def _publish_rounds(setting: Setting) -> dict[int, list[float]]:
    """NATS, messages per second by the number un-acknowledged; empty where it is missing."""
    reason = nats.missing()
    if reason is not None:
        setting.console.print(f"[yellow]NATS is left out: {reason}[/]")
        return {}
    plan = setting.plan
    chance = random.Random(6)
    body = chance.randbytes(1 * KB)
    rates: dict[int, list[float]] = {window: [] for window in plan.nats_counts}
    for _ in range(plan.round_count):
        for window, count in plan.nats_counts.items():
            setting.doing(f"NATS, {window} un-acknowledged")
            subjects = [b"%d" % chance.randrange(plan.queue_count) for _ in range(count)]
            with setting.fresh_folder() as folder, nats.jetstream_always(folder) as server:
                publisher = nats.Publisher(server)
                seconds = publisher.publish(subjects, [body] * count, window)
                publisher.close()
            rates[window].append(count / seconds)
    return rates


# Tables and figures.


def _print_tables(
    setting: Setting,
    appended: Mapping[tuple[int, int], Results],
    delivered: Results,
    published: Mapping[int, list[float]],
    http: list[Result],
) -> None:
    rows = [
        [
            f"append {size // KB} KB, c{CONNECTIONS} P{pipelined}",
            name,
            *(
                as_text(median(result[key] for result in found))
                for key in ("per_second", "cpu_us", "p50_ms", "p99_ms")
            ),
        ]
        for (size, pipelined), results in appended.items()
        for name, found in results.items()
    ]
    rows += [
        [
            f"deliver+ack 1 KB, c{CONNECTIONS} P16",
            name,
            *(as_text(median(result[key] for result in found)) for key in ("per_second", "cpu_us")),
            "-",
            "-",
        ]
        for name, found in delivered.items()
    ]
    rows += [
        [f"publish 1 KB, {window} un-acked", "NATS", as_text(median(rates)), "-", "-", "-"]
        for window, rates in published.items()
    ]
    if http:
        rate, cpu = (median(found[key] for found in http) for key in ("per_second", "cpu_us"))
        label = f"append 1 KB, c{CONNECTIONS}, HTTP API"
        rows.append([label, "syncline serve", as_text(rate), as_text(cpu), "-", "-"])
    header = ["durable, over the socket", "server", "per s", "server CPU µs", "p50 ms", "p99 ms"]
    setting.console.print(values_table("Over the socket (medians)", header, rows))


_BARS = {
    (1 * KB, 16): at_least_ratio(">= 1.2 x Redis always", 1.2),
    (16 * KB, 16): at_least_ratio(">= 2 x Redis always", 2),
    (1 * KB, 1): at_least_ratio(">= 1.0 x Redis always", 1),
}
_CPU_BAR = at_most_ratio("<= 0.6 x Redis", 0.6)
_CPU_NAME = "CPU µs per deliver+ack, over the socket, c64 P16"
_DELIVER_BAR = at_least_ratio(">= 2 x Redis always", 2)
_DELIVER_NAME = "deliver+ack/s, over the socket, c64 P16"
_NATS_BAR = at_least_ratio(">= 20 x NATS always", 20)
_NATS_NAME = "durable appends/s, over the socket, 1 KB, against 1,024 un-acked in NATS"


def _append_name(body_bytes: int, pipelined: int) -> str:
    how = f"c64 P{pipelined}" if pipelined > 1 else "c64, single requests"
    return f"durable appends/s, over the socket, {body_bytes // KB} KB, {how}"


def _against_redis(name: str, results: Results, key: str, bar: Bar) -> Figure:
    ours = [result[key] for result in results[OURS]]
    theirs = [result[key] for result in results[_REDIS]]
    return Figure(name, median(ours), _REDIS, median(theirs), median_ratio(ours, theirs), bar)


def _append_figures(appended: Mapping[tuple[int, int], Results]) -> list[Figure]:
    return [
        _against_redis(_append_name(*cell), appended[cell], "per_second", bar)
        for cell, bar in _BARS.items()
    ]


def _cpu_figure(delivered: Results) -> Figure:
    return _against_redis(_CPU_NAME, delivered, "cpu_us", _CPU_BAR)


def _deliver_figure(delivered: Results) -> Figure:
    return _against_redis(_DELIVER_NAME, delivered, "per_second", _DELIVER_BAR)


def _nats_figure(
    appended: Mapping[tuple[int, int], Results], published: Mapping[int, list[float]]
) -> Figure:
    ours = [result["per_second"] for result in appended[1 * KB, 16][OURS]]
    if not published:
        return Figure(_NATS_NAME, median(ours), bar=_NATS_BAR, note="NATS is missing")
    theirs = published[max(published)]
    ratio = median_ratio(ours, theirs)
    return Figure(
        _NATS_NAME,
        median(ours),
        "NATS JetStream",
        median(theirs),
        ratio,
        _NATS_BAR,
        note="each with its own client",
    )


def _unmeasured(reason: str) -> list[Figure]:
    named = [(_CPU_NAME, _CPU_BAR)]
    named += [(_append_name(*cell), bar) for cell, bar in _BARS.items()]
    named += [(_DELIVER_NAME, _DELIVER_BAR), (_NATS_NAME, _NATS_BAR)]
    return [Figure(name, None, bar=bar, note=reason) for name, bar in named]
