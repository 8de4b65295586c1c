"""Drift between a service and a router in a process of its own: found with SUBS, and let go of."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from syncline.certificates import ServiceCredentials, make_service_credentials
from syncline.core.reconciliation.initiator import Initiator
from syncline.core.reconciliation.sets import Snapshot
from syncline.core.reconciliation.sketched import OPENING_CELLS
from syncline.errors import UnsupportedVersionError
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkOptions, SmpLink
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.digests import digest_of
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueMode, QueueRecord, ServiceRecord, ServiceRole
from syncline.values.reconciliation import Answer, Difference, Open, Opening, SetHashes
from syncline.wire.reconciliation.answers import decode_answer
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp import versions
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Bus, Command, Recq, Subs
from syncline.wire.smp.messages import RouterMessage, Soks
from tests.e2e.router_process import RouterProcess, running

pytestmark = pytest.mark.timeout(120)

SERVICE_ID = b"S" * 24
COUNT = 20_000


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


def some_ids(count: int, seed: int) -> list[bytes]:
    data = np.random.default_rng(seed).bytes(count * 24)
    return [data[at : at + 24] for at in range(0, len(data), 24)]


def make_service(folder: Path, ids: Iterable[bytes]) -> ServiceCredentials:
    """In the folder of a router that does not run."""
    credentials = make_service_credentials(datetime.now(UTC))
    records = SqliteRecords.open(str(folder), DiskFiles())
    records.create_service(
        ServiceRecord(SERVICE_ID, ServiceRole.MESSAGING, credentials.chain, credentials.fingerprint)
    )
    for index, each in enumerate(ids):
        records.create_queue(
            QueueRecord(
                StreamId(each),
                (b"key",),
                bytes(32),
                each[::-1],
                QueueMode.MESSAGING,
                service_id=SERVICE_ID,
            )
        )
        if index % 2_000 == 0:
            commit(records)
    commit(records)
    records.close()
    return credentials


@asynccontextmanager
async def linked(
    router: RouterProcess, credentials: ServiceCredentials, options: LinkOptions | None = None
) -> AsyncGenerator[SmpLink]:
    login = ServiceLogin(credentials, ServiceRole.MESSAGING)
    link = await SmpLink.connect(address_of(router), options or LinkOptions(), service=login)
    try:
        yield link
    finally:
        await link.close()


async def say(link: SmpLink, command: Command) -> RouterMessage:
    assert link.service is not None
    return await link.request(command, link.service.service_id, link.service.key)


async def subs(link: SmpLink, ids: Iterable[bytes]) -> Soks:
    digest = digest_of(ids)
    hashes = SetHashes(digest.xor_xxh3, digest.sum128) if link.is_extended else None
    answer = await say(link, Subs(digest.count, digest.xor_md5, hashes))
    assert isinstance(answer, Soks)
    return answer


def as_answer(part: bytes) -> Answer:
    whole = Joiner(1 << 20).add(part)
    assert whole is not None
    return decode_answer(*whole)


def split(ids: bytes) -> set[bytes]:
    return {ids[at : at + 24] for at in range(0, len(ids), 24)}


async def find(link: SmpLink, mine: Iterable[bytes], opening: Answer) -> tuple[Difference, int]:
    """Both lists, and how many round trips it took with that of the opening."""
    initiator = Initiator(Snapshot(b"".join(mine)), lambda: b"new salt")
    step = initiator.receive(opening)
    round_trips = 1
    while not isinstance(step, Difference):
        step = initiator.receive(await link.ask(step))  # type: ignore[arg-type]
        round_trips += 1
    return step, round_trips


@pytest.mark.parametrize(("only_router", "only_agent"), [(1, 0), (0, 40), (300, 300)])
async def test_drift_is_found_in_two_round_trips_and_let_go_of(
    tmp_path: Path, only_router: int, only_agent: int
) -> None:
    folder = tmp_path / "data"
    with running(folder):
        # It makes the folder.
        pass
    theirs = some_ids(COUNT, 1)
    mine = theirs[only_router:] + some_ids(only_agent, 2)
    credentials = make_service(folder, theirs)
    with running(folder) as router:
        async with linked(router, credentials) as link:
            assert link.is_extended
            soks = await subs(link, mine)
            assert soks.opening
            assert soks.state is not None
            difference, round_trips = await find(link, mine, as_answer(soks.opening))
            if round_trips > 2:
                # With one salt in some hundreds; not with two one behind the other.
                opening = await link.ask(Open(b"the next", OPENING_CELLS))
                difference, round_trips = await find(link, mine, opening)
            assert round_trips <= 2
            assert difference.state == soks.state
            assert split(difference.missing) == set(theirs[:only_router])
            assert split(difference.extra) == set(mine) - set(theirs)
            # What the agent does not want is let go of; then both agree, and nothing is opened.
            kept = theirs[only_router:]
            for at in range(0, only_router, 512):
                answer = await say(link, Bus(tuple(theirs[:only_router][at : at + 512])))
                assert isinstance(answer, Soks)
            again = await subs(link, kept)
            assert again.opening == b""
            assert again.count == len(kept)
            metrics = router.client.get("/metrics").text
            assert f"syncline_smp_dissociated_ids_total {float(only_router)}" in metrics


async def test_all_ids_come_in_many_parts_while_others_are_served(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder):
        pass
    theirs = some_ids(COUNT, 3)
    credentials = make_service(folder, theirs)
    with running(folder) as router:
        async with linked(router, credentials) as link:
            soks = await subs(link, [])
            difference, round_trips = await find(link, [], as_answer(soks.opening))
            assert split(difference.missing) == set(theirs)
            assert round_trips == 2
            opening = await link.ask(Open(None, 8))
            assert isinstance(opening, Opening)
            assert opening.state == soks.state


async def test_a_plain_session_sees_nothing_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder):
        pass
    theirs = some_ids(10, 4)
    credentials = make_service(folder, theirs)
    with running(folder) as router:
        plain = LinkOptions(offers_extension=False)
        async with linked(router, credentials, plain) as link:
            assert link.version == versions.VERSION_MAX
            soks = await subs(link, theirs[1:])
            assert soks == Soks(10, digest_of(theirs).xor_md5)
            with pytest.raises(UnsupportedVersionError):
                await say(link, Recq(b"x"))
