"""Replicas converge with a naive router, however connections, losses and repetitions fall.

The router here is the page docs/formats/sync.md in its plainest form: a list of what is stored, and
for each connection a place in it. Messages travel in order within a connection; it may drop at any
moment with everything on the way, the router may send again what is not acknowledged, cut its
stream, give up a place, end a subscription, and (against its rules) lose a message.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syncline.core.folds import JsonFold
from syncline.core.replica import Phase, Reaction, Replica
from syncline.core.send_buffer import SendBuffer
from syncline.values.json_value import Json
from syncline.values.kinds import Kind
from syncline.values.replica import (
    Acknowledge,
    Ended,
    Evicted,
    FromRouter,
    GaveUp,
    MutationMessage,
    Receipt,
    Refusal,
    Rejected,
    SendMutation,
    Stalled,
    StateMessage,
    Stored,
    Subscribe,
    Subscribed,
    ToRouter,
    Unsubscribe,
    Unsubscribed,
)

CLIENTS = ("ann", "bob", "eve")


@dataclass(frozen=True)
class Written:
    author: str
    clock: int
    patch: Json


@dataclass
class Line:
    """One connection, seen from the router."""

    author: str
    up: deque[ToRouter] = field(default_factory=deque[ToRouter])
    down: deque[FromRouter] = field(default_factory=deque[FromRouter])
    epoch: int = 0
    is_subscribed: bool = False
    sent: int = 0
    acked: int = 0


class NaiveRouter:
    def __init__(self) -> None:
        self.log: list[Written] = []
        # Nothing up to here can be sent one by one.
        self.cut = 0
        self.lines: list[Line] = []

    def state(self, seq: int) -> Json:
        fold = JsonFold()
        fold.reset({})
        for written in self.log[:seq]:
            fold.apply(written.patch)
        return fold.visible(())

    def newest(self, author: str) -> tuple[int, int]:
        mine = [(w.clock, n) for n, w in enumerate(self.log, start=1) if w.author == author]
        return max(mine, default=(0, 0))

    def take(self, line: Line) -> None:
        message = line.up.popleft()
        match message:
            case Subscribe():
                self.subscribe(line, message)
            case Unsubscribe():
                line.is_subscribed = False
            case SendMutation() if line.is_subscribed and message.epoch == line.epoch:
                self.store(line, message)
            case Acknowledge() if line.is_subscribed and message.epoch == line.epoch:
                assert message.seq <= len(self.log), "an acknowledgement from the future"
                line.acked = max(line.acked, message.seq)
            case _:
                pass  # Of an epoch of the past.

    def subscribe(self, line: Line, message: Subscribe) -> None:
        head, have = len(self.log), message.have
        line.epoch += 1
        line.is_subscribed = True
        resumed = have is not None and self.cut <= have.seq <= head
        line.sent = line.acked = have.seq if have is not None and resumed else head
        clock, _ = self.newest(line.author)
        line.down.append(Subscribed(line.epoch, Kind.JSON, "i", head, resumed, True, clock))
        if not resumed:
            line.down.append(StateMessage(line.epoch, head, self.state(head)))
        self.feed(line)

    def store(self, line: Line, message: SendMutation) -> None:
        patch = message.mutation
        clock, seq = self.newest(line.author)
        if isinstance(patch, dict) and "refused" in patch:
            line.down.append(Refusal("invalid_mutation", "no", clock=message.clock))
        elif message.clock > clock:
            self.log.append(Written(line.author, message.clock, patch))
            for each in self.lines:
                self.feed(each)
        elif seq <= line.sent:
            line.down.append(Receipt(line.epoch, clock, seq))

    def feed(self, line: Line) -> None:
        if not line.is_subscribed:
            return
        for seq in range(line.sent + 1, len(self.log) + 1):
            written = self.log[seq - 1]
            if written.author == line.author:
                line.down.append(Receipt(line.epoch, written.clock, seq))
            else:
                line.down.append(
                    MutationMessage(line.epoch, seq, written.author, written.clock, written.patch)
                )
        line.sent = len(self.log)

    def send_again(self, line: Line) -> None:
        line.sent = line.acked
        self.feed(line)

    def end(self, line: Line, message: FromRouter) -> None:
        line.is_subscribed = False
        line.down.append(message)


class Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fold = JsonFold()
        self.replica = Replica(name, self.fold, SendBuffer(window=3, retry_count_max=10_000))
        self.line: Line | None = None
        self.made: dict[int, Json] = {}
        self.sent: dict[int, Json] = {}
        self.stored: set[int] = set()
        # Refused, and the connection dropped before that was told. If a later one is stored, its
        # clock covers this one too: the page has no way to tell the client.
        self.refused_in_silence: list[Json] = []
        self.rejected: set[int] = set()

    def carry_out(self, reaction: Reaction) -> None:
        for event in reaction.tells:
            assert not isinstance(event, Ended | Stalled | GaveUp), event
            if isinstance(event, Stored):
                assert event.number not in self.stored, "told twice"
                self.stored.add(event.number)
            elif isinstance(event, Rejected):
                self.rejected.add(event.number)
        if reaction.sends:
            assert self.line is not None, "sent without a connection"
            self.line.up.extend(reaction.sends)
        for message in reaction.sends:
            if isinstance(message, SendMutation):
                again = self.sent.setdefault(message.clock, message.mutation)
                assert again == message.mutation, "a clock names one mutation for good"


class Replicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.router = NaiveRouter()
        self.clients = {name: Client(name) for name in CLIENTS}
        self.now_ms = 0
        self.number = 0

    def connect(self, client: Client) -> None:
        client.line = Line(client.name)
        self.router.lines.append(client.line)
        client.carry_out(client.replica.connected(self.now_ms))

    def drop(self, client: Client) -> None:
        assert client.line is not None
        lost = {message.clock for message in client.line.down if isinstance(message, Refusal)}
        client.refused_in_silence += [client.sent[clock] for clock in lost if clock]
        self.router.lines.remove(client.line)
        client.line = None
        client.carry_out(client.replica.dropped())

    def deliver(self, client: Client) -> None:
        assert client.line is not None
        message = client.line.down.popleft()
        client.carry_out(client.replica.receive(message, self.now_ms))

    def lines_with(self, *, up: bool = False, down: bool = False) -> list[Client]:
        return [
            client
            for client in self.clients.values()
            if client.line is not None
            and (client.line.up if up else client.line.down if down else True)
        ]

    # ------------------------------------------------------------------------------------- clients

    @rule(name=st.sampled_from(CLIENTS), field=st.sampled_from("abc"), value=st.integers(0, 2))
    def change(self, name: str, field: str, value: int) -> None:
        self.number += 1
        # `n` makes every patch another one, and its fate visible.
        self.make(name, {field: value or None, "n": {str(self.number): name}})

    @rule(name=st.sampled_from(CLIENTS))
    def change_that_is_refused(self, name: str) -> None:
        self.number += 1
        self.make(name, {"refused": self.number})

    def make(self, name: str, patch: Json) -> None:
        client = self.clients[name]
        number, reaction = client.replica.change(patch, self.now_ms)
        client.made[number] = patch
        client.carry_out(reaction)

    @rule(name=st.sampled_from(CLIENTS))
    def connect_or_drop(self, name: str) -> None:
        client = self.clients[name]
        if client.line is None:
            self.connect(client)
        else:
            self.drop(client)

    @rule(name=st.sampled_from(CLIENTS))
    def give_up_and_be_offline(self, name: str) -> None:
        client = self.clients[name]
        if client.line is not None:
            self.drop(client)
        client.carry_out(client.replica.went_offline())

    # ------------------------------------------------------------------------------------- network

    @precondition(lambda self: self.lines_with(up=True))
    @rule(data=st.data(), count=st.integers(1, 4))
    def messages_reach_the_router(self, data: st.DataObject, count: int) -> None:
        client = data.draw(st.sampled_from(self.lines_with(up=True)), label="client")
        assert client.line is not None
        for _ in range(min(count, len(client.line.up))):
            self.router.take(client.line)

    @precondition(lambda self: self.lines_with(down=True))
    @rule(data=st.data(), count=st.integers(1, 4))
    def messages_reach_a_client(self, data: st.DataObject, count: int) -> None:
        client = data.draw(st.sampled_from(self.lines_with(down=True)), label="client")
        assert client.line is not None
        for _ in range(min(count, len(client.line.down))):
            self.deliver(client)

    @precondition(lambda self: self.lines_with(down=True))
    @rule(data=st.data())
    def a_mutation_is_lost(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.lines_with(down=True)), label="client")
        assert client.line is not None
        losable = [m for m in client.line.down if isinstance(m, MutationMessage | Receipt)]
        if losable:
            client.line.down.remove(data.draw(st.sampled_from(losable), label="message"))

    @rule(wait_ms=st.sampled_from([100, 250, 6_000]))
    def time_passes(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        for client in self.clients.values():
            # A subscription unanswered for so long would end the connection; that is not the
            # subject here, so what is under way arrives first.
            if client.replica.phase in (Phase.ASKED, Phase.AWAITING):
                continue
            client.carry_out(client.replica.tick(self.now_ms))

    # -------------------------------------------------------------------------------------- router

    @precondition(lambda self: self.lines_with())
    @rule(data=st.data())
    def router_sends_again(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.lines_with()), label="client")
        assert client.line is not None
        if client.line.is_subscribed and client.line.acked >= self.router.cut:
            self.router.send_again(client.line)

    @precondition(lambda self: any(client.line.is_subscribed for client in self.lines_with()))
    @rule(data=st.data(), evicts=st.booleans())
    def router_ends_a_subscription(self, data: st.DataObject, evicts: bool) -> None:
        lines = [client.line for client in self.lines_with() if client.line is not None]
        line = data.draw(st.sampled_from([line for line in lines if line.is_subscribed]))
        if evicts:
            self.router.end(line, Evicted(line.epoch, line.acked))
        else:
            self.router.end(line, Unsubscribed(line.epoch, "busy", "later", True))

    @rule()
    def router_cuts_its_stream(self) -> None:
        """Not above the place of anybody who is connected."""
        places = [line.acked for line in self.router.lines if line.is_subscribed]
        self.router.cut = max(self.router.cut, min([len(self.router.log), *places]))

    # ------------------------------------------------------------------------------- what must hold

    @invariant()
    def base_is_a_prefix_of_what_is_stored(self) -> None:
        for client in self.clients.values():
            applied = client.replica.applied
            if applied is not None:
                assert client.fold.visible(()) == self.router.state(applied)

    @invariant()
    def an_acknowledgement_is_never_ahead_of_the_truth(self) -> None:
        for client in self.clients.values():
            if client.line is not None and client.line.is_subscribed:
                applied = client.replica.applied
                known = [m.seq for m in client.line.down if isinstance(m, StateMessage)]
                assert client.line.acked <= max([applied or 0, *known])

    @invariant()
    def a_mutation_is_stored_once(self) -> None:
        named = [(written.author, written.clock) for written in self.router.log]
        assert len(set(named)) == len(named)
        patches = [str(written.patch) for written in self.router.log]
        assert len(set(patches)) == len(patches)

    @invariant()
    def told_to_be_stored_is_stored(self) -> None:
        for client in self.clients.values():
            stored = [written.patch for written in self.router.log if written.author == client.name]
            stored += client.refused_in_silence
            assert all(client.made[number] in stored for number in client.stored)

    def teardown(self) -> None:
        self.settle()
        state = self.router.state(len(self.router.log))
        for client in self.clients.values():
            replica = client.replica
            assert replica.phase is Phase.LIVE
            assert replica.applied == len(self.router.log)
            assert replica.state == state
            assert replica.unsaved_count == 0
            assert client.stored | client.rejected == set(client.made)
            assert client.stored & client.rejected == set()
            for number in client.rejected:
                patch = client.made[number]
                assert isinstance(patch, dict)
                assert "refused" in patch
            mine = [written.patch for written in self.router.log if written.author == client.name]
            # In the order in which they were made.
            stored = [client.made[number] for number in sorted(client.stored)]
            assert mine == [patch for patch in stored if patch not in client.refused_in_silence]

    def settle(self) -> None:
        """Everybody is connected, and everything on the way arrives."""
        for client in self.clients.values():
            if client.line is None:
                self.connect(client)
        for _ in range(200):
            while self.lines_with(up=True) or self.lines_with(down=True):
                for client in self.lines_with(up=True):
                    assert client.line is not None
                    self.router.take(client.line)
                for client in self.lines_with(down=True):
                    self.deliver(client)
            if all(self.is_settled(client) for client in self.clients.values()):
                return
            self.now_ms += 5_000
            for line in self.router.lines:
                if line.is_subscribed and line.acked >= self.router.cut:
                    self.router.send_again(line)
            for client in self.clients.values():
                client.carry_out(client.replica.tick(self.now_ms))
        raise AssertionError("it does not come to rest")

    def is_settled(self, client: Client) -> bool:
        replica = client.replica
        return (
            replica.phase is Phase.LIVE
            and replica.unsaved_count == 0
            and replica.applied == len(self.router.log)
        )


Replicas.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestReplicas = Replicas.TestCase
