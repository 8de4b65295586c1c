"""Laws of JSON Merge Patch, over any values."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from syncline.core import merge_patch
from syncline.values.json_value import Json

NAMES = st.sampled_from("abcd")
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("xy", max_size=2)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def without_null(value: Json) -> Json:
    """As a patch would write it: names whose value is null are not there."""
    if not isinstance(value, dict):
        return value
    return {name: without_null(part) for name, part in value.items() if part is not None}


def literal(target: Json, patch: Json) -> Json:
    """The pseudo code of RFC 7396, word for word, on a copy."""
    if not isinstance(patch, dict):
        return patch
    result = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            if name in result:
                del result[name]
        else:
            result[name] = literal(result.get(name), value)
    return result


@given(VALUES, VALUES)
def test_it_is_what_the_rfc_says(target: Json, patch: Json) -> None:
    expected = literal(copy.deepcopy(target), copy.deepcopy(patch))
    assert merge_patch.apply(target, patch) == expected


@given(VALUES, VALUES)
def test_arguments_are_never_changed(target: Json, patch: Json) -> None:
    before = copy.deepcopy((target, patch))
    merge_patch.apply(target, patch)
    assert (target, patch) == before


@given(VALUES, VALUES)
def test_twice_is_as_good_as_once(target: Json, patch: Json) -> None:
    once = merge_patch.apply(target, patch)
    assert merge_patch.apply(once, patch) == once


@given(VALUES)
def test_an_empty_patch_changes_no_object(target: Json) -> None:
    expected = target if isinstance(target, dict) else {}
    assert merge_patch.apply(target, {}) == expected


@given(VALUES, OBJECTS)
def test_nothing_makes_a_patch_whole(target: Json, patch: dict[str, Json]) -> None:
    assert merge_patch.apply(None, patch) == without_null(patch)


@given(OBJECTS, OBJECTS)
def test_names_that_a_patch_does_not_have_stay(
    target: dict[str, Json], patch: dict[str, Json]
) -> None:
    result = merge_patch.apply(target, patch)
    assert isinstance(result, dict)
    for name in target.keys() - patch.keys():
        assert result[name] is target[name]


@given(OBJECTS, OBJECTS, OBJECTS)
def test_patches_of_different_names_can_be_swapped(
    target: dict[str, Json], first: dict[str, Json], second: dict[str, Json]
) -> None:
    other = {name: value for name, value in second.items() if name not in first}
    one = merge_patch.apply(merge_patch.apply(target, first), other)
    two = merge_patch.apply(merge_patch.apply(target, other), first)
    assert one == two
