"""What is pending, active and removed at one router, across sessions."""

from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syncline.client.smp import session_subscriptions
from syncline.client.smp.session_subscriptions import (
    NO_HASH,
    Demoted,
    ServiceSub,
    SessionSubscriptions,
    combined,
    hash_of,
)

A, B, C = (bytes([value]) * 24 for value in b"\xaa\xbb\xcc")
SERVICE, OTHER_SERVICE = b"s" * 24, b"t" * 24
OLD, NEW = b"old", b"new"


def opened(session_id: bytes = OLD) -> SessionSubscriptions:
    subscriptions = SessionSubscriptions()
    subscriptions.connected(session_id)
    return subscriptions


def state_of(subscriptions: SessionSubscriptions, queue: bytes) -> str:
    found = [
        "pending" * subscriptions.is_pending(queue),
        "active" * subscriptions.is_active(queue),
        "removed" * (subscriptions.why_removed(queue) is not None),
    ]
    return "".join(found) or "unknown"


def test_hash_of_ids_is_that_of_the_wire() -> None:
    # The vectors of the protocol: one id, and two.
    assert ServiceSub(SERVICE).with_queues([A]).ids_hash.hex() == "84d48245be5a4763b7ad704cef6f6d86"
    two = ServiceSub(SERVICE).with_queues([A, B])
    assert (two.count, two.ids_hash.hex()) == (2, "73c543f2fa2b96af1e7928ccfb936905")


# From each state of a queue, with OLD as the current session.
def make_active(found: SessionSubscriptions) -> None:
    found.want([A])
    found.subscribed(OLD, [A])


STATES: dict[str, Callable[[SessionSubscriptions], object]] = {
    "unknown": lambda _: None,
    "pending": lambda found: found.want([A]),
    "active": make_active,
    "removed": lambda found: found.ended(A),
}
ACTIONS: dict[str, Callable[[SessionSubscriptions], object]] = {
    "want": lambda found: found.want([A]),
    "want again": lambda found: found.want_again([A]),
    "answer": lambda found: found.subscribed(OLD, [A]),
    "answer of another session": lambda found: found.subscribed(NEW, [A]),
    "answer with the service": lambda found: found.associated(OLD, SERVICE, [A], [A]),
    "the same of another session": lambda found: found.associated(NEW, SERVICE, [A], [A]),
    "created": lambda found: found.created(OLD, A),
    "created in another session": lambda found: found.created(NEW, A),
    "disconnect": lambda found: found.disconnected(OLD),
    "disconnect of another session": lambda found: found.disconnected(NEW),
    "same session": lambda found: found.connected(OLD),
    "new session": lambda found: found.connected(NEW),
    "permanent failure": lambda found: found.failed(A, "AUTH"),
    "end": lambda found: found.ended(A),
    "deleted": lambda found: found.forgotten(A),
}
TABLE = {
    # action:                       (unknown,   pending,   active,    removed) become
    "want": ("pending", "pending", "active", "pending"),
    "want again": ("pending", "pending", "pending", "pending"),
    "answer": ("unknown", "active", "active", "removed"),
    "answer of another session": ("unknown", "pending", "active", "removed"),
    "answer with the service": ("unknown", "unknown", "unknown", "removed"),
    "the same of another session": ("unknown", "pending", "active", "removed"),
    "disconnect": ("unknown", "pending", "pending", "removed"),
    "disconnect of another session": ("unknown", "pending", "active", "removed"),
    "same session": ("unknown", "pending", "active", "removed"),
    "new session": ("unknown", "pending", "pending", "removed"),
    "permanent failure": ("removed", "removed", "removed", "removed"),
    "end": ("removed", "removed", "removed", "removed"),
    "deleted": ("unknown", "unknown", "unknown", "unknown"),
}
ROWS = [
    (action, before, after)
    for action, results in TABLE.items()
    for before, after in zip(STATES, results, strict=True)
]


@pytest.mark.parametrize(("action", "before", "after"), ROWS)
def test_queue_goes_from_state_to_state_as_the_table_says(
    action: str, before: str, after: str
) -> None:
    subscriptions = opened()
    STATES[before](subscriptions)
    assert state_of(subscriptions, A) == before
    ACTIONS[action](subscriptions)
    assert state_of(subscriptions, A) == after


def test_created_queue_is_active_in_its_own_session_only() -> None:
    subscriptions = opened()
    assert subscriptions.created(OLD, A)
    assert not subscriptions.created(NEW, B)
    assert (state_of(subscriptions, A), state_of(subscriptions, B)) == ("active", "pending")


def test_answers_name_only_what_they_changed() -> None:
    subscriptions = opened()
    subscriptions.want([A, B])
    assert subscriptions.subscribed(OLD, [A, C]) == (A,)
    assert subscriptions.subscribed(OLD, [A, B]) == (B,)
    assert subscriptions.subscribed(OLD, [A, B]) == ()


def test_ends_are_known_from_the_moment_they_are_watched() -> None:
    subscriptions = opened()
    subscriptions.ended(A)
    subscriptions.watch_ends()
    assert not subscriptions.has_ended(A)
    subscriptions.ended(B)
    subscriptions.forgotten(B)
    assert (subscriptions.has_ended(B), subscriptions.has_ended(C)) == (True, False)
    subscriptions.watch_ends()
    assert not subscriptions.has_ended(B)


def test_more_ends_than_can_be_remembered_are_taken_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_subscriptions, "ENDED_COUNT_MAX", 1)
    subscriptions = opened()
    subscriptions.ended(A)
    subscriptions.ended(A)
    assert not subscriptions.has_ended(C)
    subscriptions.ended(B)
    assert subscriptions.has_ended(C)
    subscriptions.watch_ends()
    assert not subscriptions.has_ended(C)


def test_disconnect_tells_what_was_active() -> None:
    subscriptions = opened()
    subscriptions.want([B, A, C])
    subscriptions.subscribed(OLD, [A, B])
    sub = ServiceSub(SERVICE, 7, hash_of(C))
    subscriptions.service_subscribed(OLD, sub)
    assert subscriptions.disconnected(OLD) == Demoted((A, B), sub)
    assert subscriptions.disconnected(OLD) == Demoted()
    assert subscriptions.pending_count == 3


def test_pending_queues_are_taken_in_their_order() -> None:
    subscriptions = opened()
    subscriptions.want([C, A, B])
    assert subscriptions.next_pending(2) == [C, A]
    assert subscriptions.next_pending(2) == [C, A]
    subscriptions.subscribed(OLD, [C])
    assert subscriptions.next_pending(9) == [A, B]


# -------------------------------------------------------------------------------------- the service


def test_service_waits_for_the_answer_of_its_own_session() -> None:
    subscriptions, sub = opened(), ServiceSub(SERVICE, 2, hash_of(A))
    subscriptions.want_service(sub)
    subscriptions.connected(NEW)
    assert not subscriptions.service_subscribed(OLD, sub)
    assert (subscriptions.pending_service, subscriptions.active_service) == (sub, None)
    assert subscriptions.service_subscribed(NEW, sub)
    assert (subscriptions.pending_service, subscriptions.active_service) == (None, sub)


def test_service_that_lost_its_session_is_pending() -> None:
    subscriptions, sub = opened(), ServiceSub(SERVICE, 2, hash_of(A))
    subscriptions.service_subscribed(OLD, sub)
    subscriptions.disconnected(OLD)
    assert (subscriptions.pending_service, subscriptions.active_service) == (sub, None)


def test_newer_expectation_is_kept_when_the_session_is_lost() -> None:
    subscriptions, newer = opened(), ServiceSub(SERVICE, 3, hash_of(B))
    subscriptions.service_subscribed(OLD, ServiceSub(SERVICE, 2, hash_of(A)))
    subscriptions.want_service(newer)
    subscriptions.disconnected(OLD)
    assert subscriptions.pending_service == newer


def test_service_grows_by_those_who_joined_and_holds_none_as_active() -> None:
    subscriptions = opened()
    subscriptions.want([A, B])
    subscriptions.service_subscribed(OLD, ServiceSub(SERVICE, 1, hash_of(B)))
    # B belonged to it already: it was answered again, and is not counted twice.
    assert subscriptions.associated(OLD, SERVICE, [A, B], [A]) == (A, B)
    assert subscriptions.active_service == ServiceSub(SERVICE, 2, combined(hash_of(A), hash_of(B)))
    assert subscriptions.active_count == 0
    assert not subscriptions.is_active(A)


def test_association_with_another_service_begins_anew() -> None:
    subscriptions = opened()
    subscriptions.service_subscribed(OLD, ServiceSub(SERVICE, 5, hash_of(B)))
    subscriptions.want([A])
    subscriptions.associated(OLD, OTHER_SERVICE, [A], [A])
    assert subscriptions.active_service == ServiceSub(OTHER_SERVICE, 1, hash_of(A))


def test_end_of_the_service_clears_what_is_active_and_what_is_pending() -> None:
    subscriptions, sub = opened(), ServiceSub(SERVICE, 2, hash_of(A))
    subscriptions.service_subscribed(OLD, sub)
    subscriptions.want_service(ServiceSub(SERVICE, 3, hash_of(B)))
    assert subscriptions.service_ended(NEW) is None
    assert subscriptions.active_service == sub
    assert subscriptions.service_ended(OLD) == sub
    found: list[ServiceSub | None] = [subscriptions.pending_service, subscriptions.active_service]
    assert found == [None, None]


def test_removed_queues_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_subscriptions, "REMOVED_COUNT_MAX", 2)
    subscriptions = opened()
    for queue in (A, B, A, C):
        subscriptions.failed(queue, "AUTH")
    found = [subscriptions.why_removed(queue) for queue in (A, B, C)]
    assert found == ["AUTH", None, "AUTH"]


# ------------------------------------------------------------------------------------------- random

QUEUES = st.sampled_from([bytes([number]) * 24 for number in range(6)])
SESSIONS = st.sampled_from([b"1", b"2", b"3"])


class Walk(RuleBasedStateMachine):
    """Any order of anything: the invariants of the module hold, and nothing wanted is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions = SessionSubscriptions()
        # Wanted, and neither ended nor failed nor handed over to the service.
        self.own: set[bytes] = set()
        self.of_service: set[bytes] = set()

    @rule(session=SESSIONS)
    def connect(self, session: bytes) -> None:
        self.subscriptions.connected(session)

    @rule(session=SESSIONS)
    def disconnect(self, session: bytes) -> None:
        self.subscriptions.disconnected(session)

    @rule(queue=QUEUES)
    def want(self, queue: bytes) -> None:
        self.subscriptions.want([queue])
        self.own.add(queue)

    @rule(queue=QUEUES)
    def want_again(self, queue: bytes) -> None:
        self.subscriptions.want_again([queue])
        self.own.add(queue)

    @rule(queue=QUEUES, session=SESSIONS)
    def answer(self, queue: bytes, session: bytes) -> None:
        was_pending = self.subscriptions.is_pending(queue)
        is_current = session == self.subscriptions.session_id
        assert bool(self.subscriptions.subscribed(session, [queue])) is (was_pending and is_current)

    @rule(queue=QUEUES, session=SESSIONS)
    def answer_with_service(self, queue: bytes, session: bytes) -> None:
        joined = [queue] if queue not in self.of_service else []
        found = self.subscriptions.associated(session, SERVICE, [queue], joined)
        if session == self.subscriptions.session_id:
            self.of_service.add(queue)
            self.own.discard(queue)
        assert set(found) <= {queue}

    @rule(queue=QUEUES, session=SESSIONS)
    def create(self, queue: bytes, session: bytes) -> None:
        if state_of(self.subscriptions, queue) == "unknown":
            self.subscriptions.created(session, queue)
            self.own.add(queue)

    @rule(queue=QUEUES, how=st.sampled_from(["ended", "failed", "forgotten"]))
    def lose(self, queue: bytes, how: str) -> None:
        if how == "failed":
            self.subscriptions.failed(queue, "AUTH")
        else:
            getattr(self.subscriptions, how)(queue)
        self.own.discard(queue)

    @rule(session=SESSIONS)
    def answer_of_service(self, session: bytes) -> None:
        sub = ServiceSub(SERVICE).with_queues(self.of_service)
        self.subscriptions.want_service(sub)
        self.subscriptions.service_subscribed(session, sub)

    @rule(session=SESSIONS)
    def end_service(self, session: bytes) -> None:
        if self.subscriptions.service_ended(session) is not None:
            self.of_service.clear()

    @invariant()
    def queue_is_in_one_place(self) -> None:
        for number in range(6):
            state = state_of(self.subscriptions, bytes([number]) * 24)
            assert state in ("unknown", "pending", "active", "removed")

    @invariant()
    def nothing_wanted_is_forgotten(self) -> None:
        found = self.subscriptions
        assert self.own == {
            queue
            for queue in (bytes([number]) * 24 for number in range(6))
            if found.is_pending(queue) or found.is_active(queue)
        }

    @invariant()
    def nothing_is_active_without_a_session(self) -> None:
        if self.subscriptions.session_id is None:
            assert self.subscriptions.active_count == 0
            assert self.subscriptions.active_service is None

    @invariant()
    def service_counts_its_queues(self) -> None:
        sub = self.subscriptions.active_service
        if sub is not None and sub.count == len(self.of_service):
            assert sub.ids_hash == reduce(combined, map(hash_of, self.of_service), NO_HASH)


TestWalk = Walk.TestCase
