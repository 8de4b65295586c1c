"""Plays a session between two sets, and counts the bytes of every part that goes over the wire."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from bench.reconcile.drifts import Drift
from bench.support.processes import BenchError
from syncline.core.reconciliation.initiator import Initiator, Mode
from syncline.core.reconciliation.kept import KeptSketch
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import SetView
from syncline.core.reconciliation.sketched import OPENING_CELLS
from syncline.values.reconciliation import Answer, Difference, Failure
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.requests import decode_request, encode_request
from syncline.wire.reconciliation.runs import Joiner

# Before anything of ours: SUBS and SOKS, each with its tag, a space, a count and a hash.
DETECTION_BYTES = 2 * (4 + 1 + 8 + 16)
_BODY_BYTES_MAX = 1 << 30

Message = TypeVar("Message")


@dataclass(slots=True)
class Played:
    byte_count: int = DETECTION_BYTES
    # Blocks of 16 KB, both ways, if each is padded.
    block_count: int = 2
    round_trips: int = 1
    # CPU of this process, without reading, sorting, coding and decoding.
    mine_seconds: float = 0.0
    theirs_seconds: float = 0.0
    asked: list[str] = field(default_factory=list)


def play(
    drift: Drift,
    random: np.random.Generator,
    *,
    mode: Mode = Mode.SKETCH,
    opening_cells: int = OPENING_CELLS,
    mine: SetView | None = None,
    my_sketch: KeptSketch | None = None,
    their_sketch: KeptSketch | None = None,
    salt: bytes | None = None,
) -> Played:
    """The opening comes with SOKS. Raises BenchError if the lists are not the true ones."""
    played = Played()
    clock = _Clock()

    def draw() -> bytes:
        return random.bytes(8)

    own = salt or draw()
    with clock:
        responder = Responder(drift.theirs, own, kept=their_sketch)
        opening_count = 0 if mode is not Mode.SKETCH else opening_cells
        answer: Answer = responder.opening(opening_count)
    played.theirs_seconds += clock.seconds
    with clock:
        initiator = Initiator(
            drift.mine if mine is None else mine,
            draw,
            mode=mode,
            kept=my_sketch,
            opening_cells=opening_cells,
        )
    played.mine_seconds += clock.seconds
    if not drift.difference:
        return played
    is_first = True
    while True:
        answer = _carried(encode_answer(answer), decode_answer, played, is_first)
        is_first = False
        with clock:
            reply = initiator.receive(answer)
        played.mine_seconds += clock.seconds
        if isinstance(reply, Difference | Failure):
            break
        played.asked.append(type(reply).__name__)
        request = _carried(encode_request(reply), decode_request, played)
        with clock:
            answer = responder.answer(request)
        played.theirs_seconds += clock.seconds
    played.round_trips = initiator.round_trips
    if not isinstance(reply, Difference):
        raise BenchError(f"a session failed: {reply.reason}")
    if (reply.missing, reply.extra) != (drift.missing, drift.extra):
        raise BenchError("a session ended with lists that are not the true ones")
    return played


def _carried(
    parts: Iterable[bytes],
    decode: Callable[[int, bytes], Message],
    played: Played,
    is_in_first_block: bool = False,
) -> Message:
    joiner = Joiner(_BODY_BYTES_MAX)
    found: tuple[int, bytes] | None = None
    for part in parts:
        found = joiner.add(part)
        played.byte_count += len(part)
        # The opening shares the block of SOKS.
        played.block_count += not is_in_first_block
        is_in_first_block = False
    assert found is not None
    return decode(*found)


class _Clock:
    """CPU seconds of this process in a `with`."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_error: object) -> None:
        self.seconds = time.process_time() - self._start
