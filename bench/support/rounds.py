"""Alternating rounds, so that a busy moment of the machine hits everyone alike.

A ratio is the median of the ratios of single rounds, never a ratio of medians: the two sides of one
round stood next to each other in time, those of different rounds did not.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Result = TypeVar("Result")


def alternate(
    round_count: int,
    contestants: Mapping[str, Callable[[], Result]],
    *,
    on_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, list[Result]]:
    """Run each contestant once a round; who goes first changes from round to round."""
    results: dict[str, list[Result]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(round_count):
        start = turn % max(1, len(names))
        for name in names[start:] + names[:start]:
            on_turn(name)
            results[name].append(contestants[name]())
    return results


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def best_of(peers: Mapping[str, Sequence[float]]) -> tuple[str, list[float]]:
    """The peer with the highest median, and the best value of any peer in each round."""
    name = max(peers, key=lambda peer: median(peers[peer]))
    return name, [max(values) for values in zip(*peers.values(), strict=True)]
