"""What a bench says at its end: ratios of rounds, bars, one line of JSON."""

import json

import pytest

from bench.support.figures import Figure, at_least_ratio, at_most, at_most_ratio, json_line
from bench.support.rounds import alternate, best_of, median_ratio


def test_a_ratio_is_the_median_of_the_ratios_of_rounds() -> None:
    # One busy round halves both sides; a ratio of medians would not see that they stood together.
    assert median_ratio([100, 50, 90], [10, 5, 30]) == 10


def test_rounds_alternate_and_change_who_goes_first() -> None:
    turns: list[str] = []
    results = alternate(3, {"a": lambda: 1, "b": lambda: 2}, on_turn=turns.append)
    assert turns == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_the_best_peer_is_taken_anew_in_each_round() -> None:
    name, best = best_of({"slow": [1, 9, 1], "fast": [5, 5, 5]})
    assert (name, best) == ("fast", [5, 9, 5])


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure("f", 0.0156, bar=at_most("<= 1/60", 1 / 60)), True),
        (Figure("f", 0.0168, bar=at_most("<= 1/60", 1 / 60)), False),
        (Figure("f", 5, "p", 10, 0.5, at_most_ratio("<= 0.8 x p", 0.8)), True),
        (Figure("f", 9, "p", 10, 0.9, at_most_ratio("<= 0.8 x p", 0.8)), False),
        (Figure("f", 30, "p", 10, 3.0, at_least_ratio(">= 2 x p", 2)), True),
        (Figure("f", 19, "p", 10, 1.9, at_least_ratio(">= 2 x p", 2)), False),
        (Figure("f", 19, bar=at_least_ratio(">= 2 x p", 2)), None),
        (Figure("f", None, bar=at_most("<= 1/60", 1 / 60)), None),
        (Figure("f", 19), None),
    ],
)
def test_a_bar_holds_or_not_and_is_never_guessed(figure: Figure, holds: bool | None) -> None:
    assert figure.holds is holds


def test_the_last_line_has_every_figure_with_its_bar_as_promised() -> None:
    line = json_line("log", [Figure("f", 2.5, "p", 5, 0.5, at_most_ratio("<= 0.8 x p", 0.8))])
    assert json.loads(line) == {
        "bench": "log",
        "figures": [
            {
                "name": "f",
                "ours": 2.5,
                "peer": "p",
                "peer_value": 5.0,
                "ratio": 0.5,
                "bar": "<= 0.8 x p",
                "holds": True,
            }
        ],
    }
    assert "\n" not in line
