"""Fixed cases at one size: bytes and round trips of each, the worst of some fresh sets."""

from collections.abc import Callable
from functools import partial

import numpy as np

from bench.reconcile.drifts import Drift, block_drift, even_drift
from bench.reconcile.sessions import DETECTION_BYTES, Played, play
from bench.reconcile.setting import Setting
from bench.support.figures import Figure, at_most, values_table
from syncline.core.reconciliation.initiator import Mode

# The public range-based reconciler (C++ and JavaScript alike) in 16 KB frames, a million ids of the
# same kind on another machine: bytes and round trips. Not run here: no package has it.
ELSEWHERE = {
    1: "2.2 KB, 3 round trips",
    10: "17.5 KB, 3 round trips",
    100: "147 KB, 9 round trips",
    1_000: "1.3 MB, 59 round trips",
    10_000: "11.2 MB, 521 round trips",
}

Make = Callable[[np.random.Generator], Drift]


def measure(setting: Setting) -> list[Figure]:
    plan, count = setting.plan, setting.plan.set_count
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []

    def run(name: str, make: Make, mode: Mode = Mode.SKETCH) -> tuple[list[Played], list[Drift]]:
        setting.doing(f"{name} of {count:,}")
        random = setting.random(len(rows))
        drifts = [make(random) for _ in range(plan.repeat_count)]
        played = [play(drift, random, mode=mode) for drift in drifts]
        worst = max(range(len(played)), key=lambda at: played[at].byte_count)
        drift, one = drifts[worst], played[worst]
        rows.append(
            (
                name,
                f"{drift.difference:,}",
                f"{one.byte_count:,}",
                f"{one.byte_count / max(1, drift.difference):,.1f}",
                f"{one.byte_count / drift.limit_bytes:,.2f}" if drift.limit_bytes > 1 else "-",
                f"{one.round_trips}",
                f"{one.block_count}",
                f"{one.mine_seconds * 1000:,.0f} / {one.theirs_seconds * 1000:,.0f}",
                " ".join(one.asked),
            )
        )
        return played, drifts

    played, _ = run("equal", lambda random: even_drift(random, count, 0, 0))
    beyond = max(one.byte_count for one in played) - DETECTION_BYTES
    figures.append(Figure("equal: B beyond SUBS and SOKS", beyond, bar=at_most("0", 0)))
    played, _ = run("one lost", lambda random: even_drift(random, count, 0, 1))
    figures += (
        _worst_bytes("one lost: B", played, "< 750", 750, ELSEWHERE[1]),
        _worst_trips("one lost: round trips", played, 1),
    )
    for difference in plan.differences:
        half = difference // 2
        played, _ = run(f"{difference:,} even", partial(_even, count, half, half))
        bound = 32 * 2 * half + 1_024
        note = ELSEWHERE.get(difference, "")
        name = f"{difference:,} even"
        figures += (
            _worst_bytes(f"{name}: B", played, "<= 32 d + 1 KB", bound, note),
            _worst_trips(f"{name}: round trips", played, 6),
        )
    played, _ = run("they have none", lambda random: even_drift(random, count, 0, count))
    figures.append(_worst_trips("they have none: round trips", played, 1))
    figures += _ratio_figure("full list", *run("list", lambda r: even_drift(r, 0, count, 0)), 1.01)
    figures += _ratio_figure(
        "they lost half", *run("half", lambda r: even_drift(r, count, 0, count // 2)), 6.0
    )
    run("I lost half", lambda random: even_drift(random, count // 2, count // 2, 0))
    run("a tenth in one block", lambda random: block_drift(random, count, count // 10))
    for difference in plan.plain_differences:
        for mode in (Mode.RANGES, Mode.PLAIN):
            half = difference // 2
            rest = difference - half
            run(f"{difference:,} even, {mode.value}", partial(_even, count, half, rest), mode)
    header = ("case", "d", "B", "B/d", "/limit", "trips", "blocks", "ms mine/theirs", "asked")
    setting.console.print(
        values_table(f"{count:,} ids, the worst of {plan.repeat_count}", header, rows)
    )
    setting.details["fixed"] = rows
    return figures


def _even(count: int, missing: int, extra: int, random: np.random.Generator) -> Drift:
    return even_drift(random, count, missing, extra)


def _worst_bytes(name: str, played: list[Played], text: str, bound: float, note: str) -> Figure:
    worst = max(one.byte_count for one in played)
    return Figure(name, worst, bar=at_most(text, bound), note=f"elsewhere: {note}" if note else "")


def _worst_trips(name: str, played: list[Played], bound: int) -> Figure:
    worst = max(one.round_trips for one in played)
    return Figure(name, worst, bar=at_most(f"<= {bound}", bound))


def _ratio_figure(
    name: str, played: list[Played], drifts: list[Drift], bound: float
) -> tuple[Figure]:
    pairs = zip(played, drifts, strict=True)
    worst = max(one.byte_count / drift.limit_bytes for one, drift in pairs)
    return (Figure(f"{name}: x information limit", worst, bar=at_most(f"<= {bound:g}", bound)),)
