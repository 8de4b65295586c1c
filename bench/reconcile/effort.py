"""CPU: keeping a sketch, a session with kept sketches, a session on demand, hashing, ranges.

What takes a scan is measured twice: with NumPy, and with compiled kernels where numba is installed.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import numpy as np
import xxhash

from bench.reconcile.drifts import Drift, even_drift, random_ids
from bench.reconcile.sessions import play
from bench.reconcile.setting import Setting
from bench.support.figures import Figure, at_most
from syncline.core.reconciliation.kept import CELL_COUNT_DEFAULT, KeptSketch
from syncline.core.reconciliation.sets import END, SetView, Snapshot
from syncline.kernels import compiled, md5, xxh3

SALT = b"benchmar"


def measure(setting: Setting) -> list[Figure]:
    return [
        *_kept(setting),
        *_kept_session(setting),
        *_prepared(setting),
        *_on_demand(setting),
        *_kernels(setting),
    ]


def _cpu(work: Callable[[], object], repeat_count: int = 3) -> float:
    """The best of some: the others were disturbed."""
    found: list[float] = []
    for _ in range(repeat_count):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def _kept(setting: Setting) -> list[Figure]:
    setting.doing("kept sketch")
    count = setting.plan.kept_change_count
    ids = [row.tobytes() for row in random_ids(setting.random(3_000), count)]
    figures: list[Figure] = []
    for cell_count in (CELL_COUNT_DEFAULT, 40):
        kept = KeptSketch(SALT, cell_count)

        def change(kept: KeptSketch = kept) -> None:
            for id_ in ids:
                kept.add(id_)
            for id_ in ids:
                kept.remove(id_)

        each = _cpu(change) / (2 * count) * 1e6
        bar = at_most("< 15", 15) if cell_count == CELL_COUNT_DEFAULT else at_most("< 5", 5)
        figures.append(Figure(f"kept sketch of {cell_count}: us per change", each, bar=bar))
    return figures


def _kept_session(setting: Setting) -> list[Figure]:
    """Both sides keep a sketch that fills a block; mine keeps an index of its hashes as well."""
    count = setting.plan.set_count
    difference = min(1_200, count // 5)
    mine_ms: list[float] = []
    theirs_ms: list[float] = []
    for number in range(3):
        setting.doing("session with kept sketches")
        random = setting.random(4_000 + number)
        drift = even_drift(random, count, 0, difference)
        view = SetView(drift.mine)
        view.index(SALT)
        played = play(
            drift,
            random,
            opening_cells=CELL_COUNT_DEFAULT,
            mine=view,
            my_sketch=_sketch_of(drift.mine),
            their_sketch=_sketch_of(drift.theirs),
            salt=SALT,
        )
        mine_ms.append(played.mine_seconds * 1000)
        theirs_ms.append(played.theirs_seconds * 1000)
    name = f"{difference:,} lost, kept sketches"
    return [
        Figure(f"{name}: ms mine", median(mine_ms), bar=at_most("< 20", 20)),
        Figure(f"{name}: ms theirs", median(theirs_ms), note="digest of the whole kept or not"),
    ]


def _sketch_of(ids: Snapshot) -> KeptSketch:
    # What a store keeps beside it.
    ids.digest(b"", END)
    return KeptSketch.of_view(SetView(ids), SALT)


def _prepared(setting: Setting) -> list[Figure]:
    """From here on kernels are compiled, unless they are switched off."""
    setting.doing("compiling")
    start = time.perf_counter()
    compiled.prepare()
    seconds = time.perf_counter() - start
    if not compiled.is_ready():
        return [Figure("compiled kernels: s until ready", None, note=compiled.why_not())]
    return [Figure("compiled kernels: s until ready", seconds, note="less if the disk has them")]


def _in_both_forms(work: Callable[[], list[float]]) -> tuple[list[float], list[float] | None]:
    """Several values with NumPy, and the same compiled if that is possible."""
    with compiled.switched_off():
        plain = work()
    return plain, work() if compiled.is_ready() else None


def _form_figures(
    name: str, unit: str, plain: float, quick: float | None, bounds: tuple[float, float]
) -> list[Figure]:
    bars = [at_most(f"<= {bound:g}", bound) for bound in bounds]
    figures = [Figure(f"{name}: {unit}", plain, bar=bars[0], note="NumPy")]
    if quick is None:
        note = compiled.why_not()
        return [*figures, Figure(f"{name}, compiled: {unit}", None, bar=bars[1], note=note)]
    return [
        *figures,
        Figure(f"{name}, compiled: {unit}", quick, "NumPy", plain, quick / plain, bars[1]),
    ]


def _on_demand(setting: Setting) -> list[Figure]:
    count = setting.plan.set_count
    half = min(5_000, count // 20)
    figures: list[Figure] = []
    for name, missing, extra in (
        ("one lost", 0, 1),
        (f"{2 * half:,} even", half, half),
        ("half lost", 0, count // 2),
    ):
        setting.doing(f"on demand: {name}")
        random = setting.random(5_000)
        drift = even_drift(random, count, missing, extra)

        def work(drift: Drift = drift, random: np.random.Generator = random) -> list[float]:
            both = [play(drift, random) for _ in range(3)]
            return [min(p.mine_seconds for p in both), min(p.theirs_seconds for p in both)]

        plain, quick = _in_both_forms(work)
        for side, unit in enumerate(("s mine", "s theirs")):
            found = None if quick is None else quick[side]
            figures += _form_figures(f"on demand, {name}", unit, plain[side], found, (1.0, 0.4))
    return figures


def _kernels(setting: Setting) -> list[Figure]:
    setting.doing("kernels")
    count = setting.plan.set_count
    random = setting.random(6_000)
    ids = random_ids(random, count)
    ids_set = Snapshot(ids)
    ids_set.digest(b"", b"\x80")
    edges = np.sort(random.integers(0, 1 << 63, (setting.plan.range_count, 2)), axis=1)
    bounds = [(int(low).to_bytes(8, "big"), int(high).to_bytes(8, "big")) for low, high in edges]

    def read_ranges() -> None:
        for low, high in bounds:
            ids_set.digest(low, high)

    each = 1e9 / count
    some = [row.tobytes() for row in ids[:100_000]]
    by_xxhash = _cpu(lambda: [xxhash.xxh3_128_intdigest(id_) for id_ in some]) * 1e9 / len(some)
    by_hashlib = _cpu(lambda: [hashlib.md5(id_).digest() for id_ in some]) * 1e9 / len(some)
    figures: list[Figure] = []
    for form, xxh3_bound, md5_bound in (("", 25, 120), (", compiled", 5, 120)):
        if form and not compiled.is_ready():
            continue
        with nullcontext() if form else compiled.switched_off():
            figures += (
                _beside(
                    f"XXH3-128 digest{form}: ns per id",
                    _cpu(lambda: xxh3.digest(ids)) * each,
                    "xxhash, one by one",
                    by_xxhash,
                    xxh3_bound,
                ),
                _beside(
                    f"MD5{form}: ns per id",
                    _cpu(lambda: md5.xor_md5(ids)) * each,
                    "hashlib, one by one",
                    by_hashlib,
                    md5_bound,
                ),
            )
    return [
        *figures,
        Figure(
            "count and digest of a range: us",
            _cpu(read_ranges) / len(bounds) * 1e6,
            bar=at_most("<= 35", 35),
        ),
    ]


def _beside(name: str, ours: float, peer: str, value: float, bound: float) -> Figure:
    """The bar is for a quiet machine; the ratio holds on any."""
    bar = at_most(f"<= {bound:g}", bound)
    return Figure(name, ours, peer, value, ours / value, bar, "bar: on a quiet machine")
