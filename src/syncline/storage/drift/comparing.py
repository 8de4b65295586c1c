"""Two sets compared by the engine that routers and agents use, with what that would cost on a wire.

The first set asks, the second answers. Where both are at hand they talk to each other within this
process; bytes are those of the parts that would go over a connection.
"""

from collections.abc import Callable
from dataclasses import dataclass

from syncline.core.reconciliation.initiator import Initiator, Mode
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import IdSet, SetView, frozen, state_of
from syncline.values.reconciliation import (
    ID_BYTES,
    SALT_BYTES,
    Answer,
    Difference,
    Failure,
    Request,
    Result,
    SetState,
)
from syncline.wire.reconciliation.answers import encode_answer
from syncline.wire.reconciliation.requests import encode_request

# So many random bytes.
RandomBytes = Callable[[int], bytes]
# Told of bytes as they are dealt with.
Followed = Callable[[int], None]


def unfollowed(_byte_count: int) -> None:
    """For whom it is quick."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a session takes, without what a connection adds to it."""

    asked_bytes: int = 0
    answered_bytes: int = 0
    round_trips: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """`only_first` and `only_second` are ids one after another, in order. With a `failure` the sets
    differ, and in what is not known."""

    first: SetState
    second: SetState
    only_first: bytes = b""
    only_second: bytes = b""
    traffic: Traffic = Traffic()
    failure: str | None = None

    @property
    def is_equal(self) -> bool:
        return self.first.is_same_set(self.second)

    @property
    def only_first_count(self) -> int:
        return len(self.only_first) // ID_BYTES

    @property
    def only_second_count(self) -> int:
        return len(self.only_second) // ID_BYTES


class CountedSession:
    """The asking side of one session, whoever carries its questions."""

    def __init__(
        self, ids: SetView, random_bytes: RandomBytes, mode: Mode, followed: Followed = unfollowed
    ) -> None:
        self.question: Request | None
        self.result: Result | None = None
        self._state = ids.state
        self._initiator = Initiator(ids, lambda: random_bytes(SALT_BYTES), mode=mode)
        self._followed = followed
        self._asked_bytes = 0
        self._answered_bytes = 0
        self._second: SetState | None = None
        self._ask(self._initiator.start())

    def receive(self, answer: Answer) -> None:
        """What follows is in `question`, or it is None and `result` is there. Raises ProtocolError
        for what is no answer."""
        byte_count = sum(map(len, encode_answer(answer)))
        self._answered_bytes += byte_count
        self._followed(byte_count)
        self._second = answer.state or self._second
        reply = self._initiator.receive(answer)
        if isinstance(reply, Difference | Failure):
            self.question, self.result = None, reply
        else:
            self._ask(reply)

    def comparison(self) -> Comparison:
        """Once there is a result."""
        assert self.result is not None
        assert self._second is not None, "the first answer tells the state"
        traffic = Traffic(self._asked_bytes, self._answered_bytes, self._initiator.round_trips)
        if isinstance(self.result, Failure):
            return Comparison(
                self._state, self._second, traffic=traffic, failure=self.result.reason
            )
        return Comparison(
            self._state, self.result.state, self.result.extra, self.result.missing, traffic
        )

    def _ask(self, request: Request) -> None:
        self.question = request
        byte_count = sum(map(len, encode_request(request)))
        self._asked_bytes += byte_count
        self._followed(byte_count)


def compare(
    first: IdSet,
    second: IdSet,
    random_bytes: RandomBytes,
    mode: Mode = Mode.SKETCH,
    followed: Followed = unfollowed,
) -> Comparison:
    """Both sets must stay as they are meanwhile. Equal digests cost nothing beyond themselves."""
    view = SetView(frozen(first))
    state = state_of(second)
    if view.state.is_same_set(state):
        return Comparison(view.state, state)
    responder = Responder(second, random_bytes(SALT_BYTES))
    session = CountedSession(view, random_bytes, mode, followed)
    while session.question is not None:
        session.receive(responder.answer(session.question))
    return session.comparison()
