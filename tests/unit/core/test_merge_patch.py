"""JSON Merge Patch: the cases of RFC 7396, and what it must not do to its arguments."""

import copy

import pytest

from syncline.core import merge_patch
from syncline.errors import LimitExceededError
from syncline.values.json_value import Json

# Appendix A of RFC 7396: target, patch, result.
CASES: list[tuple[Json, Json, Json]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


def nested(depth: int, lists: bool = False) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize(("target", "patch", "result"), CASES)
def test_the_cases_of_the_rfc(target: Json, patch: Json, result: Json) -> None:
    assert merge_patch.apply(target, patch) == result


@pytest.mark.parametrize(("target", "patch", "result"), CASES)
def test_arguments_stay_as_they_are(target: Json, patch: Json, result: Json) -> None:
    before = copy.deepcopy((target, patch))
    merge_patch.apply(target, patch)
    assert (target, patch) == before


def test_what_is_not_touched_is_shared() -> None:
    nodes: Json = {"n1": {"x": 1}}
    result = merge_patch.apply({"nodes": nodes}, {"title": "plan"})
    assert isinstance(result, dict)
    assert result["nodes"] is nodes


def test_null_within_a_list_is_a_value() -> None:
    patch: Json = {"a": [None, {"b": None}]}
    assert merge_patch.apply({}, patch) == {"a": [None, {"b": None}]}


@pytest.mark.parametrize("lists", [False, True])
def test_a_patch_as_deep_as_allowed_is_taken(lists: bool) -> None:
    patch = nested(merge_patch.DEPTH_MAX, lists)
    assert merge_patch.apply({}, patch) == patch


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("depth", [merge_patch.DEPTH_MAX + 1, 100_000])
def test_a_deeper_patch_is_refused(depth: int, lists: bool) -> None:
    with pytest.raises(LimitExceededError, match="depth of a patch") as caught:
        merge_patch.apply({}, nested(depth, lists))
    assert caught.value.limit == merge_patch.DEPTH_MAX


def test_objects_within_lists_count_as_depth() -> None:
    patch: Json = {"a": [nested(2)]}
    assert merge_patch.apply({}, patch, depth_max=4) == patch
    with pytest.raises(LimitExceededError):
        merge_patch.apply({}, patch, depth_max=3)


def test_a_refused_patch_changes_nothing() -> None:
    target: Json = {"a": {"b": 1}}
    with pytest.raises(LimitExceededError):
        merge_patch.apply(target, {"a": {"b": 2, "c": nested(3)}}, depth_max=3)
    assert target == {"a": {"b": 1}}
