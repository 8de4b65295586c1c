"""Making the ids of a service the same on both sides: in the store and at a Syncline router.

Each round learns what only one side has, decides for each id from the store as it is in that moment
(`repair_plan`), sends, and compares again. Commands of the application go on meanwhile, over the
same connection, whose commands the router carries out in order.

What always holds:
- Nothing is done before the lists have passed the check of their digest; a failure is told.
- Before an unknown id is let go of, queues that are being made have been made: until the answer is
  in the store, a new queue is unknown here and associated there.
- A round that finds nothing left to do is the last: what differs then are changes on their way.
- The event loop is not held: all that reads or hashes the whole set runs on a thread, and what is
  written goes page by page.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from syncline.client.smp.agent_records import Account, Subscribable
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import InThread, Link, in_thread
from syncline.client.smp.repair_plan import (
    Action,
    Answer,
    Known,
    Repaired,
    Side,
    action_for,
    effect_of,
)
from syncline.client.smp.service_decisions import is_refusal_of_service, is_temporary
from syncline.client.smp.store_turns import StoreTurns, Turn, whole
from syncline.core.reconciliation.initiator import Initiator
from syncline.core.reconciliation.sets import END, IdSet, Snapshot, frozen
from syncline.errors import LinkError, ProtocolError, ServiceMismatchError, UnexpectedMessageError
from syncline.links.smp_link import Outcome, Request
from syncline.values.limits import KIB
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import (
    ID_BYTES,
    SALT_BYTES,
    Difference,
    Failure,
    Open,
    Opening,
    Result,
    SetState,
)
from syncline.values.reconciliation import Answer as Reply
from syncline.values.reconciliation import Request as Question
from syncline.wire.reconciliation.answers import decode_answer
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp.commands import BUS_ID_COUNT_MAX, Bus, Nsub, Sub
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Msg, Ok, Sok, Soks

ROUND_COUNT_MAX: Final = 3
# One part holds less.
_OPENING_BYTES_MAX: Final = 16 * KIB
_PAGE_COUNT: Final = 1_350

Piece = TypeVar("Piece")


# Given how often a router has been busy: waits, and says whether to ask once more.
Patience = Callable[[int], Awaitable[bool]]


async def no_patience(_attempt: int) -> bool:
    return False


def _salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)


async def find_difference(
    link: Link,
    ids: Callable[[], IdSet],
    opening: bytes = b"",
    *,
    on_thread: InThread = in_thread,
    salts: Callable[[], bytes] = _salt,
    patience: Patience = no_patience,
) -> tuple[Result, int]:
    """What only one side has, and in how many round trips that was found. `ids` is called on a
    thread and gives a set that stays as it is; `opening` is what came with SOKS.

    A router that does not answer as it should gives a Failure. Raises LinkError, and
    ServiceMismatchError if the service is refused.
    """
    initiator = await on_thread(lambda: Initiator(ids(), salts))
    try:
        step = initiator.start()
        answer = _opening(opening) if opening else await _asked(link, step, patience)
        while not isinstance(
            found := await on_thread(partial(initiator.receive, answer)), Difference | Failure
        ):
            answer = await _asked(link, found, patience)
    except ProtocolError as error:
        return Failure(str(error)), initiator.round_trips
    except FailureError as error:
        _check_service(error)
        return Failure(f"the router says {error}"), initiator.round_trips
    return found, initiator.round_trips


async def _asked(link: Link, question: Question, patience: Patience) -> Reply:
    """A router that is busy is asked again: it keeps nothing of a session."""
    attempt = 0
    while True:
        try:
            return await link.ask(question)
        except FailureError as error:
            if not is_temporary(error.failure) or not await patience(attempt):
                raise
        attempt += 1


def _opening(part: bytes) -> Opening:
    whole = Joiner(_OPENING_BYTES_MAX).add(part)
    answer = None if whole is None else decode_answer(*whole)
    if not isinstance(answer, Opening):
        raise UnexpectedMessageError("what came with the state of the service is no opening")
    return answer


def _check_service(error: FailureError) -> None:
    if is_refusal_of_service(error.failure):
        raise ServiceMismatchError(f"the router refuses the service: {error}") from error


# --------------------------------------------------------------------------------------- repairing


class Books(Protocol):
    """Who has to know what becomes of subscriptions, and knows what the store does not."""

    def may_go_on(self) -> bool:
        """False once another connection has taken over the service."""
        ...

    def begin_round(self) -> None:
        """What ends from here on has ended meanwhile."""
        ...

    def has_ended(self, id_: bytes) -> bool: ...

    async def until_created(self) -> None:
        """Until all queues are in the store, or have failed, that are being made now."""
        ...

    def kept(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        """The router had them, and we have them now; `joined` we did not have before."""
        ...

    def associated(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        """The router has them again."""
        ...

    def alone(self, link: Link, ids: Sequence[bytes]) -> None:
        """They are subscribed, each by itself."""
        ...

    def failed(self, id_: bytes, error: FailureError, *, waits: bool) -> None: ...
    async def take_message(self, link: Link, id_: bytes, message: Msg) -> None: ...


class NoBooks:
    """For a store that no agent uses meanwhile. Messages come again to whoever subscribes."""

    def may_go_on(self) -> bool:
        return True

    def begin_round(self) -> None:
        pass

    def has_ended(self, id_: bytes) -> bool:
        return False

    async def until_created(self) -> None:
        pass

    def kept(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        pass

    def associated(self, link: Link, ids: Sequence[bytes], joined: Sequence[bytes]) -> None:
        pass

    def alone(self, link: Link, ids: Sequence[bytes]) -> None:
        pass

    def failed(self, id_: bytes, error: FailureError, *, waits: bool) -> None:
        pass

    async def take_message(self, link: Link, id_: bytes, message: Msg) -> None:
        pass


class Repairer:
    """See the module. `salts` gives eight random bytes at each call."""

    def __init__(
        self,
        books: Books | None = None,
        *,
        page_count: int = _PAGE_COUNT,
        on_thread: InThread = in_thread,
        turns: StoreTurns | None = None,
        salts: Callable[[], bytes] = _salt,
        patience: Patience = no_patience,
    ) -> None:
        """`turns` are those of an agent that uses the store meanwhile."""
        self._books: Books = NoBooks() if books is None else books
        self._page_count = page_count
        self._on_thread = on_thread
        self._turns = turns
        self._salts = salts
        self._patience = patience

    async def repair(
        self, account: Account, link: Link, store: AgentStore, opening: bytes = b""
    ) -> Repaired:
        """Of the service of the link. Without `is_equal` something is left after all rounds, or
        another connection has taken over.

        Raises LinkError (then compare again on the next link), ProtocolError for a router that does
        not answer a command, and ServiceMismatchError if the service is refused.
        """
        repair = _Repair(
            account,
            link,
            store,
            self._books,
            self._page_count,
            self._on_thread,
            self._turns or StoreTurns(store, self._on_thread),
            self._salts,
            self._patience,
        )
        return await repair.run(opening)


@dataclass(slots=True)
class _Repair:
    """One repair."""

    account: Account
    link: Link
    store: AgentStore
    books: Books
    page_count: int
    on_thread: InThread
    turns: StoreTurns
    salts: Callable[[], bytes]
    patience: Patience
    done: Repaired = field(default_factory=lambda: Repaired(is_equal=False))
    # What the router last told of its set, after all that was done so far.
    told: SetState | None = None

    async def run(self, opening: bytes) -> Repaired:
        while self.done.rounds < ROUND_COUNT_MAX and self.books.may_go_on():
            self.count(rounds=1)
            if await self.round(opening):
                return replace(self.done, is_equal=True)
            opening = b""
        return self.done

    async def round(self, opening: bytes) -> bool:
        """Whether both sides have the same set now."""
        # What others write by now is no difference; and what ends from here on is remembered.
        async with self.turns.one():
            self.books.begin_round()
        difference = await self.compare(opening)
        if difference is None:
            return False
        self.told = difference.state
        acted_count = await self.repair_agents(_ids_of(difference.extra))
        acted_count += await self.repair_routers(_ids_of(difference.missing))
        if not self.books.may_go_on():
            return False
        return acted_count == 0 or await self.is_equal()

    async def compare(self, opening: bytes) -> Difference | None:
        own = _OwnSet(self.store, self.account)
        if self.store.is_in_memory:
            own.read()
        result, round_trips = await find_difference(
            self.link,
            own.read,
            opening,
            on_thread=self.on_thread,
            salts=self.salts,
            patience=self.patience,
        )
        self.count(round_trips=round_trips)
        if isinstance(result, Failure):
            self.fail(result.reason)
            return None
        if own.is_damaged or not (result.missing or result.extra):
            # With no id to tell apart, one side does not know its own set; it may be us.
            await self.repair_digest()
        return result

    async def repair_digest(self) -> None:
        repair = partial(self.store.repair_digest, self.account)
        if repair() if self.store.is_in_memory else await self.on_thread(repair):
            self.done = replace(self.done, is_digest_repaired=True)

    async def is_equal(self) -> bool:
        if self.told is None:
            answer = await self.tried(_asked(self.link, Open(None, 0), self.patience))
            self.count(round_trips=1)
            if not isinstance(answer, Opening):
                return False
            self.told = answer.state
        return self.store.service(self.account).state.is_same_set(self.told)

    async def tried(self, answer: Awaitable[Piece]) -> Piece | None:
        """None, and the round comes to nothing, if the router refuses or makes no sense."""
        try:
            return await answer
        except FailureError as error:
            _check_service(error)
            self.fail(f"the router says {error}")
        except ProtocolError as error:
            self.fail(str(error))
        return None

    def fail(self, reason: str) -> None:
        self.done = replace(self.done, failures=(*self.done.failures, reason))

    # -------------------------------------------------------------------- what only the router has

    async def repair_routers(self, ids: Sequence[bytes]) -> int:
        """Returns how many were not right yet."""
        if ids:
            await self.books.until_created()
        kept_count = 0
        unwanted: list[bytes] = []
        for page in _pieces(ids, self.page_count):
            if not self.books.may_go_on():
                break
            kept_count += await whole(self.keep(page))
            unwanted += self.having(page, Side.ROUTER, Action.RELEASE)
            await asyncio.sleep(0)
        self.count(kept=kept_count)
        await self.release(unwanted)
        return kept_count + len(unwanted)

    async def keep(self, page: Sequence[bytes]) -> int:
        async with self.turns.one() as write:
            ids = self.having(page, Side.ROUTER, Action.KEEP)
            if ids:
                joined = await write(self.store.associate, self.account, ids)
                self.books.kept(self.link, ids, joined)
            return len(ids)

    async def release(self, ids: Sequence[bytes]) -> None:
        service = self.link.service
        assert service is not None, "only a service has ids"
        for page in _pieces(ids, BUS_ID_COUNT_MAX):
            # The answer to the one before took its time.
            batch = self.having(page, Side.ROUTER, Action.RELEASE)
            if not batch or not self.books.may_go_on():
                continue
            answer = await self.tried(self.link.request(Bus(tuple(batch)), service.service_id))
            self.told = answer.state if isinstance(answer, Soks) else None
            if self.told is not None:
                self.count(dissociated=len(batch))

    # --------------------------------------------------------------------------- what only we have

    async def repair_agents(self, ids: Sequence[bytes]) -> int:
        """Returns how many were not right yet."""
        count = 0
        for page in _pieces(ids, self.page_count):
            if not self.books.may_go_on():
                break
            count += await whole(self.drop(page))
            wanted = self.having(page, Side.AGENT, Action.ASSOCIATE)
            if wanted:
                await self.associate(self.store.subscribable(self.account, wanted))
            count += len(wanted)
            await asyncio.sleep(0)
        return count

    async def drop(self, page: Sequence[bytes]) -> int:
        async with self.turns.one() as write:
            ids = self.having(page, Side.AGENT, Action.DROP)
            if ids:
                await write(self.store.dissociate, self.account, ids)
                self.count(dropped=len(ids))
            return len(ids)

    async def associate(self, page: Sequence[Subscribable]) -> None:
        command = Nsub() if self.account.role is ServiceRole.NOTIFIER else Sub()
        outcomes = await self.link.request_many(
            [Request(command, each.entity_id, each.key) for each in page]
        )
        # What the router said before is older.
        self.told = None
        answers: dict[Answer, list[bytes]] = {answer: [] for answer in Answer}
        failed: dict[bytes, FailureError] = {}
        for each, outcome in zip(page, outcomes, strict=True):
            answers[self.answer_of(outcome)].append(each.entity_id)
            if isinstance(outcome, FailureError):
                failed[each.entity_id] = outcome
            elif isinstance(outcome, Msg):
                await self.books.take_message(self.link, each.entity_id, outcome)
        await whole(self.note(answers, failed))

    async def note(
        self, answers: Mapping[Answer, Sequence[bytes]], failed: Mapping[bytes, FailureError]
    ) -> None:
        async with self.turns.one() as write:
            for answer, ids in answers.items():
                await self.answered(answer, ids, failed, write)

    def answer_of(self, outcome: Outcome) -> Answer:
        service = self.link.service
        match outcome:
            case Sok(service_id=service_id) if service and service_id == service.service_id:
                return Answer.ASSOCIATED
            case Sok() | Ok():
                return Answer.ALONE
            case FailureError():
                _check_service(outcome)
                return Answer.LATER if is_temporary(outcome.failure) else Answer.REFUSED
            case Msg() | LinkError():
                # A message says nothing of the service.
                return Answer.NONE
            case _:
                raise UnexpectedMessageError("the router did not answer a subscription")

    async def answered(
        self,
        answer: Answer,
        ids: Sequence[bytes],
        failed: Mapping[bytes, FailureError],
        write: Turn,
    ) -> None:
        effect = effect_of(answer)
        if effect.is_dissociated:
            # What was deleted, or unwanted, meanwhile is the concern of whoever did that.
            ids = self.having(ids, Side.AGENT, Action.ASSOCIATE)
        else:
            # Before our answer or after it? The next comparison tells.
            ids = [each for each in ids if not self.books.has_ended(each)]
        if not ids:
            return
        if effect.is_dissociated:
            await write(self.store.dissociate, self.account, ids)
            self.count(failed=len(ids))
        if effect.is_told:
            for each in ids:
                self.books.failed(each, failed[each], waits=effect.waits)
        elif answer is Answer.ALONE:
            self.books.alone(self.link, ids)
        elif answer is Answer.ASSOCIATED:
            joined = await write(self.store.associate, self.account, ids)
            self.books.associated(self.link, ids, joined)
            self.count(associated=len(ids))

    # ------------------------------------------------------------------------------------- helpers

    def known(self, ids: Sequence[bytes]) -> dict[bytes, Known]:
        return {
            id_: replace(known, has_ended=True) if self.books.has_ended(id_) else known
            for id_, known in self.store.known(self.account, ids).items()
        }

    def having(self, ids: Sequence[bytes], side: Side, action: Action) -> list[bytes]:
        """Those with which this is to be done, as they stand now."""
        known = self.known(ids)
        return [each for each in ids if action_for(side, known.get(each)) is action]

    def count(
        self,
        *,
        associated: int = 0,
        dissociated: int = 0,
        kept: int = 0,
        failed: int = 0,
        dropped: int = 0,
        rounds: int = 0,
        round_trips: int = 0,
    ) -> None:
        done = self.done
        self.done = replace(
            done,
            associated_count=done.associated_count + associated,
            dissociated_count=done.dissociated_count + dissociated,
            kept_count=done.kept_count + kept,
            failed_count=done.failed_count + failed,
            dropped_count=done.dropped_count + dropped,
            rounds=done.rounds + rounds,
            round_trips=done.round_trips + round_trips,
        )


class _OwnSet:
    """The ids in the store at one moment, read once."""

    def __init__(self, store: AgentStore, account: Account) -> None:
        self._store = store
        self._account = account
        self._snapshot: Snapshot | None = None
        # Whether the kept digest was not theirs.
        self.is_damaged = False

    def read(self) -> Snapshot:
        if self._snapshot is None:
            with self._store.read_set(self._account) as ids:
                self._snapshot = frozen(ids)
                kept = ids.kept
            found = self._snapshot.digest(b"", END)
            self.is_damaged = (found.count, found.xor128, found.sum128) != (
                kept.count,
                int.from_bytes(kept.xor_xxh3),
                int.from_bytes(kept.sum128),
            )
        return self._snapshot


def _ids_of(joined: bytes) -> list[bytes]:
    return [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]


def _pieces(whole: Sequence[Piece], count: int) -> Iterator[Sequence[Piece]]:
    for start in range(0, len(whole), count):
        yield whole[start : start + count]
