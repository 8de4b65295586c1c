"""Which message is with whom. All interleavings are in tests/model/test_deliveries_core.py."""

import sys

import pytest

from syncline.core.deliveries import (
    Acknowledged,
    Deliveries,
    Outstanding,
    Resumed,
    SessionView,
)
from syncline.core.subscriptions import Deleted, Ended, ServiceEnded
from syncline.values import limits

A, B, C = 1, 2, 3
Q, R = b"q" * 24, b"r" * 24
S, T = b"S" * 24, b"T" * 24


def message_id(seq: int) -> bytes:
    return b"%024d" % seq


@pytest.fixture
def core() -> Deliveries:
    made = Deliveries()
    for session in (A, B, C):
        made.connect(session)
    return made


def offer(core: Deliveries, queue: bytes, service: bytes | None, seq: int = 1) -> int | None:
    return core.offer(queue, service, seq, message_id(seq))


def acknowledge(core: Deliveries, session: int, queue: bytes, seq: int) -> Acknowledged | None:
    return core.acknowledge(session, queue, message_id(seq))


# --------------------------------------------------------------------------- one queue


def test_a_message_goes_to_the_subscriber(core: Deliveries) -> None:
    assert core.subscribe(A, Q, None) == []
    assert core.wants(Q, None)
    assert offer(core, Q, None) == A
    assert core.held(A, Q) == Outstanding(1, message_id(1))


def test_a_message_for_nobody_goes_to_nobody(core: Deliveries) -> None:
    core.subscribe(A, R, None)
    assert not core.wants(Q, None)
    assert offer(core, Q, None) is None
    assert core.held(A, Q) is None


def test_the_next_message_waits_for_the_acknowledgement(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None, 1)
    assert not core.wants(Q, None)
    assert offer(core, Q, None, 2) is None
    assert acknowledge(core, A, Q, 1) == Acknowledged(1, is_get=False)
    assert offer(core, Q, None, 2) == A


def test_an_acknowledgement_counts_once(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    acknowledge(core, A, Q, 1)
    assert acknowledge(core, A, Q, 1) is None


@pytest.mark.parametrize("wrong", [b"", message_id(2), message_id(1)[:-1]])
def test_an_acknowledgement_of_another_id_changes_nothing(core: Deliveries, wrong: bytes) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.acknowledge(A, Q, wrong) is None
    assert core.held(A, Q) == Outstanding(1, message_id(1))


def test_an_acknowledgement_by_another_session_changes_nothing(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert acknowledge(core, B, Q, 1) is None
    assert acknowledge(core, 99, Q, 1) is None
    assert acknowledge(core, A, R, 1) is None
    assert core.held(A, Q) is not None


def test_an_acknowledgement_of_what_is_gone_frees_the_slot(core: Deliveries) -> None:
    """It expired, or somebody fetched it: the store is far beyond it, the reader is not stuck."""
    core.subscribe(A, Q, None)
    offer(core, Q, None, 1)
    assert acknowledge(core, A, Q, 1) == Acknowledged(1, is_get=False)
    assert offer(core, Q, None, 7) == A


def test_who_subscribes_elsewhere_takes_the_queue(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.subscribe(B, Q, None) == [Ended(A, Q)]
    assert acknowledge(core, A, Q, 1) is None
    assert offer(core, Q, None) == B


def test_who_subscribes_again_is_sent_again_what_it_has_not_acknowledged(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.subscribe(A, Q, None) == []
    assert offer(core, Q, None) == A


def test_a_service_that_subscribes_again_to_a_queue_is_sent_again(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    offer(core, Q, S)
    offer(core, R, S)
    assert core.subscribe(A, Q, S, former=S) == []
    assert (offer(core, Q, S), offer(core, R, S)) == (A, None)


def test_who_went_leaves_nothing_behind(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    core.disconnect(A)
    assert not core.wants(Q, None)
    assert core.subscribe(B, Q, None) == []
    assert offer(core, Q, None) == B


def test_who_went_takes_nothing_of_others_along(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    core.subscribe(B, Q, None)
    core.disconnect(A)
    assert offer(core, Q, None) == B


def test_a_session_ends_once(core: Deliveries) -> None:
    core.disconnect(A)
    core.disconnect(A)
    core.pause(A)
    assert core.resume(A) == Resumed((), None)
    assert core.view(A) is None
    assert not core.is_paused(A)
    assert not core.has_subscriptions(A)


def test_a_session_that_is_gone_is_not_registered(core: Deliveries) -> None:
    core.subscribe(B, Q, None)
    assert core.subscribe(99, Q, None) == []
    assert offer(core, Q, None) == B
    assert core.subscribe_service(99, S).fold is None
    assert not core.wants(R, S)


def test_the_subscriber_elsewhere_is_told_of_a_deletion(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.deleted(Q, None, by=B) == [Deleted(A, Q)]
    assert acknowledge(core, A, Q, 1) is None
    assert core.deleted(Q, None) == []


def test_who_deletes_a_queue_is_not_told(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    assert core.deleted(Q, None, by=A) == []
    assert not core.has_subscriptions(A)


def test_a_queue_that_is_forgotten_is_read_by_nobody(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    core.subscribe(B, R, S)
    offer(core, R, S)
    core.forget(Q, None)
    core.forget(R, S)
    assert not core.wants(Q, None)
    assert core.held(B, R) is None
    assert core.queue_count == 0


# --------------------------------------------------------------------------- GET


def test_get_is_prohibited_to_the_subscriber(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    assert not core.get(A, Q, None)
    core.subscribe_service(B, S)
    assert not core.get(B, R, S)
    assert not core.is_get_only(A, Q)


def test_who_has_used_get_may_not_subscribe(core: Deliveries) -> None:
    assert not core.is_get_only(A, Q)
    assert core.get(A, Q, None)
    assert core.is_get_only(A, Q)
    core.got(A, Q, 1, message_id(1))
    acknowledge(core, A, Q, 1)
    assert core.is_get_only(A, Q)
    assert not core.is_get_only(B, Q)
    assert not core.is_get_only(A, R)


def test_get_does_not_disturb_the_subscriber(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.get(B, Q, None)
    core.got(B, Q, 1, message_id(1))
    assert core.held(A, Q) == core.held(B, Q) == Outstanding(1, message_id(1))


def test_an_acknowledgement_after_get_does_not_ask_for_the_next(core: Deliveries) -> None:
    core.get(A, Q, None)
    core.got(A, Q, 1, message_id(1))
    assert acknowledge(core, A, Q, 2) is None
    assert acknowledge(core, A, Q, 1) == Acknowledged(1, is_get=True)
    assert acknowledge(core, A, Q, 1) is None


def test_a_late_acknowledgement_of_what_another_session_fetched_counts(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None, 1)
    core.get(B, Q, None)
    core.got(B, Q, 1, message_id(1))
    assert acknowledge(core, B, Q, 1) == Acknowledged(1, is_get=True)
    assert offer(core, Q, None, 2) is None
    assert acknowledge(core, A, Q, 1) == Acknowledged(1, is_get=False)
    assert offer(core, Q, None, 2) == A


def test_a_message_that_is_pushed_is_acknowledged_as_such_where_get_was_used(
    core: Deliveries,
) -> None:
    core.get(A, Q, S)
    core.got(A, Q, 1, message_id(1))
    core.subscribe_service(A, S)
    offer(core, Q, S, 1)
    assert acknowledge(core, A, Q, 1) == Acknowledged(1, is_get=False)


def test_marks_of_get_end_with_the_session(core: Deliveries) -> None:
    core.get(A, Q, None)
    core.disconnect(A)
    assert not core.is_get_only(A, Q)
    assert not core.get(A, Q, None)


def test_the_marks_of_get_have_a_bound(core: Deliveries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "fetched_queue_count_max", 1)
    core.get(A, Q, None)
    assert core.is_get_only(A, Q)
    core.got(A, Q, 1, message_id(1))
    core.get(A, R, None)
    assert not core.is_get_only(A, Q)
    assert acknowledge(core, A, Q, 1) is None
    assert core.is_get_only(A, R)


# --------------------------------------------------------------------------- services


def test_the_owner_of_a_service_gets_messages_of_queues_it_never_touched(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    assert core.wants(Q, S)
    assert offer(core, Q, S) == A
    assert not core.wants(Q, T)


def test_an_associated_queue_costs_nothing(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    queues = [b"%024d" % number for number in range(1_000)]
    for queue in queues:
        core.subscribe(A, queue, S)
    owner = core.reader_of(Q, S)
    assert owner is not None
    assert core.queue_count == 0
    assert sum(map(sys.getsizeof, (owner.queues, owner.due, owner.held))) == sum(
        map(sys.getsizeof, (set[bytes](), {}, {}))
    )


@pytest.mark.parametrize("is_bulk", [True, False])
def test_who_speaks_for_a_service_displaces_the_one_before(core: Deliveries, is_bulk: bool) -> None:
    core.subscribe_service(A, S)
    offer(core, Q, S)
    offer(core, R, S)
    if is_bulk:
        effects = list(core.subscribe_service(B, S).effects)
    else:
        effects = core.subscribe(B, Q, S, former=S)
    assert effects == [ServiceEnded(A, S)]
    assert acknowledge(core, A, Q, 1) is None
    assert acknowledge(core, A, R, 1) is None
    assert offer(core, R, S) == B


def test_another_service_is_not_displaced(core: Deliveries) -> None:
    core.subscribe_service(A, T)
    assert core.subscribe_service(B, S).effects == ()
    assert offer(core, Q, T) == A
    assert core.service_count == 2


def test_subs_again_in_the_same_session_is_not_new(core: Deliveries) -> None:
    assert core.subscribe_service(A, S).is_new
    again = core.subscribe_service(A, S)
    assert (again.is_new, again.effects) == (False, ())


def test_the_first_subs_folds_even_if_sub_came_before(core: Deliveries) -> None:
    core.subscribe(A, Q, S)
    assert core.subscribe_service(A, S).is_new


def test_a_displaced_session_takes_the_service_back_with_a_fold(core: Deliveries) -> None:
    first = core.subscribe_service(A, S).fold
    core.subscribe_service(B, S)
    back = core.subscribe_service(A, S)
    assert back.effects == (ServiceEnded(B, S),)
    assert back.fold is not None
    assert back.fold != first


def test_a_service_takes_a_plain_queue(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    assert core.subscribe(B, Q, S) == [Ended(A, Q)]
    assert acknowledge(core, A, Q, 1) is None
    assert offer(core, Q, S) == B


def test_a_plain_session_takes_an_associated_queue(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    offer(core, Q, S)
    assert core.subscribe(B, Q, None, former=S) == [Ended(A, Q)]
    assert acknowledge(core, A, Q, 1) is None
    assert offer(core, Q, None) == B
    assert offer(core, R, S) == A


def test_one_service_takes_a_queue_of_another(core: Deliveries) -> None:
    core.subscribe_service(A, T)
    offer(core, Q, T)
    core.subscribe_service(B, S)
    core.subscribe_service(C, S)
    assert core.subscribe(B, Q, S, former=T) == [ServiceEnded(C, S), Ended(A, Q)]
    assert core.held(A, Q) is None


def test_who_loses_a_queue_to_a_session_that_went_is_told(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    core.subscribe_service(B, S)
    assert core.subscribe(99, Q, S) == [Ended(A, Q)]
    assert offer(core, Q, S) == B
    assert core.subscribe(99, Q, None, former=S) == [Ended(B, Q)]
    assert core.held(B, Q) is None


def test_the_owner_keeps_a_queue_that_stays_with_its_service(core: Deliveries) -> None:
    core.subscribe_service(B, S)
    offer(core, Q, S)
    assert core.subscribe(99, Q, S, former=S) == []
    assert core.held(B, Q) is not None


def test_the_owner_is_told_of_a_deletion(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    offer(core, Q, S)
    assert core.deleted(Q, S, by=B) == [Deleted(A, Q)]
    assert core.held(A, Q) is None


def test_the_owner_is_told_that_the_service_is_gone(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    offer(core, Q, S)
    assert core.service_deleted(S) == [ServiceEnded(A, S)]
    assert not core.fold_is_current(fold)
    assert core.held(A, Q) is None
    assert core.service_deleted(S) == []


def test_a_session_speaks_for_one_service(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    with pytest.raises(AssertionError, match="one service"):
        core.subscribe_service(A, T)


# --------------------------------------------------------------------------- folds


def test_a_fold_ends_once(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    assert (fold.session, fold.service, fold.says_alls) == (A, S, True)
    assert core.fold_is_current(fold)
    assert core.fold_ended(fold)
    assert not core.fold_is_current(fold)
    assert not core.fold_ended(fold)


def test_the_fold_of_a_displaced_session_is_not_current(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    newer = core.subscribe_service(B, S).fold
    assert newer is not None
    assert not core.fold_is_current(fold)
    assert not core.fold_ended(fold)
    assert core.fold_is_current(newer)


def test_the_fold_of_a_session_that_went_is_not_current(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    core.disconnect(A)
    assert not core.fold_is_current(fold)


def test_fold_and_live_path_share_the_slot(core: Deliveries) -> None:
    core.subscribe_service(A, S)
    assert offer(core, Q, S) == A
    assert offer(core, Q, S) is None


# --------------------------------------------------------------------------- slow sessions


def test_what_comes_for_a_paused_session_is_due(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    core.subscribe(A, R, None)
    core.pause(A)
    assert core.wants(R, None)
    assert offer(core, R, None) is None
    assert not core.wants(R, None), "it is due already"
    assert offer(core, Q, None) is None
    assert core.held(A, R) is None
    assert core.resume(A) == Resumed((R, Q), None)
    assert core.resume(A) == Resumed((), None)
    assert offer(core, R, None) == A


def test_what_is_due_is_given_out_in_pages(
    core: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "due_page_count", 2)
    queues = [b"%024d" % number for number in range(5)]
    core.pause(A)
    for queue in queues:
        core.subscribe(A, queue, None)
        offer(core, queue, None)
    pages = [core.resume(A).due for _ in range(4)]
    assert pages == [tuple(queues[:2]), tuple(queues[2:4]), tuple(queues[4:]), ()]


def test_what_is_given_out_is_not_due_any_longer(
    core: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "due_page_count", 1)
    core.pause(A)
    core.subscribe_service(A, S)
    offer(core, Q, S)
    offer(core, R, S)
    assert core.resume(A).due == (Q,)
    # A message comes for the other one before its turn.
    assert offer(core, R, S) == A
    assert core.resume(A).due == ()


def test_what_was_lost_is_not_due_any_longer(core: Deliveries) -> None:
    core.pause(A)
    core.subscribe(A, Q, None)
    offer(core, Q, None)
    core.subscribe(B, Q, None)
    assert core.resume(A).due == ()


def test_a_fold_is_not_over_while_something_is_due(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    core.pause(A)
    offer(core, Q, S)
    assert not core.fold_ended(fold)
    assert core.fold_is_current(fold)
    core.resume(A)
    assert core.fold_ended(fold)


def test_what_is_due_stays_so_if_the_session_subscribes_again(core: Deliveries) -> None:
    """Else the fold would be over before the message is offered again."""
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    core.pause(A)
    offer(core, Q, S)
    core.subscribe(A, Q, S, former=S)
    assert not core.fold_ended(fold)
    assert core.resume(A).due == (Q,)


def lapse(core: Deliveries, session: int) -> None:
    core.pause(session)
    for number in range(limits.service_due_count_max + 1):
        core.offer(b"%024d" % number, S, 1, message_id(1))


def test_a_service_for_which_too_much_is_due_is_gone_through_again(core: Deliveries) -> None:
    core.subscribe(A, Q, S)
    lapse(core, A)
    assert not core.wants(Q, S), "the fold will come by"
    offer(core, Q, S)
    view = core.view(A)
    assert view is not None
    assert view.due_count == 0
    resumed = core.resume(A)
    assert resumed.due == ()
    assert resumed.fold is not None
    assert not resumed.fold.says_alls
    assert core.fold_is_current(resumed.fold)
    assert core.resume(A).fold is None
    assert core.wants(Q, S)


def test_the_same_queue_is_due_once(core: Deliveries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "service_due_count_max", 1)
    core.subscribe_service(A, S)
    core.pause(A)
    offer(core, Q, S)
    offer(core, Q, S)
    assert core.resume(A) == Resumed((Q,), None)


def test_a_fold_that_lapsed_begins_again_and_still_ends_with_alls(core: Deliveries) -> None:
    fold = core.subscribe_service(A, S).fold
    assert fold is not None
    lapse(core, A)
    assert not core.fold_ended(fold)
    again = core.resume(A).fold
    assert again is not None
    assert again.says_alls
    assert not core.fold_is_current(fold)
    assert core.fold_ended(again)


def test_a_fold_that_only_catches_up_says_no_alls_if_it_lapses(core: Deliveries) -> None:
    core.subscribe(A, Q, S)
    for _ in range(2):
        lapse(core, A)
        fold = core.resume(A).fold
        assert fold is not None
        assert not fold.says_alls


def test_what_is_due_to_a_plain_session_is_no_more_than_it_subscribed_to(
    core: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "service_due_count_max", 0)
    core.subscribe(A, Q, None)
    core.pause(A)
    offer(core, Q, None)
    assert core.resume(A) == Resumed((Q,), None)


def test_a_paused_session_stays_paused_when_it_takes_a_service_over(core: Deliveries) -> None:
    core.pause(A)
    core.subscribe_service(A, S)
    assert offer(core, Q, S) is None
    assert core.is_paused(A)
    assert core.resume(A).due == (Q,)


# --------------------------------------------------------------------------- for people


def test_a_view_counts_what_a_session_has(core: Deliveries) -> None:
    core.subscribe(A, Q, None)
    core.subscribe(A, R, None)
    offer(core, Q, None)
    core.pause(A)
    offer(core, R, None)
    assert core.view(A) == SessionView(
        queue_count=2,
        service=None,
        outstanding_count=1,
        due_count=1,
        is_paused=True,
        is_folding=False,
    )
    fold = core.subscribe_service(B, S).fold
    assert fold is not None
    view = core.view(B)
    assert view is not None
    assert (view.service, view.is_folding) == (S, True)
    core.fold_ended(fold)
    view = core.view(B)
    assert view is not None
    assert not view.is_folding


def test_a_session_has_subscriptions_or_not(core: Deliveries) -> None:
    assert not core.has_subscriptions(A)
    core.subscribe(A, Q, None)
    core.subscribe_service(B, S)
    assert core.has_subscriptions(A)
    assert core.has_subscriptions(B)
    core.subscribe(C, Q, None)
    assert not core.has_subscriptions(A)
    assert core.is_subscribed(C, Q, None)
    assert not core.is_subscribed(A, Q, None)


def test_a_number_is_given_once(core: Deliveries) -> None:
    with pytest.raises(AssertionError, match="given once"):
        core.connect(A)
