"""What every client does, whatever it is written in: tests/scenarios/replica.json."""

from typing import Any

import pytest

from tests.unit.client.scenarios import Runner, load

FOUND = load()


@pytest.mark.parametrize("scenario", FOUND["scenarios"], ids=lambda scenario: scenario["name"])
def test_scenario(scenario: dict[str, Any]) -> None:
    prelude = FOUND["preludes"][scenario["begin"]] if "begin" in scenario else []
    Runner(scenario.get("options", {})).run([*prelude, *scenario["steps"]])


def test_scenarios_have_names_of_their_own() -> None:
    names = [scenario["name"] for scenario in FOUND["scenarios"]]
    assert len(names) > 50
    assert len(set(names)) == len(names)


def test_a_scenario_that_is_not_followed_fails() -> None:
    steps = [*FOUND["preludes"]["live"], {"change": {"a": 1}}]
    with pytest.raises(AssertionError, match="nobody looked"):
        Runner({}).run(steps)
    with pytest.raises(AssertionError, match="expect_state"):
        Runner({}).run([*FOUND["preludes"]["live"], {"expect_state": {"a": "other"}}])
