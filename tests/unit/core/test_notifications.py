"""Who is notified, and what waits until somebody can be."""

from collections import defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syncline.core.notifications import Notification, Notifications
from syncline.core.subscriptions import Deleted, Effect, Ended, ServiceEnded
from syncline.values import limits

A, B, C = 1, 2, 3
N, M = b"n" * 24, b"m" * 24
S, T = b"S" * 24, b"T" * 24
NOW_MS = 1_000_000


def notification(number: int) -> Notification:
    return Notification(b"%024d" % number, b"%0144d" % number)


@pytest.fixture
def core() -> Notifications:
    made = Notifications()
    for session in (A, B, C):
        made.connect(session)
    return made


def notify(
    core: Notifications, notifier: bytes, service: bytes | None, *numbers: int, now_ms: int = NOW_MS
) -> list[int | None]:
    return [core.notify(notifier, service, notification(each), now_ms) for each in numbers]


def taken(core: Notifications, session: int, count_max: int = 99) -> list[tuple[bytes, int]]:
    return [(notifier, int(each.nonce)) for notifier, each in core.take_due(session, count_max)]


def test_a_notification_goes_to_the_subscriber(core: Notifications) -> None:
    core.subscribe(A, N, None)
    assert notify(core, N, None, 1) == [A]
    assert taken(core, A) == [(N, 1)]
    assert (core.waiting_count, taken(core, A)) == (0, [])


def test_a_notification_for_nobody_waits_for_the_subscriber(core: Notifications) -> None:
    assert notify(core, N, None, 1, 2) == [None, None]
    assert notify(core, M, None, 3) == [None]
    core.subscribe(A, N, None)
    assert taken(core, A) == [(N, 1), (N, 2)]
    assert core.waiting_count == 1


def test_notifications_of_a_service_go_to_its_owner(core: Notifications) -> None:
    core.subscribe_service(A, S)
    assert notify(core, N, S, 1) == [A]
    assert notify(core, M, T, 2) == [None]
    assert taken(core, A) == [(N, 1)]


def test_what_waits_for_a_service_is_taken_by_who_speaks_for_it(core: Notifications) -> None:
    notify(core, N, S, 1)
    notify(core, M, T, 2)
    subscribed = core.subscribe_service(A, S)
    assert (subscribed.is_new, subscribed.effects) == (True, ())
    assert taken(core, A) == [(N, 1)]


def test_what_waits_for_one_notifier_of_a_service_outlives_another(core: Notifications) -> None:
    notify(core, N, S, 1)
    notify(core, M, S, 2)
    core.deleted(N, S)
    core.subscribe_service(A, S)
    assert taken(core, A) == [(M, 2)]
    assert not core._waiting_of, "a service for which nothing waits costs nothing"


def test_subscribing_again_for_a_service_is_not_new(core: Notifications) -> None:
    core.subscribe_service(A, S)
    assert not core.subscribe_service(A, S).is_new
    core.subscribe_service(B, S)
    assert core.subscribe_service(A, S).is_new
    assert not core.subscribe_service(99, S).is_new


def test_what_is_due_is_taken_in_pages_and_in_order(core: Notifications) -> None:
    notify(core, N, None, 1, 2, 3)
    core.subscribe(A, N, None)
    assert taken(core, A, 2) == [(N, 1), (N, 2)]
    assert notify(core, N, None, 4) == [A]
    assert taken(core, A, 2) == [(N, 3), (N, 4)]


def test_a_paused_session_takes_nothing(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.pause(A)
    assert notify(core, N, None, 1) == [None]
    assert taken(core, A) == []
    core.resume(A)
    assert taken(core, A) == [(N, 1)]


def test_a_session_that_is_gone_takes_nothing(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.disconnect(A)
    core.resume(A)
    assert notify(core, N, None, 1) == [None]
    assert taken(core, A) == []


# --------------------------------------------------------------------------- moving


def test_who_subscribes_elsewhere_takes_what_waits(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.pause(A)
    notify(core, N, None, 1)
    assert core.subscribe(B, N, None) == [Ended(A, N)]
    core.resume(A)
    assert taken(core, A) == []
    assert taken(core, B) == [(N, 1)]


def test_a_displaced_session_takes_nothing_more(core: Notifications) -> None:
    core.subscribe_service(A, S)
    core.pause(A)
    notify(core, N, S, 1)
    assert core.subscribe_service(B, S).effects == (ServiceEnded(A, S),)
    core.resume(A)
    assert taken(core, A) == []
    assert taken(core, B) == [(N, 1)]


@pytest.mark.parametrize(
    ("before", "after", "effects"),
    [
        (None, S, [Ended(A, N)]),
        (S, None, [Ended(A, N)]),
        (T, S, [Ended(A, N)]),
        (S, S, [ServiceEnded(A, S)]),
    ],
)
def test_what_waits_moves_with_the_association(
    core: Notifications, before: bytes | None, after: bytes | None, effects: list[Effect]
) -> None:
    core.subscribe(A, N, before)
    core.pause(A)
    notify(core, N, before, 1)
    assert core.subscribe(B, N, after, former=before) == effects
    core.resume(A)
    assert (taken(core, A), taken(core, B)) == ([], [(N, 1)])


def test_what_waits_for_nobody_follows_the_association(core: Notifications) -> None:
    notify(core, N, None, 1)
    notify(core, N, S, 2)
    core.subscribe_service(A, S)
    assert taken(core, A) == [(N, 1), (N, 2)]


def test_with_the_credentials_goes_what_waits(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.pause(A)
    notify(core, N, None, 1)
    notify(core, M, None, 2)
    assert core.deleted(N, None) == [Deleted(A, N)]
    core.resume(A)
    assert (taken(core, A), core.waiting_count) == ([], 1)
    core.subscribe(B, N, None)
    assert taken(core, B) == []


def test_the_owner_is_told_of_credentials_that_are_gone(core: Notifications) -> None:
    core.subscribe_service(A, S)
    assert core.deleted(N, S, by=B) == [Deleted(A, N)]
    assert core.deleted(N, S, by=A) == []


@pytest.mark.parametrize("is_subscribed", [True, False])
def test_without_its_service_a_notifier_waits_for_a_subscriber_of_its_own(
    core: Notifications, is_subscribed: bool
) -> None:
    if is_subscribed:
        core.subscribe_service(A, S)
        core.pause(A)
    notify(core, N, S, 1)
    assert core.service_deleted(S) == ([ServiceEnded(A, S)] if is_subscribed else [])
    core.subscribe_service(B, S)
    assert taken(core, B) == []
    core.subscribe(C, N, None)
    assert taken(core, C) == [(N, 1)]


def test_what_waits_for_a_notifier_that_left_its_service_stays(core: Notifications) -> None:
    core.subscribe_service(A, S)
    core.pause(A)
    notify(core, N, S, 1)
    core.forget(N, S)
    core.resume(A)
    assert taken(core, A) == []
    core.subscribe_service(C, S)
    assert taken(core, C) == []
    core.subscribe(B, N, None)
    assert taken(core, B) == [(N, 1)]


@pytest.mark.parametrize("speaks_first", [True, False])
def test_a_notifier_that_is_given_to_a_service_brings_what_waits(
    core: Notifications, speaks_first: bool
) -> None:
    core.subscribe(A, N, None)
    core.pause(A)
    notify(core, N, None, 1)
    if speaks_first:
        core.subscribe_service(B, S)
    assert core.associated(N, S) == [Ended(A, N)]
    core.resume(A)
    assert taken(core, A) == []
    if not speaks_first:
        core.subscribe_service(B, S)
    assert taken(core, B) == [(N, 1)]
    assert notify(core, N, S, 2) == [B]


def test_who_speaks_for_the_service_is_told_of_a_notifier_that_is_taken_off(
    core: Notifications,
) -> None:
    core.subscribe_service(A, S)
    core.pause(A)
    notify(core, N, S, 1)
    assert core.dissociated(N, S) == [Ended(A, N)]
    core.resume(A)
    assert taken(core, A) == []
    core.subscribe(B, N, None)
    assert taken(core, B) == [(N, 1)]


def test_a_notifier_that_is_forgotten_has_no_subscriber(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.forget(N, None)
    assert notify(core, N, None, 1) == [None]


# --------------------------------------------------------------------------- bounds


def test_the_oldest_of_a_notifier_makes_room(
    core: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "notifications_per_notifier_max", 2)
    notify(core, N, None, 1, 2, 3)
    assert (core.waiting_count, core.dropped_count) == (2, 1)
    core.subscribe(A, N, None)
    assert taken(core, A) == [(N, 2), (N, 3)]


def test_whoever_has_waited_longest_makes_room_for_all(
    core: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "notification_count_max", 2)
    core.subscribe(A, N, None)
    core.pause(A)
    notify(core, N, None, 1)
    notify(core, M, S, 2, 3)
    assert (core.waiting_count, core.dropped_count) == (2, 1)
    core.resume(A)
    assert taken(core, A) == []
    core.subscribe_service(B, S)
    assert taken(core, B) == [(M, 2), (M, 3)]


def test_the_only_notification_may_have_to_make_room_for_the_next(
    core: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "notification_count_max", 1)
    notify(core, N, S, 1, 2)
    core.subscribe_service(A, S)
    assert (taken(core, A), core.dropped_count) == ([(N, 2)], 1)


def test_what_waited_for_a_day_is_dropped(core: Notifications) -> None:
    core.subscribe(A, N, None)
    core.pause(A)
    notify(core, N, None, 1)
    notify(core, N, None, 2, now_ms=NOW_MS + 1)
    assert core.expire(NOW_MS + limits.notification_ms_max) == 0
    assert core.expire(NOW_MS + limits.notification_ms_max + 1) == 1
    core.resume(A)
    assert taken(core, A) == [(N, 2)]
    assert (core.waiting_count, core.dropped_count) == (0, 1)


def test_all_that_waits_may_be_too_old(core: Notifications) -> None:
    notify(core, N, S, 1, 2)
    notify(core, M, None, 3)
    assert core.expire(NOW_MS + limits.notification_ms_max + 1) == 3
    core.subscribe_service(A, S)
    assert (taken(core, A), core.waiting_count) == ([], 0)


# --------------------------------------------------------------------------- any order

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("notify", "sub", "subs", "take", "pause", "resume", "reconnect"),
                *("delete", "dissolve", "operate"),
            ]
        ),
        st.integers(0, 2),
        st.sampled_from([N, M]),
    ),
    max_size=60,
)


class Naive:
    """What waits as one list, and who reads as one dictionary of notifiers."""

    def __init__(self) -> None:
        self.service: dict[bytes, bytes | None] = {N: S, M: None}
        self.owner: int | None = None
        self.subscriber: dict[bytes, int] = {}
        self.waiting: list[tuple[bytes, int]] = []

    def reader(self, notifier: bytes) -> int | None:
        return self.owner if self.service[notifier] else self.subscriber.get(notifier)

    def forget(self, session: int) -> None:
        self.owner = None if self.owner == session else self.owner
        self.subscriber = {n: each for n, each in self.subscriber.items() if each != session}

    def take(self, session: int) -> dict[bytes, list[int]]:
        mine = [each for each in self.waiting if self.reader(each[0]) == session]
        self.waiting = [each for each in self.waiting if each not in mine]
        return grouped(mine)


def grouped(pairs: list[tuple[bytes, int]]) -> dict[bytes, list[int]]:
    of_each: dict[bytes, list[int]] = defaultdict(list)
    for notifier, number in pairs:
        of_each[notifier].append(number)
    return dict(of_each)


@given(STEPS)
@example([("notify", 0, M), ("sub", 0, M), ("sub", 1, N), ("take", 1, N)])
def test_each_notification_goes_once_to_who_reads_then(steps: list[tuple[str, int, bytes]]) -> None:
    """Sessions 0 and 1 speak for the service at times, 2 subscribes for itself."""
    core, naive = Notifications(), Naive()
    numbers = [10, 11, 12]
    for number in numbers:
        core.connect(number)
    for count, (what, slot, notifier) in enumerate(steps):
        session, service = numbers[slot], naive.service[notifier]
        match what:
            case "notify":
                reader = naive.reader(notifier)
                is_ready = reader is not None and not core.is_paused(reader)
                told = core.notify(notifier, service, notification(count), NOW_MS)
                assert told == (reader if is_ready else None)
                naive.waiting.append((notifier, count))
            case "sub" if slot == 2:
                core.subscribe(session, notifier, None, former=service)
                naive.service[notifier], naive.subscriber[notifier] = None, session
            case "sub":
                core.subscribe(session, notifier, S, former=service)
                naive.service[notifier], naive.owner = S, session
                naive.subscriber.pop(notifier, None)
            case "subs" if slot != 2:
                core.subscribe_service(session, S)
                naive.owner = session
            case "take" if not core.is_paused(session):
                assert grouped(taken(core, session)) == naive.take(session)
            case "pause":
                core.pause(session)
            case "resume":
                core.resume(session)
            case "reconnect":
                core.disconnect(session)
                naive.forget(session)
                numbers[slot] = 100 + count
                core.connect(numbers[slot])
            case "delete":
                core.deleted(notifier, service)
                naive.subscriber.pop(notifier, None)
                naive.waiting = [each for each in naive.waiting if each[0] != notifier]
            case "operate" if service is None:
                core.associated(notifier, S)
                naive.service[notifier] = S
                naive.subscriber.pop(notifier, None)
            case "operate":
                core.dissociated(notifier, S)
                naive.service[notifier] = None
            case "dissolve":
                core.service_deleted(S)
                naive.owner = None
                naive.service = dict.fromkeys(naive.service)
            case _:
                pass
        assert core.waiting_count == len(naive.waiting)
