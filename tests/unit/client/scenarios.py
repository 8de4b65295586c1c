"""Runs the scenarios of tests/scenarios/replica.json on the machine of the Python client.

The machine is the pure core; messages pass through the codec, so that a scenario tries that as
well. What the words of a scenario mean is said under `about` in the file.
"""

import base64
import json
from pathlib import Path
from typing import Any

from syncline.client import messages
from syncline.client.closing import code_of_close
from syncline.client.messages import Identity
from syncline.core.folds import JsonFold, UpdateFold
from syncline.core.replicas import Link, Replicas, Step, is_stalled
from syncline.values.kinds import Kind
from syncline.values.replica import (
    Changed,
    Complaint,
    Ended,
    LinkTurned,
    Rejected,
    StateReplaced,
    Stored,
)
from syncline.wire import sync, sync_messages

FILE = Path(__file__).parents[2] / "scenarios" / "replica.json"


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


class Runner:
    """One scenario, step by step."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.now_ms = 0
        self.identity = Identity("me", options.get("policy", "clean"))
        self.machine = Replicas(
            "me",
            attempt_count_max=options.get("max_attempts", 5),
            held_count_max=options.get("hold_back_max", 1024),
        )
        self.kinds: dict[str, Kind] = {}
        self.sent: list[object] = []
        self.saved: dict[str, list[int]] = {}
        self.updates: dict[str, list[str]] = {}
        self.errors: list[str] = []
        for document, kind in options.get("documents", {"plan": "json"}).items():
            self.open(document, Kind(kind))

    def run(self, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps):
            try:
                self.step(dict(step))
            except AssertionError as error:
                raise AssertionError(f"step {number}, {step}: {error}") from error
        assert self.sent == [], f"sent, and nobody looked: {self.sent}"

    def step(self, step: dict[str, Any]) -> None:
        document = step.pop("document", "plan")
        if "open" in step:
            self.open(step["open"], Kind(step["kind"]))
            return
        [(word, value)] = step.items()
        method = getattr(self, word)
        method(value, document) if word in self.OF_A_DOCUMENT else method(value)

    # Actions.

    def open(self, document: str, kind: Kind) -> None:
        fold = JsonFold() if kind is Kind.JSON else UpdateFold()
        self.kinds[document] = kind
        self.take(self.machine.open(document, kind, fold, self.now_ms))

    def close(self, document: str) -> None:
        self.take(self.machine.close(document))

    def connect(self, _: bool) -> None:
        assert self.machine.link is Link.DIALING, "no attempt is under way"
        self.take(self.machine.connected())

    def drop(self, frame: Any) -> None:
        assert self.machine.link in (Link.DIALING, Link.GREETING, Link.UP)
        code, message = "", ""
        if isinstance(frame, dict):
            code, message = code_of_close(frame["code"], frame["reason"])
        self.take(self.machine.lost(self.now_ms, code, message))

    def receive(self, message: dict[str, Any]) -> None:
        found = sync.decode_server(json.dumps(message).encode(), "json")
        match found:
            case sync_messages.Welcome():
                self.take(self.machine.welcomed(found.restored, self.now_ms))
            case sync_messages.Failure(document=None):
                self.take(self.machine.complain(found.code, found.message))
            case sync_messages.Pong():
                pass
            case _:
                assert found.document is not None
                kind = self.machine.kind_of(found.document) or Kind.JSON
                inner = messages.from_wire(found, kind, "json")
                self.take(self.machine.receive(found.document, inner, self.now_ms))

    def change(self, mutation: Any, document: str) -> None:
        body = mutation if self.kinds[document] is Kind.JSON else base64.b64decode(mutation)
        self.take(self.machine.change(document, body, self.now_ms)[1])

    def presence(self, state: Any, document: str) -> None:
        self.take(self.machine.show_presence(document, state))

    def go_online(self, _: bool) -> None:
        self.take(self.machine.go_online(self.now_ms))

    def advance_ms(self, duration: int) -> None:
        end = self.now_ms + duration
        while (due := self.machine.next_tick_ms) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.take(self.machine.tick(self.now_ms))
        self.now_ms = end

    # Expectations.

    def expect_sent(self, expected: list[object]) -> None:
        sent, self.sent = self.sent, []
        assert sent == expected, f"sent {sent}"

    def expect_state(self, expected: Any, document: str) -> None:
        assert self.machine.replica(document).state == expected

    def expect_status(self, expected: str, document: str) -> None:
        assert self.machine.document_status(document) == expected

    def expect_applied(self, expected: int, document: str) -> None:
        assert self.machine.replica(document).applied == expected

    def expect_saved(self, expected: list[int], document: str) -> None:
        saved = self.saved.pop(document, [])
        assert saved == expected, f"saved {saved}"

    def expect_unacknowledged(self, expected: list[int], document: str) -> None:
        unsaved = self.machine.replica(document).unsaved_clocks
        # One that was never sent has no clock here yet: it is going to get the next one.
        given = [clock or index for index, clock in enumerate(unsaved, start=1)]
        assert given == expected, f"unsaved {unsaved}"

    def expect_errors(self, expected: list[str]) -> None:
        errors, self.errors = self.errors, []
        assert errors == expected, f"told {errors}"

    def expect_dialing(self, expected: bool) -> None:
        assert (self.machine.link is Link.DIALING) is expected, self.machine.link

    def expect_presence(self, expected: object, document: str) -> None:
        assert self.machine.replica(document).present == expected

    def expect_updates(self, expected: list[str], document: str) -> None:
        updates = self.updates.pop(document, [])
        assert updates == expected, f"handed on {updates}"

    OF_A_DOCUMENT = frozenset(
        {"change", "presence", "expect_state", "expect_status", "expect_applied", "expect_saved"}
        | {"expect_unacknowledged", "expect_presence", "expect_updates"}
    )

    # What a step wants done.

    def take(self, step: Step) -> None:
        for send in step.sends:
            frame = messages.encode(send, self.identity, "json")
            self.sent.append(_with_defaults(json.loads(frame)))
        for tell in step.tells:
            self.hear(tell.document, tell.event)
        if is_stalled(step):
            self.take(self.machine.lost(self.now_ms, "stalled", "no answer"))

    def hear(self, document: str, event: object) -> None:
        match event:
            case Stored():
                self.saved.setdefault(document, []).append(event.clock)
            case Changed(mutation=bytes() as update):
                self.updates.setdefault(document, []).append(base64.b64encode(update).decode())
            case StateReplaced(state=tuple() as updates):
                for update in updates:
                    assert isinstance(update, bytes)
                    self.updates.setdefault(document, []).append(base64.b64encode(update).decode())
            case Ended(code="closed"):
                pass  # by the application itself
            case Ended() | Rejected() | Complaint():
                self.errors.append(event.code)
            case LinkTurned() if event.code:
                self.errors.append(event.code)
            case _:
                pass


def _with_defaults(message: dict[str, Any]) -> dict[str, Any]:
    defaults = {"hello": {"policy": "clean"}, "subscribe": {"kind": "json"}}
    return {**defaults.get(message["type"], {}), **message}
