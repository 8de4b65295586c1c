"""How mutations fold into the state of a replica, by kind of document.

A fold holds the *base*: exactly what the router has stored up to some sequence. Own changes that
are not confirmed never enter it; they are laid on top whenever the state is looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from syncline.core import merge_patch
from syncline.errors import MalformedMessageError
from syncline.values.json_value import Json
from syncline.values.replica import Body

# Updates kept one by one before they are merged, where merging is possible.
UPDATE_COUNT_MAX = 256


class Fold(Protocol):
    """The base of one replica."""

    def check(self, mutation: Body) -> None:
        """Raise MalformedMessageError or LimitExceededError for what cannot be a mutation."""
        ...

    def reset(self, state: Body) -> None:
        """Take the router's state as the base. Raises MalformedMessageError."""
        ...

    def apply(self, mutation: Body) -> None:
        """Fold the next stored mutation in. Raises like `check`."""
        ...

    def visible(self, own: Iterable[Body]) -> Body:
        """The base with own changes on top."""
        ...


class JsonFold:
    """Merge patches. None until a state came."""

    def __init__(self) -> None:
        self._base: Json = None

    def check(self, mutation: Body) -> None:
        _patch(mutation)
        merge_patch.apply(None, mutation)

    def reset(self, state: Body) -> None:
        if isinstance(state, bytes):
            raise MalformedMessageError("the state of a json document is no bytes")
        self._base = state

    def apply(self, mutation: Body) -> None:
        self._base = merge_patch.apply(self._base, _patch(mutation))

    def visible(self, own: Iterable[Body]) -> Json:
        state = self._base
        for mutation in own:
            state = merge_patch.apply(state, _patch(mutation))
        return state


class UpdateFold:
    """Opaque updates, in order. `merge` makes one of many, where the kind knows how to; without it
    the list is as long as the router lets the document grow."""

    def __init__(self, merge: Callable[[Sequence[bytes]], bytes] | None = None) -> None:
        self._base: list[bytes] = []
        self._merge = merge

    def check(self, mutation: Body) -> None:
        _bytes(mutation)

    def reset(self, state: Body) -> None:
        """One update, or a list of them."""
        if isinstance(state, bytes):
            self._base = [state]
        elif isinstance(state, list | tuple):
            self._base = [_bytes(update) for update in state]
        else:
            raise MalformedMessageError("the state of this document is a list of updates")

    def apply(self, mutation: Body) -> None:
        self._base.append(_bytes(mutation))
        if self._merge is not None and len(self._base) > UPDATE_COUNT_MAX:
            self._base = [self._merge(self._base)]

    def visible(self, own: Iterable[Body]) -> tuple[bytes, ...]:
        return (*self._base, *(_bytes(update) for update in own))


def _patch(mutation: Body) -> Mapping[str, Json]:
    if not isinstance(mutation, Mapping):
        raise MalformedMessageError("a mutation of a json document is an object, a merge patch")
    return mutation


def _bytes(update: Body) -> bytes:
    if not isinstance(update, bytes):
        raise MalformedMessageError("a mutation of this document is bytes")
    return update
