"""The router's folding of Yjs documents, for when many updates come at once.

The same updates in the same order, but some are merged first, and the document takes them in as
one: that costs a third. The router takes each by itself as there is one to take. Whatever is out of
the ordinary with one of them, they are taken one by one here as well; taking an update twice is as
good as once.
"""

from typing import TYPE_CHECKING, Any, Final

import pycrdt

from syncline.core.kinds.yjs import YjsFolding
from syncline.wire.lib0 import Reader
from syncline.wire.yjs_updates import EMPTY_UPDATE, decode_state_vector

if TYPE_CHECKING:
    Doc = pycrdt.Doc[Any]

# Merging more at once gains nothing.
_TOGETHER: Final = 32


class ManyYjsFolding(YjsFolding):
    """See the module."""

    __slots__ = ()

    def apply_all(self, updates: list[bytes]) -> None:
        """`apply` for each."""
        self._tail += updates
        self._newer_bytes += sum(map(len, updates))

    def _fold(self, doc: "Doc") -> None:
        early = list(self._early)
        for start in range(0, len(self._tail), _TOGETHER):
            early += self._taken_in(doc, self._tail[start : start + _TOGETHER])
        vector = doc.get_state()
        self._early = [each for each in early if is_early(each, vector)]
        self._tail = []

    def _taken_in(self, doc: "Doc", updates: list[bytes]) -> list[bytes]:
        """Those that may have come too early."""
        try:
            merged = pycrdt.merge_updates(*updates)
            doc.apply_update(merged)
        except (RuntimeError, ValueError):
            return self._one_by_one(doc, updates)
        return updates if is_early(merged, doc.get_state()) else []

    def _one_by_one(self, doc: "Doc", updates: list[bytes]) -> list[bytes]:
        taken: list[bytes] = []
        for update in updates:
            try:
                doc.apply_update(update)
            except (RuntimeError, ValueError):
                # It passed every check and cannot be folded; without it the document is whole.
                self._unfoldable_count += 1
            else:
                taken.append(update)
        return taken


def is_early(update: bytes, vector: bytes) -> bool:
    """Whether a document of that state holds back some of it, for want of what came before."""
    rest = pycrdt.get_update(update, vector)
    if rest == EMPTY_UPDATE:
        return False
    # Deletions are always said again.
    return rest[0] != 0 or _deletes_unknown(rest, decode_state_vector(vector))


def _deletes_unknown(rest: bytes, known: dict[int, int]) -> bool:
    """Of an update without structs."""
    reader = Reader(rest[1:])
    for _ in range(reader.var_uint()):
        client = reader.var_uint()
        for _ in range(reader.var_uint()):
            if reader.var_uint() + reader.var_uint() > known.get(client, 0):
                return True
    return False
