"""The SMP router in a process of its own: killed, crowded, taken over, and operated."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from ssl import DER_cert_to_PEM_cert

import pytest

from syncline.certificates import ServiceCredentials, make_service_credentials
from syncline.client.smp import queues
from syncline.client.smp.queues import NewQueue
from syncline.errors import LinkError
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_hello import ServiceLogin
from syncline.links.smp_link import LinkEvent, Request, SmpLink
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.ids import StreamId
from syncline.values.queue_records import QueueMode, QueueRecord, ServiceRecord, ServiceRole
from syncline.values.reconciliation import SetHashes
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.bodies import ReceivedMessage
from syncline.wire.smp.commands import Send, Sub, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Alls, Deld, Ends, Err, Msg, Ok, Sok, Soks
from tests.e2e.router_process import RouterProcess, run_cli, running

pytestmark = pytest.mark.timeout(120)

WAIT_SECONDS = 30.0
SERVICE_ID = b"S" * 24
QUEUE_KEY = PrivateKey(KeyKind.ED25519, bytes(31) + b"\x07")
SENDER_BIT = 1 << 100


def address_of(router: RouterProcess) -> RouterAddress:
    return RouterAddress.parse(router.announcement["smp"])


@asynccontextmanager
async def linked(
    router: RouterProcess, credentials: ServiceCredentials | None = None
) -> AsyncGenerator[SmpLink]:
    login = None
    if credentials is not None:
        login = ServiceLogin(credentials, ServiceRole.MESSAGING)
    link = await SmpLink.connect(address_of(router), service=login)
    try:
        yield link
    finally:
        await link.close()


async def event_of(link: SmpLink) -> LinkEvent:
    async with asyncio.timeout(WAIT_SECONDS):
        return await link.next_event()


async def bulk(link: SmpLink, count: int = 0) -> Soks:
    assert link.service is not None
    command = Subs(count, bytes(16), SetHashes(bytes(16), bytes(16)))
    answer = await link.request(command, link.service.service_id, link.service.key)
    assert isinstance(answer, Soks)
    return answer


def recipient_id(number: int) -> StreamId:
    return StreamId(number.to_bytes(24))


def sender_id(number: int) -> bytes:
    return (number | SENDER_BIT).to_bytes(24)


def make_associations(folder: Path, count: int) -> ServiceCredentials:
    """A service with so many queues in the folder of a router that does not run."""
    credentials = make_service_credentials(datetime.now(UTC))
    key = public_key_of(KeyKind.ED25519, QUEUE_KEY.raw).encoded
    records = SqliteRecords.open(str(folder), DiskFiles())
    records.create_service(
        ServiceRecord(SERVICE_ID, ServiceRole.MESSAGING, credentials.chain, credentials.fingerprint)
    )
    for number in range(count):
        records.create_queue(
            QueueRecord(
                recipient_id(number),
                (key,),
                bytes(32),
                sender_id(number),
                QueueMode.MESSAGING,
                service_id=SERVICE_ID,
            )
        )
        if number % 2_000 == 0:
            commit(records)
    commit(records)
    records.close()
    return credentials


# ------------------------------------------------------------------------------------- kill -9


async def send_until_killed(
    link: SmpLink, queue: NewQueue, accepted: list[bytes], has_enough: asyncio.Event
) -> None:
    """What the router said OK to is in `accepted`, in order."""
    for number in range(30_000):
        body = number.to_bytes(8)
        try:
            await queues.send(link, queue.sender_id, body)
        except LinkError:
            return
        accepted.append(body)
        if number == 50:
            has_enough.set()


async def drain(link: SmpLink, queue: NewQueue) -> list[bytes]:
    """All messages of the queue, acknowledged one by one."""
    found: list[bytes] = []
    while (message := await queues.get(link, queue)) is not None:
        assert isinstance(message.content, ReceivedMessage)
        found.append(message.content.body)
        await queues.acknowledge(link, queue, message.message_id)
    return found


async def test_what_was_accepted_survives_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made: list[NewQueue] = []
    accepted: list[list[bytes]] = []
    has_enough = asyncio.Event()
    with running(folder, SYNCLINE_SMP_QUOTA="32767") as router:
        reading, sending = (
            await SmpLink.connect(address_of(router)),
            await SmpLink.connect(address_of(router)),
        )
        for _ in range(8):
            made.append(await queues.create(reading, subscribes=False))
            accepted.append([])
        storm = [
            asyncio.create_task(send_until_killed(sending, queue, each, has_enough))
            for queue, each in zip(made, accepted, strict=True)
        ]
        await asyncio.wait_for(has_enough.wait(), WAIT_SECONDS)
        router.kill()
        await asyncio.gather(*storm)
        await reading.close()
        await sending.close()
    assert all(accepted)
    with running(folder) as router:
        async with linked(router) as link:
            for queue, expected in zip(made, accepted, strict=True):
                found = await drain(link, queue)
                # The one whose answer was lost may be there as well.
                assert found[: len(expected)] == expected
                assert len(found) <= len(expected) + 1


async def test_what_was_acknowledged_does_not_come_back_after_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder) as router:
        async with linked(router) as link:
            queue = await queues.create(link, subscribes=False)
            for number in range(3):
                await queues.send(link, queue.sender_id, bytes((number,)))
            first = await queues.get(link, queue)
            assert first is not None
            await queues.acknowledge(link, queue, first.message_id)
        assert router.stop() == 0
    with running(folder) as router:
        async with linked(router) as link:
            assert await drain(link, queue) == [b"\x01", b"\x02"]


# ------------------------------------------------------------------------------------ services


async def test_a_hundred_thousand_queues_with_a_storm_during_the_fold(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder):
        # It makes the folder.
        pass
    count, before, during = 100_000, 300, 300
    credentials = make_associations(folder, count)
    with running(folder) as router:
        async with linked(router) as sending, linked(router, credentials) as reading:
            step = count // before
            waiting = [Request(Send(b"F", b"before"), sender_id(n * step)) for n in range(before)]
            assert all(isinstance(each, Ok) for each in await sending.request_many(waiting))
            arriving = [
                Request(Send(b"F", b"during"), sender_id(n * step + 1)) for n in range(during)
            ]
            soks, sent = await asyncio.gather(bulk(reading, count), sending.request_many(arriving))
            assert all(isinstance(each, Ok) for each in sent)
            assert soks.count == count
            expected = {recipient_id(n * step) for n in range(before)}
            expected |= {recipient_id(n * step + 1) for n in range(during)}
            got: list[bytes] = []
            has_all = False
            waited_for = {recipient_id(n * step) for n in range(before)}
            while not has_all or len(got) < len(expected):
                event = await event_of(reading)
                if isinstance(event.message, Alls):
                    has_all = True
                    assert waited_for <= set(got), "ALLS came before something that waited"
                else:
                    assert isinstance(event.message, Msg)
                    got.append(event.entity_id)
            assert len(got) == len(set(got)), "something was delivered twice"
            assert set(got) == expected


async def test_another_session_of_the_service_takes_over_in_the_middle_of_the_fold(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with running(folder):
        pass
    count = 3_000
    credentials = make_associations(folder, count)
    with running(folder) as router:
        async with (
            linked(router) as sending,
            linked(router, credentials) as first,
            linked(router, credentials) as second,
        ):
            requests = [Request(Send(b"F", b"x"), sender_id(n)) for n in range(count)]
            for start in range(0, count, 1_000):
                outcomes = await sending.request_many(requests[start : start + 1_000])
                assert all(isinstance(each, Ok) for each in outcomes)
            await bulk(first)
            await event_of(first)
            await bulk(second)
            seen_by_first: list[object] = []
            while not isinstance((event := await event_of(first)).message, Ends):
                seen_by_first.append(event.message)
            assert isinstance(event.message, Ends)
            assert event.message.count == count
            assert not any(isinstance(each, Alls) for each in seen_by_first)
            got: set[bytes] = set()
            while not isinstance((event := await event_of(second)).message, Alls):
                assert event.entity_id not in got
                got.add(event.entity_id)
            assert len(got) == count
            # Nothing comes after ENDS, and the session may still take the service back.
            assert not first.take_events()
            assert (await bulk(first)).count == count


async def test_an_operator_sees_blocks_and_deletes(tmp_path: Path) -> None:
    credentials = make_service_credentials(datetime.now(UTC))
    with running(tmp_path / "data") as router:
        async with linked(router, credentials) as link:
            kept, gone = await queues.create(link), await queues.create(link)
            api = router.client
            (line,) = api.get("/api/services").json()["services"]
            assert (line["count"], line["role"]) == (2, "messaging")
            assert api.get("/api/smp").json()["sessions"] == 1
            kept_id, gone_id = str(StreamId(kept.recipient_id)), str(StreamId(gone.recipient_id))
            answer = api.post(f"/api/smp/queues/{kept_id}/block", json={"reason": "spam"})
            assert answer.json()["status"] == "blocked"
            event = await event_of(link)
            assert event.entity_id == kept.recipient_id
            assert isinstance(event.message, Err)
            assert event.message.failure.code == "BLOCKED"
            with pytest.raises(FailureError, match="BLOCKED"):
                await queues.send(link, kept.sender_id, b"refused")
            assert api.delete(f"/api/smp/queues/{gone_id}").status_code == 204
            event = await event_of(link)
            assert (event.entity_id, type(event.message)) == (gone.recipient_id, Deld)
            assert api.post(f"/api/smp/queues/{kept_id}/unblock").json()["status"] == "active"
            await queues.send(link, kept.sender_id, b"taken again")
            event = await event_of(link)
            assert isinstance(event.message, Msg)
            (line,) = api.get("/api/services").json()["services"]
            assert line["count"] == 1
            metrics = api.get("/metrics").text
            assert "syncline_smp_associations 1.0" in metrics
            assert 'syncline_smp_queue_changes_total{change="blocked"} 1.0' in metrics


async def test_a_rotated_certificate_keeps_the_associations(tmp_path: Path) -> None:
    old, new = (make_service_credentials(datetime.now(UTC)) for _ in range(2))
    with running(tmp_path / "data") as router:
        async with linked(router, old) as link:
            queue = await queues.create(link)
            service_id = link.service.service_id if link.service else b""
        listed = run_cli("service", "list", "--url", router.url, "--json")
        assert listed.returncode == 0, listed.stderr
        pem = tmp_path / "new.pem"
        pem.write_text(DER_cert_to_PEM_cert(new.chain[0]))
        text = str(StreamId(service_id))
        done = run_cli("service", "rotate", text, "--certificate", pem, "--url", router.url)
        assert done.returncode == 0, done.stderr
        async with linked(router, new) as link:
            assert link.service is not None
            assert link.service.service_id == service_id
            assert (await bulk(link)).count == 1
        # The old certificate is nobody now: a service of its own, with nothing.
        async with linked(router, old) as link:
            assert link.service is not None
            assert link.service.service_id != service_id
            assert (await bulk(link)).count == 0
        done = run_cli("service", "delete", text, "--yes", "--url", router.url)
        assert done.returncode == 0, done.stderr
        # Its queue is left, and belongs to nobody.
        async with linked(router) as link:
            answer = await link.request(Sub(), queue.recipient_id, queue.key)
            assert answer == Sok(None)


async def test_an_operator_closes_a_session(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        async with linked(router) as link:
            await queues.create(link)
            (line,) = router.client.get("/api/smp/sessions").json()["sessions"]
            assert "remote" not in line
            answer = router.client.delete(f"/api/smp/sessions/{line['session']}")
            assert answer.status_code == 204
            with pytest.raises(LinkError):
                await event_of(link)
            assert router.client.delete("/api/smp/sessions/999999").status_code == 404


# --------------------------------------------------------------------------------- certificates


async def test_a_renewed_leaf_keeps_the_address_and_a_rotated_identity_does_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    port = "0"
    with running(folder, SYNCLINE_SMP_PORT=port) as router:
        before = address_of(router)
    assert run_cli("certificate", "renew", "--data", folder).returncode == 0
    with running(folder) as router:
        renewed = address_of(router)
        assert renewed.fingerprint == before.fingerprint
        async with linked(router) as link:
            await queues.create(link)
    refused = run_cli("certificate", "rotate", "--data", folder)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert run_cli("certificate", "rotate", "--yes", "--data", folder).returncode == 0
    with running(folder) as router:
        assert address_of(router).fingerprint != before.fingerprint


async def test_a_password_is_needed_where_one_is_set(tmp_path: Path) -> None:
    password = secrets.token_hex(8)
    with running(tmp_path / "data", SYNCLINE_SMP_CREATE_PASSWORD=password) as router:
        async with linked(router) as link:
            with pytest.raises(FailureError, match="AUTH"):
                await queues.create(link)
            await queues.create(link, password=password)
        assert password not in router.errors.read_text()


async def test_two_routers_do_not_share_a_port_and_say_so(tmp_path: Path) -> None:
    with running(tmp_path / "one") as router:
        port = str(address_of(router).port)
        second = run_cli("serve", "--data", tmp_path / "two", "--port", "0", "--smp-port", port)
        assert second.returncode == 2
        assert "--smp-port" in second.stderr


# -------------------------------------------------------------------------------------- backups


@pytest.mark.parametrize("is_hot", [True, False])
async def test_a_restored_router_has_its_address_its_queues_and_its_services(
    tmp_path: Path, is_hot: bool
) -> None:
    folder, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    credentials = make_service_credentials(datetime.now(UTC))
    with running(folder) as router:
        address = address_of(router)
        async with linked(router, credentials) as link:
            queue = await queues.create(link)
        async with linked(router) as link:
            await queues.send(link, queue.sender_id, b"kept")
        if is_hot:
            done = run_cli("backup", "--url", router.url, copy)
            assert done.returncode == 0, done.stderr
    if not is_hot:
        done = run_cli("backup", copy, "--data", folder)
        assert done.returncode == 0, done.stderr
    done = run_cli("restore", copy, restored)
    assert done.returncode == 0, done.stderr
    with running(restored) as router:
        assert address_of(router).fingerprint == address.fingerprint
        async with linked(router, credentials) as link:
            assert (await bulk(link)).count == 1
            event = await event_of(link)
            assert event.entity_id == queue.recipient_id
            assert isinstance(event.message, Msg)
            content = queues.opened(queue, event.message).content
            assert isinstance(content, ReceivedMessage)
            assert content.body == b"kept"
