"""`syncline drift` between an agent's store and its routers.

Looking logs in as the service and asks; it does not subscribe, so an agent that runs meanwhile is
not disturbed. A repair is another matter: to associate a queue takes the service over, and a queue
that the agent has made at the router and not yet in its store would be let go of. So that wants to
be said.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from syncline.cli.drift_output import (
    ROLE_NAMES,
    Compared,
    Counted,
    Repaired,
    Report,
    Verdict,
)
from syncline.cli.output import Bar, Output
from syncline.client.smp.agent_records import Account, StoredService
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import Connect, Link, connecting
from syncline.client.smp.repair_plan import Action, Side, action_for
from syncline.client.smp.repairing import Repairer
from syncline.client.smp.service_decisions import drift_of
from syncline.core.reconciliation.initiator import Mode
from syncline.core.reconciliation.sets import SetView, frozen
from syncline.errors import ConfigError, LinkError, ProtocolError, RefusedError
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkOptions
from syncline.storage.drift.comparing import Comparison, CountedSession
from syncline.values.ids import StreamId
from syncline.values.limits import MIB
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import ID_BYTES
from syncline.wire.smp.commands import Nsubs, Subs
from syncline.wire.smp.messages import Soks

# A router may have to read millions of ids before it answers, and may list them all.
_OPTIONS = LinkOptions(connect_timeout_s=15.0, answer_timeout_s=120.0, answer_bytes_max=512 * MIB)
_SIDES = ("only in the store", "only at the router")
_PLAIN = (
    "the router speaks plain SMP: only count and hash can be compared, and that needs a "
    "subscription, which takes over from an agent that is running; say --subscribe to do it"
)
_TAKES_OVER = (
    "a repair takes over from an agent that uses this store, and must not run beside it; stop the "
    "agent, then say --subscribe. An agent repairs by itself when it connects"
)


async def check(
    output: Output,
    path: Path,
    user: str | None,
    server: str | None,
    mode: Mode,
    *,
    subscribes: bool,
    connect: Connect | None = None,
) -> Report:
    """Raises ConfigError if the store has no service that is asked for."""
    with closing(_opened(path)) as store:
        looks = [
            _Look(store, account, mode, connect or connecting(_OPTIONS), subscribes=subscribes)
            for account in _accounts(store, user, server)
        ]
        with output.progress("asking", None) as bar:
            found = [await each.check(bar) for each in looks]
    report = _report(path, found, mode)
    if report.verdict is Verdict.DRIFT:
        advice = (
            "an agent repairs this when it connects; without one: "
            f"`syncline drift repair --store {path} --subscribe`"
        )
        report = replace(report, advice=advice)
    return report


async def repair(
    output: Output,
    path: Path,
    user: str | None,
    server: str | None,
    mode: Mode,
    *,
    subscribes: bool,
    is_dry: bool,
    connect: Connect | None = None,
) -> Report:
    """Raises ConfigError as `check` does, and if there is drift and no agent may be disturbed."""
    with closing(_opened(path)) as store:
        looks = [
            _Look(
                store,
                account,
                mode,
                connect or connecting(_OPTIONS),
                subscribes=subscribes and not is_dry,
            )
            for account in _accounts(store, user, server)
        ]
        with output.progress("repairing", None) as bar:
            found = [await each.repair(bar, is_dry=is_dry) for each in looks]
    report = _report(path, found, mode)
    if is_dry:
        report = replace(report, advice=f"nothing was changed; {_TAKES_OVER}")
    return report


def _opened(path: Path) -> AgentStore:
    if not path.is_file():
        raise ConfigError(f"there is no store {path}; name the one of an agent with --store")
    return AgentStore(path)


def _accounts(store: AgentStore, user: str | None, server: str | None) -> list[Account]:
    """Those that have a service at a router."""
    found = [
        account
        for account in store.accounts()
        if (user is None or store.user_name(account.user_id) == user)
        and (server is None or server in _router(store, account))
    ]
    with_service = [each for each in found if store.service(each).service_id is not None]
    if not with_service:
        which = "of that user at that router " if user or server else ""
        raise ConfigError(
            f"{store.path} has no service {which}whose queues could be compared; "
            "an agent makes one when it first connects"
        )
    return with_service


def _router(store: AgentStore, account: Account) -> str:
    return str(store.address(account.server_id))


def _report(path: Path, found: Sequence[Compared], mode: Mode) -> Report:
    routers = {each.facts["router"] for each in found}
    second = next(iter(routers)) if len(routers) == 1 else f"{len(routers)} routers"
    return Report("agent", str(path), second or "", mode, found, sides=_SIDES)


@dataclass(slots=True)
class _Look:
    """One account."""

    store: AgentStore
    account: Account
    mode: Mode
    connect: Connect
    subscribes: bool

    async def check(self, bar: Bar) -> Compared:
        service = self.store.service(self.account)
        try:
            link = await self._connected(service)
            try:
                return await self._checked(service, link, bar)
            finally:
                await link.close()
        except (LinkError, ProtocolError, RefusedError) as error:
            return self._compared(service, None, (str(error),))

    async def repair(self, bar: Bar, *, is_dry: bool) -> Compared:
        service = self.store.service(self.account)
        try:
            link = await self._connected(service)
            try:
                found = await self._checked(service, link, bar)
                if found.verdict is not Verdict.DRIFT:
                    return found
                if not self.subscribes and not is_dry:
                    raise ConfigError(_TAKES_OVER)
                return await self._repaired(found, link, bar, is_dry=is_dry)
            finally:
                await link.close()
        except (LinkError, ProtocolError, RefusedError) as error:
            return self._compared(service, None, (str(error),))

    async def _connected(self, service: StoredService) -> Link:
        assert service.credentials is not None, "a service has credentials"
        login = ServiceLogin(service.credentials, self.account.role)
        return await self.connect(self.store.address(self.account.server_id), login)

    # ---------------------------------------------------------------------------------- comparing

    async def _checked(self, service: StoredService, link: Link, bar: Bar) -> Compared:
        told = link.service
        if told is None:
            return self._compared(service, None, ("the router has no services (any more)",))
        troubles: list[str] = []
        if told.service_id != service.service_id:
            troubles.append(
                "the router knows this service under another id: its memory is another one"
            )
        if not link.is_extended:
            return await self._counted(service, link, troubles)
        comparison, is_digest_wrong = await self._compare(link, bar)
        if is_digest_wrong:
            troubles.append("the digest in the store is not that of its ids")
        return self._compared(service, comparison, troubles)

    async def _compare(self, link: Link, bar: Bar) -> tuple[Comparison, bool]:
        """And whether the digest in the store is wrong. Numbers are hashed on threads."""
        view, is_wrong = await asyncio.to_thread(self._read)
        session = CountedSession(view, secrets.token_bytes, self.mode, bar.advance)
        while session.question is not None:
            answer = await link.ask(session.question)
            await asyncio.to_thread(session.receive, answer)
        return session.comparison(), is_wrong

    def _read(self) -> tuple[SetView, bool]:
        with self.store.read_set(self.account) as ids:
            return SetView(frozen(ids)), ids.counted() != ids.kept

    async def _counted(
        self, service: StoredService, link: Link, troubles: Sequence[str]
    ) -> Compared:
        expected = service.expected
        if not self.subscribes or expected is None or link.service is None:
            return self._compared(service, None, (*troubles, _PLAIN))
        is_notifier = self.account.role is ServiceRole.NOTIFIER
        command = (Nsubs if is_notifier else Subs)(expected.count, expected.ids_hash)
        answer = await link.request(command, link.service.service_id)
        if not isinstance(answer, Soks):
            return self._compared(service, None, (*troubles, "the router did not answer SUBS"))
        is_equal = drift_of(expected, answer.count, answer.ids_hash) is None
        counted = Counted(expected.count, answer.count, is_equal)
        return self._compared(service, None, troubles, counted)

    def _compared(
        self,
        service: StoredService,
        comparison: Comparison | None,
        troubles: Sequence[str] = (),
        counted: Counted | None = None,
    ) -> Compared:
        user = self.store.user_name(self.account.user_id)
        service_id = None if service.service_id is None else str(StreamId(service.service_id))
        role = ROLE_NAMES[self.account.role]
        router = _router(self.store, self.account)
        return Compared(
            f"service {service_id} ({role}) of {user} at {router}",
            {"user": user, "router": router, "service": service_id, "role": role},
            comparison,
            tuple(troubles),
            counted=counted,
        )

    # ---------------------------------------------------------------------------------- repairing

    async def _repaired(self, found: Compared, link: Link, bar: Bar, *, is_dry: bool) -> Compared:
        service, comparison = self.store.service(self.account), found.comparison
        assert link.service is not None, "nothing was compared otherwise"
        if comparison is None:
            reason = "an agent associates again what is missing when it connects; start it"
            return replace(found, repaired=Repaired({}, is_dry, reasons=(reason,)))
        if link.service.service_id != service.service_id:
            reason = "start the agent: it associates all its queues with the new service"
            return replace(found, repaired=Repaired({}, is_dry, reasons=(reason,)))
        if is_dry:
            return replace(found, repaired=Repaired(self._planned(comparison), is_dry=True))
        done = await Repairer().repair(self.account, link, self.store)
        left, is_digest_wrong = await self._compare(link, bar)
        reasons = list(done.failures)
        if is_digest_wrong:
            reasons.append("the digest in the store is not that of its ids")
        counts = {
            "associated_at_the_router": done.associated_count,
            "let_go_of_at_the_router": done.dissociated_count,
            "associated_in_the_store": done.kept_count,
            "refused_by_the_router": done.failed_count,
            "let_go_of_in_the_store": done.dropped_count,
            "digests_repaired": int(done.is_digest_repaired),
        }
        return replace(
            found, repaired=Repaired(counts, is_dry=False, left=left, reasons=tuple(reasons))
        )

    def _planned(self, comparison: Comparison) -> dict[str, int]:
        counts = dict.fromkeys(Action, 0)
        for side, joined in (
            (Side.AGENT, comparison.only_first),
            (Side.ROUTER, comparison.only_second),
        ):
            ids = [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]
            known = self.store.known(self.account, ids)
            for each in ids:
                counts[action_for(side, known.get(each))] += 1
        return {
            "associated_at_the_router": counts[Action.ASSOCIATE],
            "let_go_of_at_the_router": counts[Action.RELEASE],
            "associated_in_the_store": counts[Action.KEEP],
            "let_go_of_in_the_store": counts[Action.DROP],
        }
