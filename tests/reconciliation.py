"""Two sides of a reconciliation, joined in memory through the bytes of the wire."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from syncline.core.reconciliation.changes import RecentChanges
from syncline.core.reconciliation.initiator import Initiator
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import RangeDigest, Snapshot
from syncline.kernels.xxh3 import Ids
from syncline.values.reconciliation import (
    ID_BYTES,
    Answer,
    Change,
    Difference,
    Failure,
    Request,
    Result,
)
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.requests import decode_request, encode_request
from syncline.wire.reconciliation.runs import PART_BYTES_MAX, Joiner

BODY_BYTES_MAX = 1 << 26


def pieces(data: bytes) -> set[bytes]:
    return {data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)}


def snapshot(ids: Iterable[bytes], version: int = 0) -> Snapshot:
    return Snapshot(b"".join(ids), version)


class ChangingSet:
    """A set that changes under the responder's hands; remembers what it was at each version."""

    def __init__(self, ids: Iterable[bytes]) -> None:
        self.ids = set(ids)
        self.recent = RecentChanges()
        self.history = [frozenset(self.ids)]
        self._snapshot: Snapshot | None = None

    def change(self, id_: bytes) -> None:
        is_added = id_ not in self.ids
        self.ids ^= {id_}
        self.recent.add(Change(is_added, id_))
        self.history.append(frozenset(self.ids))
        self._snapshot = None

    def _now(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = snapshot(self.ids, self.version())
        return self._snapshot

    def size(self) -> int:
        return len(self.ids)

    def version(self) -> int:
        return len(self.history) - 1

    def lower_bound(self, start: bytes) -> bytes | None:
        return self._now().lower_bound(start)

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        return self._now().iterate(start, end)

    def digest(self, start: bytes, end: bytes) -> RangeDigest:
        return self._now().digest(start, end)


def joined(parts: Iterable[bytes]) -> tuple[int, bytes]:
    joiner = Joiner(BODY_BYTES_MAX)
    found = None
    for part in parts:
        assert found is None
        assert len(part) <= PART_BYTES_MAX
        found = joiner.add(part)
    assert found is not None
    return found


def over_the_wire(message: Answer) -> Answer:
    return decode_answer(*joined(encode_answer(message)))


def request_over_the_wire(message: Request) -> Request:
    return decode_request(*joined(encode_request(message)))


@dataclass
class Session:
    """Plays one session to its end; `between` runs before each answer."""

    initiator: Initiator
    responder: Responder
    between: Callable[[], None] = lambda: None
    carry: Callable[[Answer], Answer] = over_the_wire

    def __post_init__(self) -> None:
        self.requests: list[Request] = []

    def run(self) -> Result:
        request = self.initiator.start()
        while True:
            self.requests.append(request)
            self.between()
            answer = self.carry(self.responder.answer(request_over_the_wire(request)))
            reply = self.initiator.receive(answer)
            if isinstance(reply, Difference | Failure):
                return reply
            request = reply

    @property
    def asked(self) -> list[str]:
        return [type(request).__name__ for request in self.requests]


@dataclass(frozen=True)
class Drift:
    """Two sets and what differs."""

    mine: frozenset[bytes]
    theirs: frozenset[bytes]


def random_ids(random: Random, count: int, prefix: bytes = b"") -> list[bytes]:
    return [prefix + random.randbytes(ID_BYTES - len(prefix)) for _ in range(count)]


def random_drift(random: Random, size_max: int) -> Drift:
    """Of any kind that is known to be awkward: lopsided, clustered, with skewed prefixes."""
    size = int(size_max ** random.random()) if random.random() < 0.95 else 0
    kind = random.choice(["even", "skewed", "clustered", "twins"])
    ids = random_ids(random, size)
    if kind == "skewed":
        common = random.randbytes(random.randint(1, 12))
        ids = [common + id_[len(common) :] if random.random() < 0.8 else id_ for id_ in ids]
    if kind == "twins":
        # The same but for the last byte.
        ids += [id_[:-1] + bytes([id_[-1] ^ 1]) for id_ in ids[: size // 3]]
    ids = sorted(set(ids))
    if kind == "clustered":
        start, width = random.randint(0, len(ids)), int(len(ids) * random.random())
        picked = ids[start : start + width]
    else:
        picked = random.sample(ids, int(len(ids) * random.random() ** 3))
    share = random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    only_mine = {id_ for id_ in picked if random.random() < share}
    every = set(ids)
    return Drift(frozenset(every - (set(picked) - only_mine)), frozenset(every - only_mine))


def check_result(result: Result, drift: Drift) -> None:
    assert isinstance(result, Difference), result
    assert pieces(result.missing) == drift.theirs - drift.mine
    assert pieces(result.extra) == drift.mine - drift.theirs
