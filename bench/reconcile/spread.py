"""Fresh random sets, new at every run: how many round trips, how many bytes, always the truth."""

from collections import Counter

import numpy as np

from bench.reconcile.drifts import KINDS, Drift, even_drift, fresh_drift
from bench.reconcile.sessions import Played, play
from bench.reconcile.setting import Setting
from bench.support.figures import Figure, at_most, values_table


def measure(setting: Setting) -> list[Figure]:
    return [*_every_kind(setting), *_even(setting)]


def _every_kind(setting: Setting) -> list[Figure]:
    trips: dict[str, list[int]] = {kind: [] for kind in KINDS}
    random = setting.random(1_000)
    for count, set_count in setting.plan.fresh:
        for number in range(set_count):
            setting.doing(f"fresh sets of {count:,}: {number} of {set_count}")
            kind, _, drift = fresh_drift(random, count)
            trips[kind].append(play(drift, random).round_trips)
    every = [number for kind in KINDS for number in trips[kind]]
    rows = [
        (kind, f"{len(found)}", *(f"{Counter(found)[number]}" for number in range(1, 7)))
        for kind, found in (*trips.items(), ("all", every))
    ]
    header = ("fresh sets", "sets", *(f"{number} trips" for number in range(1, 7)))
    setting.console.print(values_table("Round trips, detection among them", header, rows))
    setting.details["fresh"] = rows
    return [
        Figure("fresh sets, all correct", len(every), note="lists equal to the true difference"),
        Figure("fresh sets: round trips, median", _quantile(every, 0.5), bar=at_most("2", 2)),
        Figure("fresh sets: round trips, p95", _quantile(every, 0.95), bar=at_most("4", 4)),
        Figure("fresh sets: round trips, most", max(every), bar=at_most("6", 6)),
    ]


def _even(setting: Setting) -> list[Figure]:
    random = setting.random(2_000)
    found: list[tuple[Drift, Played]] = []
    for count, set_count in setting.plan.fresh_even:
        for number in range(set_count):
            setting.doing(f"even drift in {count:,}: {number} of {set_count}")
            most = min(10_000, 0.2 * count)
            half = int(np.exp(random.uniform(np.log(5), np.log(most / 2))))
            drift = even_drift(random, count, half, half)
            found.append((drift, play(drift, random)))
    figures: list[Figure] = []
    for low, high, bound in ((30, 300, 5.0), (300, 1 << 62, 3.0)):
        band = [pair for pair in found if low <= pair[0].difference < high]
        ratios = [played.byte_count / drift.limit_bytes for drift, played in band]
        name = f"even drift of {low}-{high}" if high < 1 << 62 else f"even drift above {low}"
        if ratios:
            note = f"{len(ratios)} sets, median {np.median(ratios):.2f}"
            bar = at_most(f"<= {bound:g}", bound)
            figures.append(Figure(f"{name}: x limit, most", max(ratios), bar=bar, note=note))
    over = [played.byte_count - 32 * drift.difference for drift, played in found]
    text = f"{len(over)} sets, {sum(beyond > 1_024 for beyond in over)} beyond"
    figures.append(
        Figure("even drift: B above 32 d, most", max(over), bar=at_most("1 KB", 1_024), note=text)
    )
    trips = [played.round_trips for _, played in found]
    figures.append(
        Figure("even drift: round trips, p95", _quantile(trips, 0.95), bar=at_most("4", 4))
    )
    return figures


def _quantile(values: list[int], part: float) -> float:
    return float(np.quantile(values, part, method="higher"))
