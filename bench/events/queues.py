"""A message of a queue: sent, delivered and acknowledged, with two rows of events."""

from bench.events.setting import Setting
from bench.queues.router import running_router
from bench.support.figures import Figure
from bench.support.processes import run_worker

_DRIVER = "bench.queues.driver"


def measure(setting: Setting) -> list[Figure]:
    return [setting.compare("a message over SMP", lambda is_on: _cycle(setting, is_on))]


def _cycle(setting: Setting, is_on: bool) -> float:
    plan = setting.plan
    with (
        setting.fresh_folder() as folder,
        running_router(folder / "data", audit_events=is_on) as router,
    ):
        task = {
            "task": "cycles",
            "address": router.address,
            "pid": router.pid,
            "is_profiled": False,
            "pair_count": plan.pair_count,
            "body_bytes": plan.body_bytes,
            "warm_seconds": plan.warm_seconds,
            "seconds": plan.seconds,
        }
        found: dict[str, float] = run_worker(_DRIVER, task)
        return found["cpu_seconds"] / found["count"]
