"""What a command comes to: its answer, what that waits for, and what happens behind it.

Answers to one block that wait for the same thing are let go of together, so that they share blocks
on their way back, and what is to happen behind them happens behind all of them: a subscriber of a
hundred queues gets a hundred answers, then messages.
"""

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import structs

from syncline.errors import StorageError, StoreFullError, StoreHeldError
from syncline.server.committer import Committer
from syncline.server.logs import Log
from syncline.server.smp.book import Unsettled
from syncline.server.smp.connections import Connection, Connections
from syncline.server.smp.faces import Answer
from syncline.wire.smp import failures
from syncline.wire.smp.messages import Err, RouterMessage

# What an answer waits for: to be durable in the log, in the records, or in both; or for an answer
# before it that tells of subscriptions as well. Plain numbers: one is looked at for each command
# (bench: queues).
NOTHING = 0
LOG = 1
RECORDS = 2
ORDER = 4

Then = Callable[[], object]


def behind_others(connection: Connection) -> int:
    """What an answer about a subscription waits for that is true already."""
    if connection.in_lane_count:
        return RECORDS | ORDER
    return ORDER if connection.slow_answer_count else NOTHING


class Late(msgspec.Struct, frozen=True):
    """A message that can only be made when it is let go of: it tells what is durable by then."""

    make: Callable[[], RouterMessage]


class Reply(msgspec.Struct, frozen=True):
    """A struct: one is made for each command (bench: queues).

    `then_always`: also if the records refuse what the answer waits for, since that is not what it
    is about.
    """

    message: RouterMessage | Late
    waits_for: int = NOTHING
    then: Then | None = None
    then_always: bool = False


class _Pending(msgspec.Struct, frozen=True):
    """A struct: one is made for each command (bench: queues)."""

    corr_id: bytes
    entity_id: bytes
    message: RouterMessage | Late
    # What it tells of, where that was not durable.
    unsettled: Unsettled | None

    def answer(self) -> Answer:
        message = self.message
        if isinstance(message, Late):
            try:
                message = message.make()
            except StorageError as error:
                message = refusal(error)
        elif self.unsettled is not None and self.unsettled.refusal is not None:
            message = refusal(self.unsettled.refusal)
        return Answer(self.corr_id, self.entity_id, message)


class _Group:
    __slots__ = ("byte_count", "is_ordered", "missing_count", "replies", "thens")

    def __init__(self, *, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        self.replies: list[_Pending] = []
        self.thens: list[tuple[Then, bool]] = []
        self.byte_count = 0
        # How many committers have not told yet.
        self.missing_count = 0


class Turn:
    """The replies to one block, by what they wait for."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[int, _Group] = {}

    def add(
        self,
        corr_id: bytes,
        entity_id: bytes,
        reply: Reply,
        byte_count: int,
        unsettled: Unsettled | None = None,
    ) -> None:
        group = self.groups.get(reply.waits_for)
        if group is None:
            is_ordered = bool(reply.waits_for & ORDER)
            group = self.groups[reply.waits_for] = _Group(is_ordered=is_ordered)
        group.replies.append(_Pending(corr_id, entity_id, reply.message, unsettled))
        if reply.then is not None:
            group.thens.append((reply.then, reply.then_always))
        group.byte_count += byte_count


class Releases:
    """Lets replies go once what they wait for is durable, and never before."""

    def __init__(
        self,
        committer: Committer,
        records_committer: Committer,
        connections: Connections,
        log: Log,
    ) -> None:
        self._committer = committer
        self._records_committer = records_committer
        self._connections = connections
        self._log = log

    def release(self, connection: Connection, turn: Turn) -> None:
        """Let go of what waits for nothing, and have the rest told when it is durable."""
        for waits_for, group in turn.groups.items():
            if waits_for == NOTHING:
                self._let_go(connection, group)
                continue
            self._connections.hold(connection, len(group.replies), group.byte_count)
            committers: list[Committer] = []
            if waits_for & LOG:
                committers.append(self._committer)
            if waits_for & RECORDS:
                connection.in_lane_count += 1
                committers.append(self._records_committer)
            group.missing_count = len(committers)
            for committer in committers:
                committer.when_durable(partial(self._told, connection, group, committer))
            if not committers:
                self._finish(connection, group)

    def _told(
        self,
        connection: Connection,
        group: _Group,
        committer: Committer,
        failure: StorageError | None,
    ) -> None:
        if committer is self._records_committer:
            connection.in_lane_count -= 1
        if failure is not None:
            if committer.failure is not None:
                # Nobody knows what is on the disk: nothing is told any more.
                return
            _refuse(group, failure)
        group.missing_count -= 1
        if not group.missing_count:
            self._finish(connection, group)

    def _finish(self, connection: Connection, group: _Group) -> None:
        if group.is_ordered:
            self._connections.in_order(connection, partial(self._answer, connection, group))
        else:
            self._answer(connection, group)

    def _answer(self, connection: Connection, group: _Group) -> None:
        self._connections.let_go(connection, len(group.replies), group.byte_count)
        self._let_go(connection, group)

    def _let_go(self, connection: Connection, group: _Group) -> None:
        self._connections.send(connection, [reply.answer() for reply in group.replies])
        for then, _ in group.thens:
            try:
                then()
            except StorageError as error:
                # It costs the queue of this command, and not those of the others.
                self._log.error("what follows a command failed", reason=str(error))
        self._connections.tell_effects()


def _refuse(group: _Group, failure: StorageError) -> None:
    """A batch was not taken, and only that: each of its commands may be tried again.

    What tells of the durable state can tell it all the same.
    """
    err = refusal(failure)
    group.replies = [
        reply if isinstance(reply.message, Late) else structs.replace(reply, message=err)
        for reply in group.replies
    ]
    group.thens = [(then, always) for then, always in group.thens if always]


def refusal(failure: StorageError) -> Err:
    """What whoever asked is answered."""
    return Err(failures.store(refusal_text(failure)))


def refusal_text(failure: StorageError) -> str:
    """What a peer may know of it: no paths, and whether it should try again."""
    if isinstance(failure, StoreFullError) and not isinstance(failure, StoreHeldError):
        return "there is no room on the disk, try again later"
    if failure.retriable:
        return "the disk is busy, try again later"
    return "the store failed"
