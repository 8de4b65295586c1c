"""The side that is asked. It remembers nothing of a session: each question says all it needs.

What is kept between questions is a cache of one version of the set, which any session may use.
Whatever is asked, the work for it is bounded by the size of the set and the limits below.
"""

from collections.abc import Callable
from typing import assert_never

import numpy as np

from syncline.core.reconciliation import estimate
from syncline.core.reconciliation.kept import KeptSketch
from syncline.core.reconciliation.plain import FAN, after, plain_parts
from syncline.core.reconciliation.ranged import part_of
from syncline.core.reconciliation.sets import (
    END,
    IdSet,
    SetView,
    as_hashes,
    hash_bytes,
    prefix_range,
    rows_between,
    sketch_hashes,
    state_of,
)
from syncline.core.reconciliation.working import filter_within, parts_of, passes
from syncline.errors import LimitExceededError
from syncline.kernels import ranges
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.kernels.cells import Cells, peel, sketch
from syncline.kernels.xxh3 import Ids, Words, salted
from syncline.values.reconciliation import (
    BUCKET_MODULUS,
    CHANGE_COUNT_MAX,
    PART_COUNT_MAX,
    PLAIN_RANGE_COUNT_MAX,
    SET_COUNT_MAX,
    Answer,
    Change,
    Compare,
    CountParts,
    Counts,
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
    SetState,
    Sift,
    Sifted,
    Split,
    TooFew,
)

# What changed since a version, in order; None if that is no longer known.
ChangesSince = Callable[[int], tuple[Change, ...] | None]


class Responder:
    """Answers for one set. `salt` is the set's own, known to nobody but the two peers."""

    def __init__(
        self,
        ids: IdSet,
        salt: bytes,
        *,
        kept: KeptSketch | None = None,
        changes_since: ChangesSince = lambda _version: None,
    ) -> None:
        self._ids = ids
        self._salt = salt
        self._kept = kept
        self._changes_since = changes_since
        self._cached: SetView | None = None

    def opening(self, cell_count: int, salt: bytes | None = None) -> Opening:
        """What may be sent unasked when the digests of two sets do not agree."""
        _check("the cells asked for", cell_count, CELL_COUNT_MAX)
        view = self._view()
        salt = self._salt if salt is None else salt
        if not cell_count:
            return Opening(view.state, salt, b"", (), ())
        kept = self._usable_kept(view, salt, cell_count)
        buckets = view.bucket_counts(salt).tolist() if kept is None else kept.bucket_counts
        prefixes = view.prefix_counts().tolist() if kept is None else kept.prefix_counts
        return Opening(
            view.state,
            salt,
            self._cells(view, salt, cell_count).encode(),
            tuple(prefixes),
            tuple(count % BUCKET_MODULUS for count in buckets),
        )

    def answer(self, request: Request) -> Answer:
        """Raises LimitExceededError for what nobody in good faith asks."""
        if isinstance(request, Open):
            return self.opening(request.cell_count, request.salt)
        view = self._view()
        state = None if request.version == view.state.version else view.state
        match request:
            case Compare():
                return self._compare(view, state, request)
            case Sift():
                return self._sift(view, state, request)
            case CountParts():
                return _count(view, state, request)
            case Split():
                return self._split(state, request)
            case Fetch():
                return self._fetch(view, state, request)
            case ListIds():
                return Listing(state, self._rows_in(request.ranges).tobytes())
            case PlainRanges():
                return self._plain_ranges(state, request)
            case _:
                assert_never(request)

    # ------------------------------------------------------------------------------------ answers

    def _compare(self, view: SetView, state: SetState | None, request: Compare) -> Answer:
        theirs = Cells.decode(request.cells)
        _check("the cells sent", len(theirs), CELL_COUNT_MAX)
        difference = theirs - self._cells(view, request.salt, len(theirs))
        peeled = peel(difference)
        if peeled.is_whole:
            found = view.find(request.salt, peeled.minus)
            # Otherwise what was read is not of this set, or two ids share a hash.
            if len(found) == len(peeled.minus):
                ids = view.rows[found].tobytes()
                return Found(state, ids, hash_bytes(np.sort(peeled.plus)))
        return TooFew(state, int(estimate.from_cells(difference) or 0))

    def _sift(self, view: SetView, state: SetState | None, request: Sift) -> Sifted:
        _check("the cells asked for", request.cell_count, CELL_COUNT_MAX)
        _check("the universe of a filter", request.universe, SET_COUNT_MAX)
        hashes = view.hashes(request.salt)
        ids = b""
        if request.members is not None:
            has_passed = passes(request.members, hashes)
            ids = view.rows[np.flatnonzero(~has_passed)].tobytes()
            hashes = hashes[has_passed]
        members = filter_within(hashes, request.universe) if request.universe else None
        cells = sketch(sketch_hashes(hashes), request.cell_count) if request.cell_count else None
        return Sifted(state, ids, members, b"" if cells is None else cells.encode())

    def _split(self, state: SetState | None, request: Split) -> Parts:
        depth, prefixes = _parts_of(request.ranges, request.fan_bits)
        is_leaf = request.fan_bits == 0
        return Parts(
            state,
            tuple(
                part_of(self._ids, request.salt, depth, prefix, is_leaf)
                for prefix in prefixes.tolist()
            ),
        )

    def _fetch(self, view: SetView, state: SetState | None, request: Fetch) -> Fetched | Restart:
        changes = self._changes_since(request.version) if state is not None else ()
        if changes is None or len(changes) > CHANGE_COUNT_MAX:
            return Restart(view.state)
        wanted = as_hashes(request.hashes)
        if request.ranges is None:
            rows = view.rows[view.find(request.salt, wanted)]
        else:
            rows = self._rows_in(request.ranges)
            rows = rows[np.isin(sketch_hashes(salted(rows, request.salt)), wanted)]
        return Fetched(state, rows.tobytes(), changes)

    def _plain_ranges(self, state: SetState | None, request: PlainRanges) -> PlainParts:
        _check("the ranges asked for", len(request.ranges), PLAIN_RANGE_COUNT_MAX)
        _check("the parts of a range", request.fan, FAN)
        bounds = [(first, after(last)) for first, last in request.ranges] or [(b"", END)]
        fan = max(1, request.fan)
        return PlainParts(
            state, tuple(tuple(plain_parts(self._ids, *bound, fan)) for bound in bounds)
        )

    # ------------------------------------------------------------------------------------ details

    def _view(self) -> SetView:
        version = self._ids.version()
        if self._cached is None or self._cached.state.version != version:
            self._cached = SetView(self._ids, state_of(self._ids))
        return self._cached

    def _cells(self, view: SetView, salt: bytes, cell_count: int) -> Cells:
        kept = self._usable_kept(view, salt, cell_count)
        return view.cells(salt, cell_count) if kept is None else kept.cells(cell_count)

    def _usable_kept(self, view: SetView, salt: bytes, cell_count: int) -> KeptSketch | None:
        kept = self._kept
        if kept is None or kept.salt != salt or kept.version != view.state.version:
            return None
        return kept if cell_count <= kept.cell_count else None

    def _rows_in(self, within: Prefixes) -> Ids:
        _check("the ranges asked for", len(within.values), PART_COUNT_MAX)
        bounds = [prefix_range(within.depth, prefix) for prefix in within.values]
        return np.concatenate([rows_between(self._ids, *bound) for bound in bounds])


def _count(view: SetView, state: SetState | None, request: CountParts) -> Counts:
    depth, prefixes = _parts_of(request.ranges, request.fan_bits)
    starts, ends = ranges.prefix_bounds(view.heads, depth, prefixes)
    return Counts(state, tuple((ends - starts).tolist()))


def _parts_of(within: Prefixes, fan_bits: int) -> tuple[int, Words]:
    _check("the depth of a range", within.depth + fan_bits, 64)
    _check("the parts asked for", len(within.values) << fan_bits, PART_COUNT_MAX)
    return parts_of(within, fan_bits)


def _check(what: str, value: int, limit: int) -> None:
    if value > limit:
        raise LimitExceededError(what, value, limit)
