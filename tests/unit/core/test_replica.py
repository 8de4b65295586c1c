"""A replica of one document, where tests/scenarios/replica.json does not reach: time without
answers, bodies that are none, and routers that break their rules."""

import pytest

from syncline.core.folds import UPDATE_COUNT_MAX, JsonFold, UpdateFold
from syncline.core.pacing import ANSWER_MS
from syncline.core.replica import Phase, Replica
from syncline.core.send_buffer import SendBuffer
from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values.json_value import Json
from syncline.values.kinds import Kind
from syncline.values.replica import (
    Acknowledge,
    Body,
    Changed,
    Complaint,
    Ended,
    Evicted,
    GaveUp,
    MutationMessage,
    Place,
    PresenceMessage,
    Receipt,
    Refusal,
    SendMutation,
    Stalled,
    StateMessage,
    Stored,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)


def subscribed(epoch: int = 1, seq: int = 0, clock: int = 0, resumed: bool = False) -> Subscribed:
    return Subscribed(epoch, Kind.JSON, "i1", seq, resumed, True, clock)


def mutation(seq: int, body: Body, epoch: int = 1, client: str = "you") -> MutationMessage:
    return MutationMessage(epoch, seq, client, seq, body)


def live(replica: Replica | None = None, state: Body = None, seq: int = 0) -> Replica:
    replica = replica or Replica("me", JsonFold())
    replica.connected(0)
    replica.receive(subscribed(seq=seq), 0)
    replica.receive(StateMessage(1, seq, {} if state is None else state), 0)
    assert replica.phase is Phase.LIVE
    return replica


def test_connecting_asks_for_the_document() -> None:
    replica = Replica("me", JsonFold())
    assert replica.connected(0).sends == (Subscribe(None),)
    assert replica.phase is Phase.ASKED


def test_the_place_is_told_when_the_connection_is_back() -> None:
    replica = live(seq=3)
    replica.dropped()
    assert replica.connected(10).sends == (Subscribe(Place("i1", 3)),)


def test_whoever_was_offline_starts_with_the_full_state() -> None:
    replica = live(seq=3)
    replica.went_offline()
    assert replica.connected(10).sends == (Subscribe(None),)


def test_a_router_that_does_not_answer_a_subscription_is_given_up() -> None:
    replica = Replica("me", JsonFold())
    replica.connected(0)
    assert replica.next_tick_ms == ANSWER_MS
    assert replica.tick(ANSWER_MS - 1).tells == ()
    [event] = replica.tick(ANSWER_MS).tells
    assert isinstance(event, Stalled)
    assert replica.next_tick_ms is None


def test_a_state_that_does_not_come_is_not_waited_for_for_ever() -> None:
    replica = Replica("me", JsonFold())
    replica.connected(0)
    replica.receive(subscribed(), 0)
    [event] = replica.tick(ANSWER_MS).tells
    assert isinstance(event, Stalled)


def test_a_change_is_sent_again_until_it_is_acknowledged() -> None:
    replica = live(Replica("me", JsonFold(), SendBuffer(retry_ms=100, retry_count_max=2)))
    _, reaction = replica.change({"a": 1}, 0)
    assert reaction.sends == (SendMutation(1, 1, {"a": 1}),)
    assert replica.tick(100).sends == (SendMutation(1, 1, {"a": 1}),)
    replica.receive(Receipt(1, 1, 1), 150)
    assert SendMutation(1, 1, {"a": 1}) not in replica.tick(10_000).sends


def test_a_change_that_is_never_acknowledged_gives_the_connection_up() -> None:
    replica = live(Replica("me", JsonFold(), SendBuffer(retry_ms=100, retry_count_max=2)))
    replica.change({"a": 1}, 0)
    replica.tick(100)
    replica.tick(300)
    [event] = replica.tick(700).tells
    assert isinstance(event, Stalled)
    # The work is kept and sent on the next connection.
    replica.connected(800)
    assert replica.receive(subscribed(), 800).sends == (SendMutation(1, 1, {"a": 1}),)


def test_subscribing_in_vain_ends_after_a_number_of_times() -> None:
    replica = live(Replica("me", JsonFold(), attempt_count_max=3))
    asked_at: list[int] = []
    now = 0
    for epoch in range(1, 10):
        replica.receive(Unsubscribed(epoch, "busy", "later", True), now)
        if replica.phase is Phase.GIVEN_UP:
            break
        now = replica.next_tick_ms or 0
        assert replica.tick(now).sends == (Subscribe(Place("i1", 0)),)
        asked_at.append(now)
        replica.receive(subscribed(epoch + 1, resumed=True), now)
    assert replica.phase is Phase.GIVEN_UP
    assert asked_at == [250, 750, 1_750]


def test_giving_up_is_told_and_work_is_kept() -> None:
    replica = live(Replica("me", JsonFold(), attempt_count_max=0))
    replica.change({"a": 1}, 0)
    [event] = replica.receive(Unsubscribed(1, "busy", "later", True), 0).tells
    assert event == GaveUp("later")
    assert replica.state == {"a": 1}
    assert replica.unsaved_count == 1
    # Told to try again, it wants everything anew.
    assert replica.connected(5).sends == (Subscribe(None),)


def test_gaps_without_end_do_not_make_a_storm() -> None:
    replica = live()
    asked = 0
    for epoch in range(1, 50):
        reaction = replica.receive(mutation(9, {}, epoch), 0)
        asked += sum(isinstance(send, Subscribe) for send in reaction.sends)
        replica.receive(subscribed(epoch + 1, seq=5), 0)
        replica.receive(StateMessage(epoch + 1, 5, {}), 0)
    assert asked == 1
    assert replica.phase is Phase.GIVEN_UP


def test_a_body_that_does_not_fit_ends_the_document_alone() -> None:
    replica = live()
    reaction = replica.receive(mutation(1, [1, 2]), 0)
    assert reaction.sends == (Unsubscribe(1),)
    [event] = reaction.tells
    assert isinstance(event, Ended)
    assert event.code == "malformed"
    assert replica.applied == 0
    assert replica.receive(mutation(1, {"a": 1}), 0).tells == ()


@pytest.mark.parametrize("change", [[1], "text", None, 1])
def test_a_change_that_is_no_merge_patch_is_refused_at_once(change: Json) -> None:
    replica = live()
    with pytest.raises(MalformedMessageError, match="merge patch"):
        replica.change(change, 0)
    assert replica.unsaved_count == 0


def test_a_change_too_many_is_refused_at_once() -> None:
    replica = Replica("me", JsonFold(), SendBuffer(count_max=1))
    replica.change({"a": 1}, 0)
    with pytest.raises(LimitExceededError):
        replica.change({"a": 2}, 0)
    assert replica.state == {"a": 1}


def test_an_own_mutation_given_back_by_a_router_is_applied_once() -> None:
    replica = live()
    replica.change({"a": 1}, 0)
    reaction = replica.receive(MutationMessage(1, 1, "me", 1, {"a": 1}), 0)
    assert Stored(1, 1, 1) in reaction.tells
    assert (replica.state, replica.applied, replica.unsaved_count) == ({"a": 1}, 1, 0)


def test_a_second_state_is_ignored() -> None:
    replica = live()
    replica.receive(mutation(1, {"a": 1}), 0)
    assert replica.receive(StateMessage(1, 0, {"a": "old"}), 0).tells == ()
    assert replica.state == {"a": 1}


def test_a_mutation_refused_for_its_epoch_while_that_is_current_subscribes_again() -> None:
    replica = live()
    replica.change({"a": 1}, 0)
    reaction = replica.receive(Refusal("unexpected", "no such subscription", clock=1), 0)
    assert reaction.sends == (Subscribe(Place("i1", 0)),)
    assert replica.unsaved_count == 1


def test_a_subscription_refused_for_now_is_tried_again() -> None:
    replica = Replica("me", JsonFold())
    replica.connected(0)
    assert replica.receive(Refusal("busy", "later", retriable=True), 0).sends == ()
    assert replica.phase is Phase.PAUSED
    assert replica.next_tick_ms == 250
    assert replica.tick(250).sends == (Subscribe(None),)


def test_a_complaint_about_something_else_is_passed_on() -> None:
    replica = live()
    reaction = replica.receive(Refusal("unexpected", "an ack from the future"), 0)
    assert reaction.tells == (Complaint("unexpected", "an ack from the future"),)
    assert replica.phase is Phase.LIVE


def test_only_a_prefix_without_gaps_is_acknowledged() -> None:
    replica = live()
    replica.receive(mutation(1, {}), 0)
    replica.receive(mutation(3, {}), 0)
    assert not any(isinstance(send, Acknowledge) for send in replica.tick(ANSWER_MS - 1).sends)
    assert replica.applied == 1


def test_closing_gives_the_subscription_back_and_hears_no_more() -> None:
    replica = live()
    assert replica.close().sends == (Unsubscribe(1),)
    assert replica.receive(mutation(1, {"a": 1}), 0).tells == ()
    assert replica.connected(0).sends == ()
    assert replica.state == {}


def test_closing_without_a_connection_says_nothing() -> None:
    assert Replica("me", JsonFold()).close().sends == ()


def test_own_presence_is_not_among_the_others() -> None:
    replica = live()
    replica.receive(PresenceMessage(1, {"me": 1, "you": 2}), 0)
    assert replica.present == {"you": 2}


def test_an_eviction_is_remembered_until_live_again() -> None:
    replica = live(seq=3)
    assert replica.receive(Evicted(1, 3), 0).sends == (Subscribe(None),)
    assert replica.is_evicted
    replica.receive(subscribed(2, seq=9), 0)
    replica.receive(StateMessage(2, 9, {"a": 9}), 0)
    assert not replica.is_evicted


def test_updates_are_merged_now_and_then() -> None:
    merged: list[int] = []

    def merge(updates: object) -> bytes:
        assert isinstance(updates, list)
        merged.append(len(updates))
        return b"".join(updates)

    fold = UpdateFold(merge)
    replica = live(Replica("me", fold), state=[b"a"])
    for seq in range(1, UPDATE_COUNT_MAX + 1):
        replica.receive(mutation(seq, b"b"), 0)
    assert merged == [UPDATE_COUNT_MAX + 1]
    assert replica.state == (b"a" + b"b" * UPDATE_COUNT_MAX,)


def test_updates_are_kept_one_by_one_where_nobody_can_merge_them() -> None:
    replica = live(Replica("me", UpdateFold()), state=[b"a"])
    reaction = replica.receive(mutation(1, b"b"), 0)
    assert reaction.tells == (Changed(1, "you", b"b"),)
    replica.change(b"c", 0)
    assert replica.state == (b"a", b"b", b"c")
    with pytest.raises(MalformedMessageError, match="bytes"):
        replica.change({"a": 1}, 0)


def test_a_subscription_that_is_told_twice_begins_once() -> None:
    replica = live()
    replica.change({"a": 1}, 0)
    assert replica.receive(subscribed(1), 0).sends == ()
    assert replica.phase is Phase.LIVE


def test_after_a_state_the_place_counts_again() -> None:
    replica = live()
    replica.receive(mutation(5, {}), 0)  # a gap
    replica.receive(subscribed(2, seq=5), 0)
    replica.receive(StateMessage(2, 5, {"a": 5}), 0)
    replica.dropped()
    assert replica.connected(0).sends == (Subscribe(Place("i1", 5)),)
