"""The error tree: complete, drawn as it is, and honest about trying again."""

import inspect

import pytest

from syncline import errors
from syncline.errors import (
    CommitConflictError,
    CorruptionError,
    DeviceError,
    DocumentFullError,
    ForeignFolderError,
    LimitExceededError,
    NewerFormatError,
    QueueExistsError,
    QuotaExceededError,
    RefusedError,
    StoreBusyError,
    StoreFullError,
    StoreHeldError,
    StoreLockedError,
    SynclineError,
    TableError,
    UnknownQueueError,
    UnknownServiceError,
    WrongKindError,
)

CLASSES = {
    name: found
    for name, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, SynclineError)
}

RETRIABLE = {
    "CommitConflictError",
    "LinkClosedError",
    "LinkError",
    "LinkLostError",
    "QuotaExceededError",
    "StoreBusyError",
    "StoreFullError",
    "StoreHeldError",
}

# Each error that is made of facts, with one set of them.
WITH_FACTS: list[tuple[SynclineError, dict[str, object]]] = [
    (LimitExceededError("a name", 9, 8), {"what": "a name", "value": 9, "limit": 8}),
    (UnknownQueueError("q1"), {"stream": "q1"}),
    (UnknownServiceError("s1"), {"service": "s1"}),
    (QueueExistsError("q1"), {"stream": "q1"}),
    (QuotaExceededError("q1", 128), {"stream": "q1", "quota": 128}),
    (WrongKindError("json", "yjs"), {"is_kind": "json", "asked_kind": "yjs"}),
    (DocumentFullError(8), {"bytes_max": 8}),
    (CorruptionError("a.wal", 4096, "bad"), {"file": "a.wal", "offset": 4096, "reason": "bad"}),
    (StoreFullError("/data/a", "no room"), {"path": "/data/a", "reason": "no room"}),
    (StoreHeldError("/data/a"), {"path": "/data/a", "reason": "another process writes to it"}),
    (StoreBusyError(9, 8), {"waiting_bytes": 9, "limit_bytes": 8}),
    (StoreLockedError("/data", "123"), {"folder": "/data", "holder": "123"}),
    (ForeignFolderError("/data", "odd"), {"folder": "/data", "reason": "odd"}),
    (NewerFormatError("/data", 9, 8), {"folder": "/data", "found": 9, "known": 8}),
    (
        DeviceError("/data/a", "syncing", "i/o error"),
        {"path": "/data/a", "operation": "syncing", "reason": "i/o error"},
    ),
    (TableError("events", "gone"), {"table": "events", "reason": "gone"}),
    (CommitConflictError("events", 3), {"table": "events", "version": 3}),
]


def drawn_parents() -> dict[str, str]:
    """Each class in the module's drawing with the one it stands under."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        words = line.split()
        if not words or not line.startswith("    ") or not words[0].endswith("Error"):
            continue
        depth = len(line) - len(line.lstrip())
        above = [(other, name) for other, name in above if other < depth]
        parents[words[0]] = above[-1][1] if above else "Exception"
        above.append((depth, words[0]))
    return parents


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn_parents() == {name: found.__mro__[1].__name__ for name, found in CLASSES.items()}


def test_trying_again_helps_only_where_it_can() -> None:
    assert {name for name, found in CLASSES.items() if found.retriable} == RETRIABLE


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_says_what_it_is_for(name: str) -> None:
    assert name.endswith("Error")
    doc = CLASSES[name].__doc__
    assert doc
    assert doc.strip().endswith((".", "`"))


def test_each_refusal_has_a_wire_code_of_its_own() -> None:
    refusals = [found for found in CLASSES.values() if issubclass(found, RefusedError)]
    codes = [found.code for found in refusals]
    assert len(set(codes)) == len(codes) == 11
    assert all(code.isupper() for code in codes)


@pytest.mark.parametrize(("error", "facts"), WITH_FACTS, ids=lambda value: type(value).__name__)
def test_facts_are_fields_and_in_the_sentence(
    error: SynclineError, facts: dict[str, object]
) -> None:
    assert {name: getattr(error, name) for name in facts} == facts
    for fact in facts.values():
        assert str(fact) in str(error)


def test_every_class_with_facts_is_among_those_tried() -> None:
    own = {name for name, found in CLASSES.items() if "__init__" in vars(found)}
    assert own == {type(error).__name__ for error, _ in WITH_FACTS}


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (StoreLockedError("/data"), "stop that one or choose another folder"),
        (StoreFullError("/data"), "free some space"),
        (StoreHeldError("/data/a"), "end that"),
        (ForeignFolderError("/data", "odd"), "choose an empty folder"),
        (NewerFormatError("/data", 2, 1), "start it with the version that wrote it"),
        (CorruptionError("a", 0, "bad"), "syncline verify"),
        (UnknownQueueError("q"), "create it first"),
        (StoreBusyError(2, 1), "try again later"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_sentence_says_what_to_do(error: SynclineError, advice: str) -> None:
    assert advice in str(error)


def test_a_lock_whose_holder_is_unknown_names_none() -> None:
    assert "(process" not in str(StoreLockedError("/data"))
    assert "(process 7)" in str(StoreLockedError("/data", "7"))


@pytest.mark.parametrize("name", CLASSES)
def test_the_root_catches_every_class(name: str) -> None:
    made = {type(error).__name__: error for error, _ in WITH_FACTS}
    with pytest.raises(SynclineError):
        raise made.get(name) or CLASSES[name]("something is wrong; do this")
