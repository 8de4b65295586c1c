"""All documents of a client on one connection, where the scenarios do not reach."""

import pytest

from syncline.core import replicas
from syncline.core.folds import JsonFold, UpdateFold
from syncline.core.pacing import ANSWER_MS
from syncline.core.replicas import STEADY_MS, Link, Replicas, Step, is_stalled
from syncline.errors import LimitExceededError
from syncline.values.kinds import Kind
from syncline.values.replica import (
    DocumentStatus,
    Ended,
    Hello,
    LinkStatus,
    LinkTurned,
    Refusal,
    SendMutation,
    StateMessage,
    Subscribe,
    Subscribed,
    ToApplication,
    ToRouter,
    Unsubscribe,
    Unsubscribed,
)


def subscribed(epoch: int = 1, kind: Kind = Kind.JSON, clock: int = 0) -> Subscribed:
    return Subscribed(epoch, kind, "i1", 0, False, True, clock)


def welcomed(*documents: str) -> Replicas:
    machine = Replicas("me")
    for document in documents:
        machine.open(document, Kind.JSON, JsonFold(), 0)
    machine.connected()
    machine.welcomed([], 0)
    return machine


def live(machine: Replicas, document: str) -> None:
    machine.receive(document, subscribed(), 0)
    machine.receive(document, StateMessage(1, 0, {}), 0)
    assert machine.document_status(document) is DocumentStatus.LIVE


def sent(step: Step) -> list[tuple[str, ToRouter | Hello]]:
    return [(send.document, send.message) for send in step.sends]


def told(step: Step) -> list[ToApplication | LinkTurned]:
    return [tell.event for tell in step.tells]


def test_of_several_subscriptions_only_the_answer_to_the_last_counts() -> None:
    machine = welcomed("plan")
    machine.close("plan")
    machine.open("plan", Kind.JSON, JsonFold(), 0)
    machine.change("plan", {"a": 1}, 0)
    # The first answer is for the one that is closed: sending under it would be in vain.
    assert machine.receive("plan", subscribed(1), 0).sends == []
    assert machine.receive("plan", StateMessage(1, 0, {"old": 1}), 0).tells == []
    machine.receive("plan", Unsubscribed(1), 0)
    step = machine.receive("plan", subscribed(2), 0)
    assert sent(step) == [("plan", SendMutation(2, 1, {"a": 1}))]


def test_a_refusal_answers_a_subscription_as_well() -> None:
    machine = welcomed("plan")
    machine.close("plan")
    machine.open("plan", Kind.JSON, JsonFold(), 0)
    assert told(machine.receive("plan", Refusal("forbidden", "no"), 0)) == []
    assert told(machine.receive("plan", Refusal("forbidden", "no"), 0)) == [
        Ended("forbidden", "no")
    ]


def test_a_document_of_another_kind_is_refused_here() -> None:
    machine = welcomed("plan")
    step = machine.receive("plan", subscribed(kind=Kind.BYTES), 0)
    assert sent(step) == [("plan", Unsubscribe(1))]
    [event] = told(step)
    assert event == Ended("kind", "the document is of kind bytes, not json")
    assert machine.document_status("plan") is DocumentStatus.CLOSED


def test_a_document_is_open_once() -> None:
    machine = welcomed("plan")
    with pytest.raises(ValueError, match="open already"):
        machine.open("plan", Kind.JSON, JsonFold(), 0)


def test_there_are_only_so_many_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "DOCUMENT_COUNT_MAX", 2)
    machine = welcomed("one", "two")
    with pytest.raises(LimitExceededError, match="documents"):
        machine.open("three", Kind.JSON, JsonFold(), 0)
    # A closed one makes room, unless it has work that is not stored.
    machine.change("one", {"a": 1}, 0)
    machine.close("one")
    with pytest.raises(LimitExceededError, match="documents"):
        machine.open("three", Kind.JSON, JsonFold(), 0)
    machine.close("two")
    machine.open("three", Kind.JSON, JsonFold(), 0)


def test_unsaved_changes_of_another_kind_stay_out() -> None:
    machine = welcomed("plan")
    machine.change("plan", {"a": 1}, 0)
    machine.close("plan")
    machine.open("plan", Kind.BYTES, UpdateFold(), 0)
    assert machine.replica("plan").state == ()


def test_a_router_that_does_not_answer_loses_the_connection() -> None:
    machine = welcomed("plan")
    step = machine.tick(ANSWER_MS)
    assert is_stalled(step)
    step = machine.lost(ANSWER_MS, "stalled", "no answer")
    assert machine.link is Link.WAITING
    assert told(step) == [LinkTurned(LinkStatus.CONNECTING, "stalled", "no answer")]


def test_going_offline_keeps_changes_and_waits_to_be_asked() -> None:
    machine = welcomed("plan")
    live(machine, "plan")
    assert told(machine.go_offline()) == [LinkTurned(LinkStatus.OFFLINE)]
    machine.change("plan", {"a": 1}, 0)
    assert machine.document_status("plan") is DocumentStatus.OFFLINE
    assert machine.next_tick_ms is None
    machine.go_online(0)
    assert machine.link is Link.DIALING
    machine.connected()
    assert sent(machine.welcomed([], 0)) == [("plan", Subscribe(None))]
    assert sent(machine.receive("plan", subscribed(), 0)) == [
        ("plan", SendMutation(1, 1, {"a": 1}))
    ]


def test_a_document_that_gave_up_alone_is_tried_again_when_asked() -> None:
    machine = welcomed("plan", "other")
    live(machine, "plan")
    live(machine, "other")
    now_ms = 0
    for epoch in range(1, 20):
        machine.receive("plan", Unsubscribed(epoch, "busy", "later", True), now_ms)
        if machine.document_status("plan") is DocumentStatus.OFFLINE:
            break
        now_ms = machine.next_tick_ms or now_ms
        machine.tick(now_ms)
        machine.receive("plan", subscribed(epoch + 1), now_ms)
    assert machine.document_status("plan") is DocumentStatus.OFFLINE
    assert machine.document_status("other") is DocumentStatus.LIVE
    assert sent(machine.go_online(now_ms)) == [("plan", Subscribe(None))]


def test_a_plain_drop_after_a_blamed_one_counts_anew() -> None:
    machine = Replicas("me", attempt_count_max=2)
    machine.connected()
    machine.welcomed([], 0)
    machine.lost(0, "malformed", "no")
    machine.tick(250)
    machine.connected()
    machine.welcomed([], 250)
    hours_later_ms = 10_000_000
    machine.lost(hours_later_ms)
    assert machine.next_tick_ms == hours_later_ms + 250
    machine.tick(hours_later_ms + 250)
    machine.lost(hours_later_ms + 250)
    assert machine.link is Link.WAITING


def test_what_is_said_for_the_first_time_is_one_attempt_in_vain() -> None:
    machine = Replicas("me", attempt_count_max=2)
    machine.lost(0)
    machine.tick(250)
    machine.connected()
    machine.welcomed([], 250)
    machine.lost(250 + STEADY_MS, "malformed", "no")
    assert machine.link is Link.WAITING


def test_a_document_that_was_live_and_is_closed_was_of_use() -> None:
    machine = Replicas("me", attempt_count_max=1)
    machine.open("plan", Kind.JSON, JsonFold(), 0)
    machine.connected()
    machine.welcomed([], 0)
    live(machine, "plan")
    machine.close("plan")
    machine.lost(1)
    assert machine.status is LinkStatus.CONNECTING
    # The next connection is judged by itself.
    machine.tick(251)
    machine.connected()
    machine.welcomed([], 251)
    machine.lost(252)
    assert machine.link is Link.OFFLINE
