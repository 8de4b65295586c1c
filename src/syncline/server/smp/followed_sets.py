"""The sets of services as questions about them are answered: read once, then kept up to date.

The first question about a set reads all its ids. From then on the set is *followed*: each change of
the records changes its sketch, its digest and its list of recent changes, and the ids themselves
when they are next asked for. So an opening needs no scan, and who asks again a moment later meets
the ids where they were left.

- A followed set is as it was durable at its version, exactly. What was told does not fit its
  version: it is thrown away, and the next question reads all ids once more.
- Ids take memory. Those that nobody has asked for lately go first; the sketch stays without them.
- Everything here belongs to one thread, but for `tell` and what stands below "In the event loop".
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from xxhash import xxh3_128_intdigest

from syncline.core.reconciliation.changes import RecentChanges
from syncline.core.reconciliation.kept import KeptSketch
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import END, RangeDigest, SetView, Snapshot, frozen
from syncline.kernels import ranges
from syncline.kernels.xxh3 import Ids, as_rows
from syncline.storage.records.base import Records
from syncline.values.reconciliation import SALT_BYTES, Change

# What a followed set takes for each id whose rows are at hand: the id, its first bytes as a number
# twice, its hash, and the sums up to it.
ROW_BYTES: Final = 24 + 8 + 8 + 8 + 48
# Beyond so many, reading all ids costs less than carrying changes over one by one.
_LAG_COUNT_MAX: Final = 4_096
# Changes that were told and not taken in: from the first number on the worker has to take them in,
# beyond the second nothing is followed any more.
_TOLD_COUNT_DUE: Final = 1_024
_TOLD_COUNT_MAX: Final = 262_144
_SUM_MASK: Final = (1 << 128) - 1


class OutOfStepError(Exception):
    """The ids that were read are of another version, or others than were followed."""


@dataclass(frozen=True, slots=True)
class FollowedLimits:
    set_count_max: int
    bytes_max: int
    idle_ms_max: int


class FollowedSet:
    """One set at its newest version, as an `IdSet` and as a responder wants it.

    `read` gives all ids of the set as they are durable.
    """

    def __init__(self, rows: Snapshot, salt: bytes, read: Callable[[], Snapshot]) -> None:
        self._read = read
        self._salt = salt
        self._rows: Snapshot | None = rows
        self._lag: list[Change] = []
        self._digest = rows.digest(b"", END)
        view = SetView(rows)
        self._sketch = KeptSketch.of_view(view, salt)
        self._recent = RecentChanges(rows.version())
        self.responder = self._make_responder()
        self.used_ms = 0

    # As a set of ids.

    def size(self) -> int:
        return self._digest.count

    def version(self) -> int:
        return self._recent.version

    def lower_bound(self, start: bytes) -> bytes | None:
        return self._ids().lower_bound(start)

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        return self._ids().iterate(start, end)

    def digest(self, start: bytes, end: bytes) -> RangeDigest:
        if start == b"" and end == END:
            return self._digest
        return self._ids().digest(start, end)

    # Following.

    def follow(self, version: int, changes: Sequence[Change]) -> bool:
        """False: that does not fit, and this is no longer the set."""
        if version <= self.version():
            # It was told late, of what had been read already.
            return True
        if not changes and version == self.version() + 1:
            # Its digest was repaired.
            self._sketch.version = version
            self._recent = RecentChanges(version)
            return True
        if version != self.version() + len(changes):
            return False
        for change in changes:
            self._change(change)
        return True

    @property
    def row_bytes(self) -> int:
        return 0 if self._rows is None else self._rows.size() * ROW_BYTES

    def drop_rows(self) -> None:
        """They are read again when they are needed."""
        self._rows = None
        self._lag.clear()
        # With it goes what it had derived from them.
        self.responder = self._make_responder()

    def _change(self, change: Change) -> None:
        (self._sketch.add if change.is_added else self._sketch.remove)(change.id)
        self._recent.add(change)
        self._digest = _changed(self._digest, change)
        if self._rows is not None:
            self._lag.append(change)
            if len(self._lag) > _LAG_COUNT_MAX:
                self.drop_rows()

    def _ids(self) -> Snapshot:
        """Raises OutOfStepError."""
        if self._rows is None:
            rows = self._read()
            if rows.version() != self.version() or rows.digest(b"", END) != self._digest:
                raise OutOfStepError
            self._rows = rows
        elif self._lag:
            self._rows = _carried_over(self._rows, self._lag, self.version())
            self._lag.clear()
        return self._rows

    def _make_responder(self) -> Responder:
        return Responder(
            self, self._salt, kept=self._sketch, changes_since=lambda at: self._recent.since(at)
        )


class FollowedSets:
    """See the module. `secret`: 32 random bytes, from which each set has a salt of its own."""

    def __init__(self, records: Records, secret: bytes, limits: FollowedLimits) -> None:
        self._records = records
        self._secret = secret
        self._limits = limits
        # Those used last stand last.
        self._sets: OrderedDict[bytes, FollowedSet] = OrderedDict()
        self._now_ms = 0
        # Shared with the event loop, each written by one side alone or in one step.
        self._told: deque[tuple[bytes, int, Sequence[Change]]] = deque()
        self._told_count = 0
        self._taken_count = 0
        self._is_too_much = False
        self._wanted: set[bytes] = set()
        # Of each that is followed, the version that was told last.
        self._newest: dict[bytes, int] = {}
        self.scan_count = 0

    # In the event loop.

    def tell(self, service_id: bytes, version: int, changes: Sequence[Change]) -> None:
        """Follows the records."""
        if service_id not in self._wanted:
            return
        if self._told_count - self._taken_count > _TOLD_COUNT_MAX:
            self._is_too_much = True
            return
        self._newest[service_id] = version
        self._told.append((service_id, version, changes))
        self._told_count += 1 + len(changes)

    @property
    def has_much_told(self) -> bool:
        """The worker should `catch_up`."""
        return self._told_count - self._taken_count > _TOLD_COUNT_DUE

    @property
    def is_idle(self) -> bool:
        """There is nothing that could be let go of."""
        return not self._sets

    def is_behind(self, service_id: bytes, version: int) -> bool:
        """It is followed, and was not told of this version yet."""
        found = self._sets.get(service_id)
        return found is not None and max(found.version(), self._newest.get(service_id, 0)) < version

    # In the worker's thread.

    def set_of(self, service_id: bytes, version_min: int, now_ms: int) -> FollowedSet:
        """Raises StorageError."""
        self._now_ms = now_ms
        self.catch_up()
        found = self._sets.get(service_id)
        if found is None or found.version() < version_min:
            found = self._scan(service_id)
        self._sets.move_to_end(service_id)
        found.used_ms = now_ms
        return found

    def read_anew(self, service_id: bytes) -> FollowedSet:
        """Whatever is followed, read all ids. Raises StorageError."""
        found = self._scan(service_id)
        found.used_ms = self._now_ms
        return found

    def catch_up(self) -> None:
        """Take in what was told."""
        if self._is_too_much:
            self._forget_all()
        while self._told:
            service_id, version, changes = self._told.popleft()
            self._taken_count += 1 + len(changes)
            found = self._sets.get(service_id)
            if found is not None and (version == 0 or not found.follow(version, changes)):
                self.forget(service_id)

    def forget(self, service_id: bytes) -> None:
        self._wanted.discard(service_id)
        self._newest.pop(service_id, None)
        self._sets.pop(service_id, None)

    def tidy(self, now_ms: int) -> None:
        self.catch_up()
        self.keep_bounds(now_ms)

    def keep_bounds(self, now_ms: int) -> None:
        """Let go of what is too much, and of ids that nobody has asked for lately."""
        while len(self._sets) > self._limits.set_count_max:
            self.forget(next(iter(self._sets)))
        bytes_left = self._limits.bytes_max
        for index, each in enumerate(reversed(self._sets.values())):
            is_idle = now_ms - each.used_ms > self._limits.idle_ms_max
            # The newest may be too large by itself: its next question would need it again.
            is_too_much = index > 0 and each.row_bytes > bytes_left
            if each.row_bytes and (is_idle or is_too_much):
                each.drop_rows()
            bytes_left -= each.row_bytes

    def salt_of(self, service_id: bytes) -> bytes:
        return hashlib.blake2b(service_id, digest_size=SALT_BYTES, key=self._secret).digest()

    @property
    def row_bytes(self) -> int:
        return sum(each.row_bytes for each in list(self._sets.values()))

    @property
    def set_count(self) -> int:
        return len(self._sets)

    def _scan(self, service_id: bytes) -> FollowedSet:
        # Before the ids are read: what changes them from here on is told.
        self._wanted.add(service_id)

        def read() -> Snapshot:
            return self._read(service_id)

        found = FollowedSet(read(), self.salt_of(service_id), read)
        self._sets[service_id] = found
        return found

    def _read(self, service_id: bytes) -> Snapshot:
        self.scan_count += 1
        with self._records.read_set(service_id) as ids:
            return frozen(ids)

    def _forget_all(self) -> None:
        self._wanted.clear()
        self._newest.clear()
        self._sets.clear()
        self._is_too_much = False


def _changed(digest: RangeDigest, change: Change) -> RangeDigest:
    hashed = xxh3_128_intdigest(change.id)
    sign = 1 if change.is_added else -1
    return RangeDigest(
        digest.count + sign, digest.xor128 ^ hashed, digest.sum128 + sign * hashed & _SUM_MASK
    )


def _carried_over(before: Snapshot, changes: Sequence[Change], version: int) -> Snapshot:
    """The set after these changes. Raises OutOfStepError if they cannot have been its changes."""
    last = {change.id: change.is_added for change in changes}
    rows, heads = before.rows, ranges.keys(before.rows)
    gone: list[int] = []
    come: list[bytes] = []
    for id_, is_added in last.items():
        place = ranges.lower_bound(rows, heads, id_)
        was_there = place < len(rows) and rows[place].tobytes() == id_
        if was_there and not is_added:
            gone.append(place)
        elif is_added and not was_there:
            come.append(id_)
    kept = np.delete(rows, gone, axis=0)
    if not come:
        return Snapshot(kept, version, is_sorted=True)
    added = as_rows(b"".join(sorted(come)))
    kept_heads = ranges.keys(kept)
    places = [ranges.lower_bound(kept, kept_heads, each.tobytes()) for each in added]
    return Snapshot(np.insert(kept, places, added, axis=0), version, is_sorted=True)
