"""Documents of kind `yjs`: bind a `pycrdt.Doc`, and keep the list of updates short.

pycrdt is needed for this kind alone and imported when one is opened.
"""

import importlib
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, cast

from syncline.client.changes import Change, Mutated
from syncline.client.document import Document
from syncline.core.folds import UpdateFold
from syncline.errors import ConfigError, MalformedMessageError, SynclineError

log = logging.getLogger("syncline.client")

# What an update says that says nothing.
EMPTY_UPDATE = b"\x00\x00"


def yjs_fold() -> UpdateFold:
    """Keeps the updates of a document, merged now and then. Raises ConfigError without pycrdt."""
    pycrdt = _pycrdt()

    def merge(updates: Sequence[bytes]) -> bytes:
        try:
            return cast("bytes", pycrdt.merge_updates(*updates))
        except ValueError as error:
            raise MalformedMessageError("the router sent what is no Yjs update") from error

    return UpdateFold(merge)


class YjsBinding:
    """Keeps a `pycrdt.Doc` and an open document the same, while its `with` block runs.

        async with client.document("notes", kind="yjs") as document:
            with YjsBinding(document, doc):
                doc.get("text", type=pycrdt.Text).insert(0, "Hello")

    What the Doc holds already is sent; what others write is applied in the event loop, so leave no
    transaction of the Doc open across an `await`. What the router refuses stays in the Doc: a CRDT
    cannot take it back.
    """

    def __init__(self, document: Document, doc: Any) -> None:
        self._document = document
        self._doc = doc
        self._pycrdt = _pycrdt()
        self._is_applying = False
        self._error: SynclineError | None = None

    def __enter__(self) -> "YjsBinding":
        known = self._pycrdt.Doc()
        for update in cast("tuple[bytes, ...]", self._document.state):
            known.apply_update(update)
            self._apply(update)
        missing = cast("bytes", self._doc.get_update(known.get_state()))
        if missing != EMPTY_UPDATE:
            self._document.change(missing)
        self._stop_watching = self._document.watch(self._take)
        self._subscription = self._doc.observe(self._send)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises what `change` raised for an edit, which has not been sent then."""
        self._doc.unobserve(self._subscription)
        self._stop_watching()
        if error is None and self._error is not None:
            raise self._error

    def _take(self, change: Change) -> None:
        if isinstance(change, Mutated):
            self._apply(cast("bytes", change.mutation))
        else:
            for update in cast("tuple[bytes, ...]", change.state):
                self._apply(update)

    def _apply(self, update: bytes) -> None:
        self._is_applying = True
        try:
            self._doc.apply_update(update)
        except ValueError as error:
            raise MalformedMessageError("the router sent what is no Yjs update") from error
        finally:
            self._is_applying = False

    def _send(self, event: Any) -> None:
        update = cast("bytes", event.update)
        if self._is_applying or update == EMPTY_UPDATE:
            return
        try:
            self._document.change(update)
        except SynclineError as error:
            # Nobody above this would hear of it.
            log.error("an edit of %s is not sent: %s", self._document.name, error)
            self._error = self._error or error


def _pycrdt() -> Any:
    try:
        return importlib.import_module("pycrdt")
    except ImportError as error:
        raise ConfigError("documents of kind yjs need the package pycrdt; install it") from error
