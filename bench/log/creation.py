"""Durable creation of queues: one record in the log, against a folder for each queue."""

from statistics import median

from bench.log.setting import Setting
from bench.support.figures import Figure, at_least_ratio
from bench.support.processes import run_worker
from bench.support.rounds import alternate, median_ratio


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan

    def create(kind: str, count: int) -> float:
        with setting.fresh_folder() as folder:
            task = {
                "task": "create",
                "kind": kind,
                "folder": str(folder),
                "queue_count": count,
                "in_flight": 64,
            }
            return float(run_worker("bench.log.worker", task)["per_second"])

    results = alternate(
        plan.round_count,
        {
            "log": lambda: create(setting.kind, plan.create_count),
            "journal": lambda: create("journal", plan.create_journal_count),
        },
        on_turn=lambda name: setting.doing(f"queue creation: {name}"),
    )
    setting.details["queue creation per second"] = results
    ours, theirs = results["log"], results["journal"]
    return [
        Figure(
            "durable queue creations/s, 64 in flight",
            median(ours),
            "journal (a folder per queue, synced)",
            median(theirs),
            median_ratio(ours, theirs),
            at_least_ratio(">= 20 x a folder per queue", 20),
        )
    ]
