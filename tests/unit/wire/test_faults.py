"""Sentences about bad messages: our own words, and never the peer's."""

import pytest

from syncline.wire.faults import describe

RULES = {"seq": "a whole number", "type": "one of two"}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Expected `int`, got `str` - at `$.seq`", "the field `seq` must be a whole number"),
        ("Expected `int` >= 0 - at `$.from.seq`", "the field `from.seq` must be a whole number"),
        ("Invalid value 's3cret' - at `$.type`", "the field `type` must be one of two"),
        (
            "Object missing required field `seq`",
            "the field `seq` is missing; it must be a whole number",
        ),
        (
            "Expected `str`, got `int` - at `$.states[...]`",
            "the field `states` must be of the type that the protocol gives it",
        ),
        ("Expected `object`, got `array`", "all of it"),
        ("Expected `str`, got `int` - at `key` in `$`", "all of it"),
    ],
)
def test_sentences(reason: str, said: str) -> None:
    assert describe(reason, RULES, "all of it") == said
