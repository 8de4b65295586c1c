"""Clients that are connected and silent: what each keeps in memory."""

from statistics import median
from typing import Any

from bench.queues.router import running_router
from bench.queues.setting import Setting
from bench.support.figures import Figure, at_most
from bench.support.processes import run_worker
from syncline.values.limits import KIB


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    rounds: list[dict[str, Any]] = []
    for number in range(plan.round_count):
        setting.status.update(f"idle: round {number + 1}")
        with setting.fresh_folder() as folder, running_router(folder) as router:
            task = {
                "task": "idle",
                "address": router.address,
                "pid": router.pid,
                "count": plan.idle_count,
                "base_count": plan.idle_base_count,
                "settle_seconds": plan.settle_seconds,
            }
            rounds.append(run_worker("bench.queues.driver", task))
    setting.details["idle"] = rounds
    return [
        Figure(
            f"bytes per idle connection, {plan.idle_count:,} connected",
            median(one["bytes_each"] for one in rounds),
            bar=at_most("<= 60 KB", 60 * KIB),
        ),
        Figure(
            f"CPU ms per second of silence, {plan.idle_count:,} connected",
            median(one["cpu_ms_per_second"] for one in rounds),
        ),
    ]
