"""The side that asks. Give it each answer; it returns the next question or the result.

Invariants:
- A difference is told only if the initiator's own ids, less `extra` and with `missing`, have the
  count, XOR and sum that the responder last gave. Anything else ends as a failure.
- Every question is answered from the set as it is then. What was learnt from an older version
  and is no longer true shows as a difference of its own in the next step.
- The sixth answer at the latest brings the result: after five that did not settle it the whole list
  is asked for.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from syncline.core.reconciliation.kept import KeptSketch
from syncline.core.reconciliation.plain import PlainSearch
from syncline.core.reconciliation.ranged import RangeSearch
from syncline.core.reconciliation.search import Search
from syncline.core.reconciliation.sets import IdSet, SetView, frozen
from syncline.core.reconciliation.sketched import OPENING_CELLS, SketchSearch
from syncline.core.reconciliation.working import WorkingSet
from syncline.errors import MalformedMessageError, UnexpectedMessageError
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.values.reconciliation import (
    BUCKET_COUNT,
    CELL_BYTES,
    OPENING_DEPTH,
    Answer,
    Compare,
    CountParts,
    Counts,
    Difference,
    Failure,
    Fetch,
    Fetched,
    Found,
    ListIds,
    Listing,
    Open,
    Opening,
    Parts,
    PlainParts,
    PlainRanges,
    Prefixes,
    Request,
    Restart,
    Result,
    SetState,
    Sift,
    Sifted,
    Split,
    TooFew,
)

ROUND_TRIP_COUNT_MAX: Final = 6

_EVERYTHING: Final = Prefixes(0, (0,))
_ANSWERS: Final[dict[type[Request], tuple[type[Answer], ...]]] = {
    Open: (Opening,),
    Compare: (Found, TooFew),
    Sift: (Sifted,),
    CountParts: (Counts,),
    Split: (Parts,),
    Fetch: (Fetched, Restart),
    ListIds: (Listing,),
    PlainRanges: (PlainParts,),
}


class Mode(Enum):
    """How the difference is looked for."""

    SKETCH = "sketch"  # cells, filters and counts, whichever is cheapest; may read all ids
    RANGES = "ranges"  # ever smaller ranges; reads only where something differs
    PLAIN = "plain"  # ranges of equal count with their ends: for comparison


class Initiator:
    """One session about the set as it is at its start. `salts` gives eight new random bytes at each
    call. A view may be given in place of the set, if one is at hand: of a set that stays as it is.
    """

    def __init__(
        self,
        ids: IdSet | SetView,
        salts: Callable[[], bytes],
        *,
        mode: Mode = Mode.SKETCH,
        kept: KeptSketch | None = None,
        opening_cells: int = OPENING_CELLS,
    ) -> None:
        # Answers so far, the opening among them.
        self.round_trips = 0
        self._salts = salts
        view = ids if isinstance(ids, SetView) else SetView(frozen(ids))
        self._working = WorkingSet(view, kept)
        self._search: Search = _search(mode, view.ids, self._working, opening_cells)
        self._asked: Request = Open(None, self._search.opening_cells)
        self._theirs: SetState | None = None
        self._salt = b""
        self._has_failed_check = False

    def start(self) -> Request:
        """The first question. If an opening came unasked, `receive` it instead."""
        return self._asked

    def receive(self, answer: Answer) -> Request | Result:
        """Raises a ProtocolError for an answer that is none to what was asked."""
        _check_answers(self._asked, answer)
        self.round_trips += 1
        if answer.state is not None:
            self._theirs = answer.state
        assert self._theirs is not None
        self._learn(answer)
        if self._working.is_same(self._theirs):
            return Difference(self._theirs, self._working.missing, self._working.extra)
        if self._asked_for_all():
            return Failure("the ids that were listed do not have the digest that came with them")
        self._asked = self._next(answer)
        return self._asked

    def _learn(self, answer: Answer) -> None:
        match answer:
            case Opening():
                self._salt = self._working.salt = answer.salt
                if answer.state.count == 0:
                    self._working.empty()
                elif not self._working.is_same(answer.state):
                    self._search.opened(answer)
            case Listing() if self._asked_for_all():
                self._working.replace(answer.ids)
            case Restart():
                pass
            case _:
                self._search.learn(self._asked, answer)

    def _next(self, answer: Answer) -> Request:
        assert self._theirs is not None
        if self.round_trips >= ROUND_TRIP_COUNT_MAX - 1 or self._working.count == 0:
            return ListIds(self._theirs.version, _EVERYTHING)
        if isinstance(answer, Restart):
            return Open(self._salt, self._search.opening_cells)
        request = self._search.next(self._theirs.version, self.round_trips)
        if request is not None:
            return request
        return self._after_failed_check(self._theirs.version)

    def _after_failed_check(self, version: int) -> Request:
        """By accident two ids had the same hash, or somebody lies: try other hashes, once."""
        if self._has_failed_check:
            return ListIds(version, _EVERYTHING)
        self._has_failed_check = True
        return Open(self._salts(), self._search.opening_cells)

    def _asked_for_all(self) -> bool:
        return isinstance(self._asked, ListIds) and self._asked.ranges == _EVERYTHING


def _search(mode: Mode, ids: IdSet, working: WorkingSet, opening_cells: int) -> Search:
    match mode:
        case Mode.SKETCH:
            return SketchSearch(working, opening_cells)
        case Mode.RANGES:
            return RangeSearch(ids, working)
        case Mode.PLAIN:
            return PlainSearch(ids, working)


def _check_answers(asked: Request, answer: Answer) -> None:
    if not isinstance(answer, _ANSWERS[type(asked)]):
        raise UnexpectedMessageError(
            f"{type(answer).__name__} does not answer {type(asked).__name__}"
        )
    match asked, answer:
        case Open(), Opening():
            # One that came unasked may have more cells, or fewer.
            has_counts = bool(answer.cells)
            is_fit = (
                has_counts >= (asked.cell_count > 0)
                and len(answer.cells) <= CELL_COUNT_MAX * CELL_BYTES
                and len(answer.bucket_counts) == (BUCKET_COUNT if has_counts else 0)
                and len(answer.prefix_counts) == (1 << OPENING_DEPTH if has_counts else 0)
                and asked.salt in (None, answer.salt)
            )
        case Sift(), Sifted():
            is_fit = len(answer.cells) == asked.cell_count * CELL_BYTES and (
                (asked.universe == 0) == (answer.members is None)
            )
        case CountParts(), Counts():
            is_fit = len(answer.counts) == len(asked.ranges.values) << asked.fan_bits
        case Split(), Parts():
            is_fit = len(answer.parts) == len(asked.ranges.values) << asked.fan_bits
        case PlainRanges(), PlainParts():
            is_fit = len(answer.ranges) == (len(asked.ranges) or 1)
        case _:
            is_fit = True
    if not is_fit:
        raise MalformedMessageError(
            f"{type(answer).__name__} is not of the size that was asked for"
        )
