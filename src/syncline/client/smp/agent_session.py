"""One account of an agent: its connection, again and again, and what is subscribed over it.

    nothing wanted -> connecting -> settling -> subscribing -> idle
                           ^ wait      \\___________ lost _________/

*Settling* compares the service of the connection with the one that is stored, and then, before any
other command, subscribes to all of its queues at once. Commands of the application are held until
that is answered: an association that changed in between would make the comparison meaningless.
If the sets differ they are made the same: with a Syncline router by finding out which ids differ
(`repairing`), while commands go on or, as `AgentOptions.holds_commands` has it, wait; with any
other by associating again whatever the store has.

What always holds:
- What is wanted stays wanted until it is answered: it is read from the store at each connection,
  so a router that is down, slow or gone at any point only makes it later.
- The service is subscribed before single queues.
- Whatever happens to the service, every queue delivers again: by the service, or by itself.
- After another connection of the service has taken over, this one takes nothing back by itself.
- Single queues are subscribed, and sets repaired, by one task: none of these commands overtakes
  another one about the same queue.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from syncline.certificates import make_service_credentials
from syncline.client.smp.agent_events import (
    QueueDown,
    QueueFailed,
    QueueUp,
    RouterUnreachable,
    ServiceDown,
    ServiceLost,
    ServiceRepaired,
    ServiceUp,
)
from syncline.client.smp.agent_records import Account, StoredService, Subscribable
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.inbox import Inbox
from syncline.client.smp.linking import Link, World
from syncline.client.smp.receiving import Receiver
from syncline.client.smp.repairing import Repairer
from syncline.client.smp.service_decisions import (
    Drift,
    DriftKind,
    ServiceChange,
    change_of,
    drift_of,
    is_refusal_of_service,
    is_temporary,
)
from syncline.client.smp.session_repair import AgentCounters, Creations, SessionBooks
from syncline.client.smp.session_subscriptions import ServiceSub, SessionSubscriptions
from syncline.client.smp.shown_messages import ShownMessages
from syncline.client.smp.store_turns import StoreTurns, whole
from syncline.core.backoff import delay_ms
from syncline.errors import (
    LinkError,
    LinkLostError,
    ProtocolError,
    RefusedError,
    ServiceMismatchError,
    SynclineError,
    UnexpectedMessageError,
)
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import Request
from syncline.links.smp_session import LinkService
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import SALT_BYTES, SetHashes
from syncline.wire.smp import versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Nsub, Nsubs, Sub, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Msg, Ok, Sok, Soks

# How often a question is put again to a router that is busy.
_BUSY_COUNT_MAX = 8


@dataclass(frozen=True, slots=True)
class AgentOptions:
    uses_services: bool = True
    # After a router has refused our service: from when on to offer one again.
    service_retry_s: float = 3_600.0
    backoff_first_ms: int = 500
    backoff_cap_ms: int = 60_000
    # A connection that lasted so long was a good one: the next attempt is made at once.
    steady_s: float = 10.0
    # How long a command waits for a connection.
    command_wait_s: float = 45.0
    # Whether commands wait, too, until the ids of the service have been made the same.
    holds_commands: bool = False
    # Messages are sent through this router, so that those of the queues do not see who sends.
    proxy: RouterAddress | None = None
    # Queues in one go.
    page_count: int = 1_350
    # Messages and events that wait for the application.
    message_count_max: int = 256
    event_count_max: int = 10_000


class _Compared(NamedTuple):
    """What we have, how the router's set differs, and what it sent along to find out."""

    expected: ServiceSub
    drift: Drift | None
    opening: bytes


class AgentSession:
    """See the module."""

    def __init__(
        self,
        account: Account,
        store: AgentStore,
        inbox: Inbox,
        shown: ShownMessages,
        turns: StoreTurns,
        world: World,
        options: AgentOptions,
        counters: AgentCounters,
        *,
        subscribes_all: bool = True,
    ) -> None:
        """Without `subscribes_all` only what is asked for is subscribed, until `subscribe_all`."""
        self.account = account
        self.subscriptions = SessionSubscriptions()
        self._store = store
        self._inbox = inbox
        self._turns = turns
        self._world = world
        self._options = options
        self._counters = counters
        self._receiver = Receiver(
            account, self.subscriptions, store, turns, inbox, shown, self._wake
        )
        self.creations = Creations()
        self._repairer = Repairer(
            SessionBooks(account, self.subscriptions, self._receiver, inbox, self.creations),
            page_count=options.page_count,
            on_thread=world.on_thread,
            turns=turns,
            salts=lambda: world.entropy(SALT_BYTES),
            patience=self._be_patient,
        )
        self._link: Link | None = None
        self._is_settled = False
        self._service_not_before_s = float("-inf")
        # Commands that wait for a connection.
        self._demand_count = 0
        self._subscribes_all = subscribes_all
        # Queues in the store have to be looked through.
        self._must_scan = True
        self._must_verify = False
        # What the router has beyond what can be repaired from here; see `Drift.difference`.
        self._known_difference: tuple[int, bytes] | None = None
        self._trouble = "no attempt was made yet"
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()

    # --------------------------------------------------------------------- what the agent asks for

    async def ready(self) -> Link:
        """The connection, once the service is settled. Raises LinkLostError after a while."""
        self._demand_count += 1
        self._wake()
        try:
            async with asyncio.timeout(self._options.command_wait_s):
                while self._link is None or not self._is_settled:
                    await self._changed.wait()
                return self._link
        except TimeoutError as error:
            raise LinkLostError(f"the router cannot be reached: {self._trouble}") from error
        finally:
            self._demand_count -= 1

    def subscribe_all(self) -> None:
        """Everything in the store, also what another connection took over."""
        self._subscribes_all = self._must_scan = True
        self._receiver.is_displaced = False
        link = self._link
        is_of_service = link is not None and link.service is not None and self._is_settled
        if link is not None and is_of_service and self.subscriptions.active_service is None:
            # One that was displaced may not be given its service back: take a new one.
            link.cut()
        self._wake()

    def subscribe(self, queues: Sequence[bytes]) -> None:
        self.subscriptions.want(queues)
        self._wake()

    def hurry(self) -> None:
        """Do not wait for the next attempt: the network is back, or somebody looks at it."""
        self._hurry.set()

    async def acknowledge(self, queue: bytes, message_id: bytes) -> None:
        """Tell the router, if it is there. If not, it will deliver again, and be told then."""
        if self._link is not None and self._is_settled:
            await self._receiver.acknowledge(self._link, queue, message_id)

    # ------------------------------------------------------------------------------ the connection

    async def run(self) -> None:
        """Until it is cancelled."""
        attempt = 0
        while True:
            await self._until_wanted()
            try:
                link = await self._connect()
            except ServiceMismatchError as error:
                await self._refused(str(error))
                continue
            except (LinkError, ProtocolError, RefusedError) as error:
                await self._pause(attempt, str(error))
                attempt += 1
                continue
            lasted_s = await self._stay(link)
            attempt = 0 if lasted_s >= self._options.steady_s else attempt + 1
            if attempt:
                await self._pause(attempt - 1, self._trouble)

    async def _connect(self) -> Link:
        address = self._store.address(self.account.server_id)
        return await self._world.connect(address, await self._login())

    async def _login(self) -> ServiceLogin | None:
        is_refused = self._world.clock_s() < self._service_not_before_s
        if not self._options.uses_services or is_refused:
            return None
        credentials = self._store.service(self.account).credentials
        if credentials is None:
            credentials = make_service_credentials(self._world.now())
            await self._turns.write(self._store.save_credentials, self.account, credentials)
        return ServiceLogin(credentials, self.account.role)

    async def _stay(self, link: Link) -> float:
        """Returns how long it lasted, in seconds."""
        started_s = self._world.clock_s()
        self._link = link
        self.subscriptions.connected(link.session_id)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._work(link)),
                    group.create_task(self._receiver.keep_receiving(link, group)),
                ]
                self._trouble = str(await link.ended())
                for task in tasks:
                    task.cancel()
                self._receiver.leave()
        finally:
            self._link, self._is_settled = None, False
            await link.close()
            await self._receiver.take_rest(link)
            self._tell_lost(link)
        return self._world.clock_s() - started_s

    def _tell_lost(self, link: Link) -> None:
        demoted = self.subscriptions.disconnected(link.session_id)
        if demoted.service is not None:
            self._inbox.tell(ServiceDown(self.account, demoted.service))
        if demoted.queues:
            self._inbox.tell(QueueDown(self.account, demoted.queues))

    async def _pause(self, attempt: int, reason: str) -> None:
        wait_s = self._wait_s(attempt)
        self._trouble = reason
        self._inbox.tell(RouterUnreachable(self.account, reason, wait_s))
        await self._nap(wait_s)

    def _wait_s(self, attempt: int) -> float:
        options, chance = self._options, self._world.chance()
        wait_ms = delay_ms(attempt, chance, options.backoff_first_ms, options.backoff_cap_ms)
        return wait_ms / 1_000

    async def _nap(self, seconds: float) -> None:
        """Sleep, unless somebody is in a hurry."""
        self._hurry.clear()
        async with asyncio.TaskGroup() as group:
            waits = {group.create_task(self._hurry.wait()), group.create_task(self._sleep(seconds))}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)

    async def _until_wanted(self) -> None:
        while not self._is_wanted():
            await self._changed.wait()

    def _is_wanted(self) -> bool:
        if self._demand_count:
            return True
        if self._receiver.is_displaced:
            return False
        return self.subscriptions.pending_count > 0 or (
            self._wants_all() and self._store.has_queues(self.account)
        )

    def _wants_all(self) -> bool:
        """The intent in the store, unless this agent is here for something else."""
        return self._subscribes_all and self._store.service(self.account).wants_all

    # ---------------------------------------------------------------------------------- the service

    async def _work(self, link: Link) -> None:
        """Settle, then subscribe whatever is wanted; whatever goes wrong ends the connection."""
        try:
            compared = await self._settle(link)
            if self._options.holds_commands:
                await self._repair(link, compared)
            self._is_settled = True
            self._wake()
            if not self._options.holds_commands:
                await self._repair(link, compared)
            await self._keep_subscribing(link)
        except ServiceMismatchError as error:
            await self._refused(str(error))
            link.cut()
        except (LinkError, ProtocolError, RefusedError):
            # Said by the link when it ends.
            link.cut()

    async def _settle(self, link: Link) -> _Compared | None:
        """Returns how the set of the service compares, if that was asked for."""
        told = None if link.service is None else link.service.service_id
        await whole(self._take_service(told))
        is_wanted = self._wants_all() and not self._receiver.is_displaced
        if link.service is None or not is_wanted:
            return None
        return await self._subscribe_service(link, link.service)

    async def _take_service(self, told: bytes | None) -> None:
        """As the router knows us on this connection."""
        async with self._turns.one() as write:
            change = change_of(self._store.service(self.account).service_id, told)
            if change is ServiceChange.LOST:
                await write(self._store.forget_service_id, self.account)
                self._lose_service("the router has no service for us any more")
            elif told is not None and change is not ServiceChange.SAME:
                await write(self._store.save_service_id, self.account, told)
                if change is ServiceChange.CHANGED:
                    self._lose_service("the router knows us as another service")

    def _lose_service(self, reason: str) -> None:
        self.subscriptions.service_lost()
        self._must_scan = True
        self._known_difference = None
        self._inbox.tell(ServiceLost(self.account, reason))

    async def _refused(self, reason: str) -> None:
        await whole(self._give_up_service(reason))

    async def _give_up_service(self, reason: str) -> None:
        async with self._turns.one() as write:
            await write(self._store.forget_credentials, self.account)
            self._service_not_before_s = self._world.clock_s() + self._options.service_retry_s
            self._lose_service(reason)

    async def _subscribe_service(self, link: Link, service: LinkService) -> _Compared:
        compared = await self._compare(link, service)
        self._inbox.tell(ServiceUp(self.account, compared.expected, compared.drift))
        self.subscriptions.service_subscribed(link.session_id, compared.expected)
        return compared

    async def _compare(self, link: Link, service: LinkService) -> _Compared:
        """Subscribe to all queues of the service."""
        stored = self._store.service(self.account)
        expected = stored.expected
        assert expected is not None
        self.subscriptions.want_service(expected)
        try:
            answer = await link.request(self._subscription(link, stored), service.service_id)
        except FailureError as error:
            if is_refusal_of_service(error.failure):
                raise ServiceMismatchError(f"the router refuses the service: {error}") from error
            raise
        if not isinstance(answer, Soks):
            raise UnexpectedMessageError("the router did not answer with the state of the service")
        drift = drift_of(expected, answer.count, answer.ids_hash, stored.state, answer.state)
        return _Compared(expected, drift, answer.opening)

    def _subscription(self, link: Link, stored: StoredService) -> Subs | Nsubs:
        command = Nsubs if self.account.role is ServiceRole.NOTIFIER else Subs
        if link.version < versions.SERVICE_DIGESTS:
            return command()
        digest = stored.digest
        hashes = SetHashes(digest.xor_xxh3, digest.sum128) if link.is_extended else None
        return command(digest.count, digest.xor_md5, hashes)

    async def _repair(self, link: Link, compared: _Compared | None) -> None:
        """Whatever was seen to differ on this connection."""
        if compared is None or compared.drift is None:
            return
        self._counters.drift_count += 1
        # One that has nothing need not be asked: all is associated again.
        if link.is_extended and compared.drift.kind is not DriftKind.LOST:
            await self._reconcile(link, compared.drift, compared.opening)
        else:
            await self._repair_plainly(link, compared.drift)
        if self._options.holds_commands and self._must_verify:
            await self._scan(link)

    async def _reconcile(self, link: Link, drift: Drift, opening: bytes) -> None:
        repaired = await self._repairer.repair(self.account, link, self._store, opening)
        self._counters.add(repaired)
        self._inbox.tell(ServiceRepaired(self.account, repaired))
        if self._receiver.is_displaced:
            return
        # What neither side associates is no difference, but may be wanted all the same.
        self._must_scan = True
        if not repaired.is_equal:
            await self._repair_plainly(link, drift)
            return
        self._known_difference = None
        async with self._turns.one():
            expected = self._store.service(self.account).expected
            assert expected is not None
            self.subscriptions.service_subscribed(link.session_id, expected)
            self._inbox.tell(ServiceUp(self.account, expected))

    async def _be_patient(self, attempt: int) -> bool:
        """With a router that has too many questions to answer, such as after it was down."""
        if attempt >= _BUSY_COUNT_MAX:
            return False
        await self._world.sleep(self._wait_s(attempt))
        return True

    async def _repair_plainly(self, link: Link, drift: Drift) -> None:
        """Which queues differ cannot be asked. All that we know of are associated again: those that
        are lost come back, those that are there stay."""
        if drift.difference == self._known_difference:
            return
        self._counters.plain_repair_count += 1
        await whole(self._give_up_associations(link, ServiceSub(drift.expected.service_id)))

    async def _give_up_associations(self, link: Link, sub: ServiceSub) -> None:
        async with self._turns.one() as write:
            await write(self._store.forget_associations, self.account)
            self._must_scan = self._must_verify = True
            self.subscriptions.service_subscribed(link.session_id, sub)

    async def _verify(self, link: Link) -> None:
        """After a repair: is anything left that the router has and we do not know?"""
        self._must_verify = False
        if link.service is None:
            return
        expected, drift, _ = await self._compare(link, link.service)
        self.subscriptions.service_subscribed(link.session_id, expected)
        self._known_difference = None if drift is None else drift.difference
        self._inbox.tell(ServiceUp(self.account, expected, drift))

    # ------------------------------------------------------------------------------- single queues

    async def _keep_subscribing(self, link: Link) -> None:
        vain_count = 0
        while True:
            if not self._receiver.is_displaced:
                await self._subscribe_pending(link)
                await self._scan(link)
            if self.subscriptions.pending_count and not self._receiver.is_displaced:
                # The router could not do it now, for these.
                await self._nap(self._wait_s(vain_count))
                vain_count += 1
            else:
                vain_count = 0
                await self._until_something_to_subscribe()

    async def _until_something_to_subscribe(self) -> None:
        while self._receiver.is_displaced or not (
            self.subscriptions.pending_count or self._must_scan
        ):
            await self._changed.wait()

    async def _subscribe_pending(self, link: Link) -> None:
        """What lost its connection, or was asked for by name."""
        found = self.subscriptions
        # Asked for, and not answered with yes or no.
        stuck: set[bytes] = set()
        while not self._receiver.is_displaced:
            count = self._options.page_count + len(stuck)
            ids = [each for each in found.next_pending(count) if each not in stuck]
            if not ids:
                return
            page = self._store.subscribable(self.account, ids)
            for gone in set(ids) - {each.entity_id for each in page}:
                found.forgotten(gone)
            await self._subscribe_page(link, page)
            stuck.update(each for each in ids if found.is_pending(each))

    async def _scan(self, link: Link) -> None:
        """What the store has and no service stands for."""
        if not self._must_scan:
            return
        self._must_scan = False
        try:
            await self._subscribe_unassociated(link)
        except BaseException:
            # The connection went: the next one begins anew, or the rest would never be asked for.
            self._must_scan = True
            raise
        if self._must_verify:
            await self._verify(link)

    async def _subscribe_unassociated(self, link: Link) -> None:
        place: tuple[int, bytes] | None = None
        while self._wants_all() and not self._receiver.is_displaced:
            page = self._store.unassociated(self.account, place, self._options.page_count)
            if not page:
                return
            place = page[-1].place
            await self._subscribe_page(link, self._missing(page))

    def _missing(self, page: Sequence[Subscribable]) -> list[Subscribable]:
        found = self.subscriptions
        missing = [
            each
            for each in page
            if not found.is_active(each.entity_id) and found.why_removed(each.entity_id) is None
        ]
        found.want(each.entity_id for each in missing)
        return missing

    async def _subscribe_page(self, link: Link, page: Sequence[Subscribable]) -> None:
        command = Nsub() if self.account.role is ServiceRole.NOTIFIER else Sub()
        outcomes = await link.request_many(
            [Request(command, each.entity_id, each.key) for each in page]
        )
        own = None if link.service is None else link.service.service_id
        alone: list[bytes] = []
        of_service: list[bytes] = []
        error: SynclineError | None = None
        for each, outcome in zip(page, outcomes, strict=True):
            match outcome:
                case Sok(service_id=service_id) if own is not None and service_id == own:
                    of_service.append(each.entity_id)
                case Sok() | Ok():
                    alone.append(each.entity_id)
                case Msg():
                    alone.append(each.entity_id)
                    await self._receiver.take_message(link, each.entity_id, outcome)
                case FailureError():
                    self._failed(each.entity_id, outcome)
                case LinkError():
                    # Stays pending. If it was slow and not lost, it is asked again.
                    error = outcome
                case _:
                    error = UnexpectedMessageError("the router did not answer a subscription")
        await whole(self._apply(link, own, alone, of_service))
        if isinstance(error, ProtocolError):
            raise error

    async def _apply(
        self, link: Link, own: bytes | None, alone: list[bytes], of_service: list[bytes]
    ) -> None:
        async with self._turns.one() as write:
            up = self.subscriptions.subscribed(link.session_id, alone)
            if own is not None and of_service:
                joined = await write(self._store.associate, self.account, of_service)
                up += self.subscriptions.associated(link.session_id, own, of_service, joined)
            if up:
                self._inbox.tell(QueueUp(self.account, up))

    def _failed(self, queue: bytes, error: FailureError) -> None:
        if is_refusal_of_service(error.failure):
            raise ServiceMismatchError(f"the router refuses the service: {error}")
        is_final = not is_temporary(error.failure)
        if is_final:
            self.subscriptions.failed(queue, str(error))
        self._inbox.tell(QueueFailed(self.account, queue, error.failure, is_final))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
