"""Patterns of document names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.server.patterns import Pattern


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("plan", ["plan"], ["plans", "a/plan", "plan/", "Plan", ""]),
        ("team/*", ["team/a", "team/", "team/a.b*c"], ["team", "team/a/b", "xteam/a"]),
        ("team/**", ["team/a", "team/a/b", "team/"], ["team", "x/team/a"]),
        ("**", ["", "a", "a/b/c", "line\nbreak"], []),
        ("*", ["", "a", "line\nbreak"], ["a/b", "/"]),
        ("*/notes", ["a/notes", "/notes"], ["a/b/notes", "notes"]),
        ("**/notes", ["a/notes", "a/b/notes", "/notes"], ["notes", "a/notes/b"]),
        ("a*b*c", ["abc", "axbxc", "abbcc"], ["abcd", "a/bc"]),
        ("a*/**/c", ["a/x/c", "ax/y/z/c", "a//c"], ["a/c", "x/a/x/c"]),
        ("***", ["a/b"], []),
        ("a.c", ["a.c"], ["abc"]),
        ("[ab]?", ["[ab]?"], ["a", "ax"]),
        ("zoë/*", ["zoë/日記"], ["zoe/x"]),
    ],
)
def test_a_pattern_fits_whole_names(pattern: str, fitting: list[str], others: list[str]) -> None:
    found = Pattern(pattern)
    assert [name for name in fitting if not found.matches(name)] == []
    assert [name for name in others if found.matches(name)] == []


def expression(pattern: str) -> re.Pattern[str]:
    """The same pattern, as slow and simple as it gets."""
    parts = [
        ".*" if part.startswith("**") else "[^/]*" if part == "*" else re.escape(part)
        for part in re.findall(r"\*+|[^*]", pattern)
    ]
    return re.compile("".join(parts), re.DOTALL)


@given(st.text("ab/*", max_size=8), st.text("ab/*", max_size=10))
def test_a_pattern_means_what_a_regular_expression_says(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) is bool(expression(pattern).fullmatch(name))


@pytest.mark.timeout(10)
def test_a_pattern_full_of_stars_takes_no_longer() -> None:
    """Tried one way after the other this would outlast the test by far."""
    hostile = Pattern("*a" * 100 + "*b")
    assert not hostile.matches("a" * 200)
