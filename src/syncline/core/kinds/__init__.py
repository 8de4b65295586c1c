"""How the updates of a document fold into its state; one module per kind."""

from collections.abc import Callable

from syncline.core.kinds.base import Folding as Folding
from syncline.core.kinds.base import Prepared as Prepared
from syncline.core.kinds.json import JsonFolding
from syncline.core.kinds.opaque import BytesFolding
from syncline.values.kinds import Kind


def _yjs(state: bytes) -> Folding:
    # Brings in the CRDT library: a router without Yjs documents does without it.
    from syncline.core.kinds.yjs import YjsFolding

    return YjsFolding(state)


_FOLDINGS: dict[Kind, Callable[[bytes], Folding]] = {
    Kind.JSON: JsonFolding,
    Kind.YJS: _yjs,
    Kind.BYTES: BytesFolding,
}


def folding(kind: Kind, state: bytes = b"") -> Folding:
    """For a document with that stored state; empty bytes are a new document."""
    return _FOLDINGS[kind](state)
