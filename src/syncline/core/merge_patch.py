"""JSON Merge Patch, RFC 7396: how a mutation folds into the state of a document of kind `json`.

- Arguments are never changed. What a patch does not touch is shared between old and new state, so
  a small patch costs as much as the objects on its way, whatever the size of the document.
- A patch is refused before it goes too deep, lists included. As states are made of patches, no
  state is deeper than the deepest patch, and nobody runs out of stack.
"""

from collections.abc import Mapping

from syncline.errors import LimitExceededError
from syncline.values import limits
from syncline.values.json_value import Json

# Objects and lists within one another. A diagram has four or five.
DEPTH_MAX = limits.json_depth_max


def apply(target: Json, patch: Json, depth_max: int = DEPTH_MAX) -> Json:
    """The target with the patch folded in. Raises LimitExceededError if the patch is too deep.

    An object is merged name by name, and `null` takes a name away. Anything else replaces the
    target whole, lists too.
    """
    return _merged(target, patch, depth_max, depth_max)


def _merged(target: Json, patch: Json, depth_left: int, depth_max: int) -> Json:
    if not isinstance(patch, Mapping):
        _check_depth(patch, depth_left, depth_max)
        return patch
    if depth_left == 0:
        raise _too_deep(depth_max)
    result: dict[str, Json] = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value, depth_left - 1, depth_max)
    return result


def _check_depth(value: Json, depth_left: int, depth_max: int) -> None:
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    else:
        return
    if depth_left == 0:
        raise _too_deep(depth_max)
    for part in inside:
        _check_depth(part, depth_left - 1, depth_max)


def _too_deep(depth_max: int) -> LimitExceededError:
    return LimitExceededError("the depth of a patch", depth_max + 1, depth_max)
