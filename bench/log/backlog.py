"""A backlog that grows: a steady rate of messages that nobody reads, and what senders notice of it.

Reported without a bar. What is sealed, merged and prepared beside the log shows here, as does an
append-only file that Redis writes anew.
"""

from functools import partial
from statistics import median

from bench.log.plan import KB
from bench.log.resp import count_stored, make_queues
from bench.log.setting import Setting
from bench.log.sockets import CONNECTIONS, Opener, Result, servers_with_store
from bench.support.figures import Figure, as_text, values_table
from bench.support.processes import BenchError, cpu_seconds, run_worker
from bench.support.rounds import alternate

_BODY_BYTES = 16 * KB
_COLUMNS = ("message_count", "p50_ms", "p99_ms", "longest_ms", "cpu_us")


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan

    def run(opener: Opener) -> Result:
        with setting.fresh_folder() as folder, opener(folder) as server:
            make_queues(server.port, plan.queue_count)
            cpu_before = cpu_seconds(server.pid)
            result: Result = run_worker(
                "bench.log.paced_client",
                {
                    "port": server.port,
                    "connections": CONNECTIONS,
                    "rate": plan.backlog_rate,
                    "seconds": plan.backlog_seconds,
                    "queue_count": plan.queue_count,
                    "body_bytes": _BODY_BYTES,
                },
            )
            cpu = cpu_seconds(server.pid) - cpu_before
            if count_stored(server.port, plan.queue_count) != result["message_count"]:
                raise BenchError(f"{server.name} does not hold what was sent")
        return result | {"cpu_us": cpu / result["message_count"] * 1e6}

    results = alternate(
        plan.round_count,
        {name: partial(run, opener) for name, opener in servers_with_store(setting).items()},
        on_turn=lambda name: setting.doing(f"a backlog that grows: {name}"),
    )
    setting.details["backlog"] = results
    setting.console.print(
        values_table(
            f"{plan.backlog_rate:,} messages of {_BODY_BYTES // KB} KB a second for "
            f"{plan.backlog_seconds} s, nobody reads (medians)",
            ["server", "sent", "p50 ms", "p99 ms", "longest ms", "server CPU µs"],
            [
                [name, *(as_text(median(result[key] for result in found)) for key in _COLUMNS)]
                for name, found in results.items()
            ],
        )
    )
    return []
