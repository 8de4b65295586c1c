"""The sync steps of Yjs as the router takes them, the same over `/yjs` and `/cable`.

Everything that a peer sends is checked here before the CRDT library sees it.
"""

from syncline.core.kinds.yjs import YjsFolding
from syncline.server.open_document import OpenDocument
from syncline.wire import yjs
from syncline.wire.yjs_updates import check_update, decode_state_vector


def folding_of(document: OpenDocument) -> YjsFolding:
    """The faces of Yjs open documents of that kind alone."""
    assert isinstance(document.folding, YjsFolding)
    return document.folding


def answer_step_1(document: OpenDocument, state_vector: bytes) -> list[yjs.Frame]:
    """What a peer with that state vector lacks. Raises ProtocolError, InvalidMutationError."""
    decode_state_vector(state_vector)
    answer, *early = folding_of(document).updates_since(state_vector)
    return [yjs.SyncStep2(answer), *map(yjs.SyncUpdate, early)]


def has_news(document: OpenDocument, step_2: bytes, *, is_checked: bool = False) -> bool:
    """Mostly there is nothing in it but what was deleted long ago.

    `is_checked`: `check_update` has been at it. Raises ProtocolError, InvalidMutationError.
    """
    if not is_checked:
        check_update(step_2)
    return folding_of(document).has_news(step_2)
