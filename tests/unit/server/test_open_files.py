"""The last files that a process may open are not for connections."""

import resource

import pytest

from syncline.server.open_files import is_left_to_stores


@pytest.mark.parametrize(
    ("count_max", "first_left"), [(20_000, 18_976), (2_048, 1_024), (1_024, 512), (200, 100)]
)
def test_the_last_are_left_and_never_more_than_half(
    monkeypatch: pytest.MonkeyPatch, count_max: int, first_left: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (count_max, count_max))
    assert not is_left_to_stores(first_left - 1)
    assert is_left_to_stores(first_left)


def test_without_a_limit_none_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert not is_left_to_stores(1_000_000)
