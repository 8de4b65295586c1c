"""In process: durable appends and deliver+ack of the embedded stores, round by round."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from bench.log.plan import BODY_SIZES, KB
from bench.log.setting import Setting
from bench.log.worker import BARE_DISK, OURS
from bench.peers import catalogue
from bench.support.figures import Figure, as_text, at_least_ratio, at_most_ratio, values_table
from bench.support.processes import run_worker
from bench.support.rounds import alternate, best_of, median_ratio

Results = dict[str, list[dict[str, float]]]

_OURS_BEHIND_COMMITTER = f"{OURS}, committer"


def measure(setting: Setting) -> list[Figure]:
    peers = available_peers(setting)
    by_cell = {
        (body_bytes, in_flight): _append_rounds(setting, peers, body_bytes, in_flight)
        for body_bytes, in_flight in setting.plan.append_counts
    }
    taken = _take_rounds(setting, peers)
    _print_appends(setting, by_cell)
    _print_cost(setting, by_cell[1 * KB, 64], taken)
    setting.details["append in process"] = {
        f"{body_bytes} B, {in_flight} in flight": results
        for (body_bytes, in_flight), results in by_cell.items()
    }
    setting.details["deliver+ack in process"] = taken
    return [
        _cpu_figure(by_cell[1 * KB, 64]),
        *(_speed_figure(by_cell[size, 64], size, list(peers)) for size in BODY_SIZES),
    ]


def available_peers(setting: Setting) -> list[str]:
    found: list[str] = []
    for name in catalogue.EMBEDDED_NAMES:
        reason = catalogue.missing(name)
        if reason is None:
            found.append(name)
        else:
            setting.console.print(f"[yellow]{name} is left out: {reason}[/]")
    return found


def _run(setting: Setting, task: Mapping[str, object]) -> dict[str, float]:
    with setting.fresh_folder() as folder:
        result: dict[str, float] = run_worker(
            "bench.log.worker", {**task, "folder": str(folder), "kind": setting.kind}
        )
    return result


def _rounds(
    setting: Setting, label: str, contestants: Mapping[str, Callable[[], dict[str, float]]]
) -> Results:
    return alternate(
        setting.plan.round_count,
        contestants,
        on_turn=lambda name: setting.doing(f"{label}: {name}"),
    )


def _append_rounds(setting: Setting, peers: list[str], body_bytes: int, in_flight: int) -> Results:
    task = {
        "queue_count": setting.plan.queue_count,
        "body_bytes": body_bytes,
        "in_flight": in_flight,
        "message_count": setting.plan.append_counts[body_bytes, in_flight],
    }
    contestants = {
        name: partial(_run, setting, {**task, "task": "append", "store": name})
        for name in (OURS, *peers, BARE_DISK)
    }
    contestants[_OURS_BEHIND_COMMITTER] = partial(
        _run, setting, {**task, "task": "append_by_producers", "store": OURS}
    )
    label = f"appends in process, {body_bytes // KB} KB, {in_flight} in flight"
    return _rounds(setting, label, contestants)


def _take_rounds(setting: Setting, peers: list[str]) -> Results:
    task = {
        "task": "take",
        "queue_count": setting.plan.queue_count,
        "body_bytes": 1 * KB,
        "in_flight": 64,
        "message_count": setting.plan.take_count,
    }
    return _rounds(
        setting,
        "deliver+ack in process",
        {name: partial(_run, setting, {**task, "store": name}) for name in (OURS, *peers)},
    )


def _middle(results: list[dict[str, float]], name: str) -> float:
    return median(result[name] for result in results)


def _print_appends(setting: Setting, by_cell: Mapping[tuple[int, int], Results]) -> None:
    names = list(next(iter(by_cell.values())))
    setting.console.print(
        values_table(
            "Durable appends per second, in process (medians)",
            ["store", *(f"{size // KB} KB, {flight}" for size, flight in by_cell)],
            [
                [
                    name,
                    *(
                        as_text(_middle(results[name], "per_second"))
                        for results in by_cell.values()
                    ),
                ]
                for name in names
            ],
        )
    )


def _print_cost(setting: Setting, appended: Results, taken: Results) -> None:
    setting.console.print(
        values_table(
            "1 KB, 64 in flight, in process: CPU and time of a group (medians)",
            ["store", "append CPU µs", "p50 ms", "p99 ms", "deliver+ack per s", "CPU µs"],
            [
                [
                    name,
                    *(as_text(_middle(results, key)) for key in ("cpu_us", "p50_ms", "p99_ms")),
                    as_text(_middle(taken[name], "per_second")) if name in taken else "-",
                    as_text(_middle(taken[name], "cpu_us")) if name in taken else "-",
                ]
                for name, results in appended.items()
            ],
        )
    )


def _values(results: Results, store: str, name: str) -> list[float]:
    return [result[name] for result in results[store]]


def _cpu_figure(results: Results) -> Figure:
    ours = _values(results, OURS, "cpu_us")
    name = "CPU µs per durable 1 KB message, in process, 64 in flight"
    bar = at_most_ratio("<= 0.8 x RocksDB", 0.8)
    if "RocksDB" not in results:
        return Figure(name, median(ours), bar=bar, note="RocksDB is missing")
    theirs = _values(results, "RocksDB", "cpu_us")
    ratio = median_ratio(ours, theirs)
    return Figure(name, median(ours), "RocksDB", median(theirs), ratio, bar)


def _speed_figure(results: Results, body_bytes: int, peers: list[str]) -> Figure:
    ours = _values(results, OURS, "per_second")
    name = f"durable appends/s, in process, {body_bytes // KB} KB, 64 in flight"
    bar = at_least_ratio(">= 2 x the best embedded peer", 2)
    if not peers:
        return Figure(name, median(ours), bar=bar, note="no embedded peer is installed")
    best, values = best_of({peer: _values(results, peer, "per_second") for peer in peers})
    return Figure(name, median(ours), best, median(values), median_ratio(ours, values), bar)
