"""Messages: the whole way of one at a time, and as many as fit into a block."""

import json
from collections import Counter
from pathlib import Path
from statistics import median

from bench.queues.pieces import Pieces, measure_pieces
from bench.queues.profiled import CRYPTOGRAPHY
from bench.queues.router import running_router
from bench.queues.setting import Setting
from bench.support.figures import Bar, Figure, as_text, values_table
from bench.support.processes import run_worker

_DRIVER = "bench.queues.driver"
_QUOTA = 32_767


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    cycle_rounds: list[dict[str, float]] = []
    batch_rounds: list[dict[str, float]] = []
    pieces: list[Pieces] = []
    # CPU time by part, in steps.
    profile: Counter[str] = Counter()
    for number in range(plan.round_count):
        setting.status.update(f"messages: round {number + 1}")
        pieces.append(measure_pieces(plan.body_bytes))
        cycle_rounds.append(_cycles(setting))
        profile += _profile(setting)
        batch_rounds.append(_batches(setting))
    setting.details["cycles"], setting.details["batches"] = cycle_rounds, batch_rounds
    floor = [1e6 / each.cycle_us for each in pieces]
    ours = [each["count"] / each["cpu_seconds"] for each in cycle_rounds]
    setting.details["profile"] = dict(profile)
    parts = {name: count / profile.total() for name, count in profile.most_common()}
    _print(setting, pieces[-1], cycle_rounds[-1], batch_rounds[-1], parts)
    return [
        Figure(
            f"whole cycles per CPU second, {plan.pair_count} pairs, one message a block",
            median(ours),
            "its cryptography alone",
            median(floor),
            median(a / b for a, b in zip(ours, floor, strict=True)),
            Bar(">= 1,500", 1_500, "at least", "ours"),
        ),
        Figure(
            "part of a cycle that is cryptography and TLS",
            sum(parts.get(name, 0) for name in CRYPTOGRAPHY),
            bar=Bar(">= 0.5", 0.5, "at least", "ours"),
        ),
        Figure(
            "SENDs of 1 KB per CPU second, as many as fit into a block",
            median(each["count"] / each["cpu_seconds"] for each in batch_rounds),
            bar=Bar(">= 4,000", 4_000, "at least", "ours"),
        ),
    ]


def _cycles(setting: Setting, profile: Path | None = None) -> dict[str, float]:
    plan = setting.plan
    with setting.fresh_folder() as folder, running_router(folder, profile=profile) as router:
        task = {
            "task": "cycles",
            "address": router.address,
            "pid": router.pid,
            "is_profiled": profile is not None,
            "pair_count": plan.pair_count,
            "body_bytes": plan.body_bytes,
            "warm_seconds": plan.warm_seconds,
            "seconds": plan.cycle_seconds,
        }
        found: dict[str, float] = run_worker(_DRIVER, task)
        return found


def _profile(setting: Setting) -> Counter[str]:
    """Where the CPU time of cycles goes; a run of its own, as looking takes some, too."""
    with setting.fresh_folder() as folder:
        path = folder.with_name("profile")
        _cycles(setting, path)
        return Counter(json.loads(path.read_text()))


def _batches(setting: Setting) -> dict[str, float]:
    plan = setting.plan
    with setting.fresh_folder() as folder, running_router(folder, smp_quota=_QUOTA) as router:
        task = {
            "task": "batches",
            "address": router.address,
            "pid": router.pid,
            "link_count": plan.batch_link_count,
            "queue_count": plan.batch_queue_count,
            "body_bytes": plan.body_bytes,
            "seconds": plan.batch_seconds,
        }
        found: dict[str, float] = run_worker(_DRIVER, task)
        return found


def _print(
    setting: Setting,
    pieces: Pieces,
    cycle: dict[str, float],
    batch: dict[str, float],
    parts: dict[str, float],
) -> None:
    rows = [
        ["sealing a block", as_text(pieces.seal_us)],
        ["opening a block", as_text(pieces.open_us)],
        ["TLS, writing a block", as_text(pieces.tls_write_us)],
        ["TLS, reading a block", as_text(pieces.tls_read_us)],
        ["checking an Ed25519 signature", as_text(pieces.check_us)],
        ["encrypting a body", as_text(pieces.body_us)],
        ["all of a cycle", as_text(pieces.cycle_us)],
        ["a cycle of the router", as_text(cycle["cpu_seconds"] / cycle["count"] * 1e6)],
        ["a batched SEND of the router", as_text(batch["cpu_seconds"] / batch["count"] * 1e6)],
    ]
    title = f"CPU of one message of {setting.plan.body_bytes} bytes"
    setting.console.print(values_table(title, ["piece", "µs"], rows))
    shares = [[name, f"{100 * part:.1f}"] for name, part in parts.items()]
    setting.console.print(values_table("CPU time of the router in cycles", ["of", "%"], shares))
