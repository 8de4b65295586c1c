"""`syncline queue`: two people talk through a real router.

All verbs but those that stay run in this process: starting one takes longer than the verb.
"""

import json
import signal
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from syncline.cli import smp_queues
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.queue_uris import QueueUri
from syncline.errors import (
    ConfigError,
    LinkLostError,
    MalformedMessageError,
    NotAuthorizedError,
    QueueExistsError,
    RefusedError,
    SynclineError,
    UnknownQueueError,
)
from syncline.links.smp_link import LinkOptions, SmpLink
from syncline.values.ids import StreamId
from syncline.wire.smp.addresses import RouterAddress
from tests.e2e.router_process import COMMAND, RouterProcess, environment, running

WAIT_S = 30.0

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with running(tmp_path_factory.mktemp("smp") / "data") as router:
        yield router


def invoke(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(smp_queues.app, [*arguments, "--store", str(store)])


def verb(store: Path, *arguments: str) -> str:
    """What it prints."""
    result = invoke(store, *arguments)
    assert result.exception is None, result.exception
    return result.stdout


def refusal(store: Path, *arguments: str) -> SynclineError:
    error = invoke(store, *arguments).exception
    assert isinstance(error, SynclineError), error
    return error


def following(store: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "queue", "receive", "inbox", "--follow", "--store", str(store), *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def ann(tmp_path: Path) -> Path:
    return tmp_path / "ann.sqlite"


@pytest.fixture
def bob(tmp_path: Path) -> Path:
    return tmp_path / "bob.sqlite"


@pytest.fixture
def address(ann: Path, router: RouterProcess) -> str:
    """Of a queue of Ann's."""
    return verb(ann, "create", "inbox", "--router", router.announcement["smp"]).strip()


def test_two_terminals_talk(ann: Path, bob: Path, address: str) -> None:
    with following(ann, "--count", "2", "--json") as reader:
        for text in ("hello", "\x1b[31mred"):
            assert verb(bob, "send", address, text) == "stored\n"
            assert reader.stdout is not None
            assert json.loads(reader.stdout.readline())["text"] == text
        assert reader.wait(WAIT_S) == 0


def test_message_is_sent_through_a_proxy(
    ann: Path, bob: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[RouterAddress] = []
    connect = SmpLink.connect

    async def note_and_connect(address: RouterAddress, options: LinkOptions) -> SmpLink:
        connected.append(address)
        return await connect(address, options)

    with running(tmp_path / "proxy", "--set", "smp.create_password=secret") as proxy:
        smp = RouterAddress.parse(proxy.announcement["smp"])
        with_password = replace(smp, password="secret")
        monkeypatch.setattr(SmpLink, "connect", note_and_connect)
        assert (
            verb(bob, "send", address, "hello", "--proxy", with_password.full_text()) == "stored\n"
        )
        assert connected == [with_password]
        wrong = replace(smp, password="other").full_text()
        refused = refusal(bob, "send", address, "hello", "--proxy", wrong)
        assert isinstance(refused, NotAuthorizedError)
        assert "password" in str(refused)
    monkeypatch.undo()
    assert verb(ann, "receive", "inbox").endswith(" hello\n")


def test_reader_that_waits_ends_with_ctrl_c(ann: Path, bob: Path, address: str) -> None:
    with following(ann) as reader:
        verb(bob, "send", address, "hello")
        assert reader.stdout is not None
        assert reader.stdout.readline().endswith(" hello\n")
        reader.send_signal(signal.SIGINT)
        assert reader.communicate(timeout=WAIT_S) == ("", "")
        assert reader.returncode == 130


def test_messages_wait_until_they_are_fetched(ann: Path, bob: Path, address: str) -> None:
    assert verb(ann, "address", "inbox").strip() == address
    assert ann.stat().st_mode & 0o777 == 0o600
    for text in ("one", "two", "\x1b[31mred", ""):
        verb(bob, "send", address, text)
    first = json.loads(verb(ann, "receive", "inbox", "--count", "1", "--json"))
    assert (first["queue"], first["text"]) == ("inbox", "one")
    rest = verb(ann, "receive", "inbox").splitlines()
    # Nothing that a terminal would obey.
    assert [line.split(" ", 1)[1] for line in rest] == ["two", r"\u001b[31mred", ""]
    assert verb(ann, "receive", "inbox") == ""


def test_queue_is_for_the_first_who_sends(
    ann: Path, bob: Path, address: str, tmp_path: Path
) -> None:
    verb(bob, "send", address, "hello")
    intruder = refusal(tmp_path / "eve.sqlite", "send", address, "hi")
    assert isinstance(intruder, NotAuthorizedError)
    verb(bob, "send", address, "again")


def test_anybody_writes_to_a_contact_address(
    ann: Path, bob: Path, router: RouterProcess, tmp_path: Path
) -> None:
    smp = router.announcement["smp"]
    facts = json.loads(verb(ann, "create", "door", "--router", smp, "--contact", "--json"))
    for store in (bob, tmp_path / "eve.sqlite"):
        verb(store, "send", facts["address"], store.stem)
    found = verb(ann, "receive", "door", "--json").splitlines()
    assert [json.loads(line)["text"] for line in found] == ["bob", "eve"]
    assert [json.loads(verb(ann, "list", "--json"))["queues"]] == [[facts]]


def test_deleted_queue_is_gone_for_both(ann: Path, bob: Path, address: str) -> None:
    assert isinstance(refusal(ann, "delete", "inbox"), RefusedError)
    assert verb(ann, "delete", "inbox", "--yes") == "deleted inbox\n"
    assert isinstance(refusal(bob, "send", address, "late"), NotAuthorizedError)
    assert isinstance(refusal(ann, "receive", "inbox"), UnknownQueueError)
    assert "queues: 0" in verb(ann, "list")


def test_queue_that_the_router_lost_is_told_and_can_be_deleted(ann: Path, tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        verb(ann, "create", "inbox", "--router", router.announcement["smp"])
        [facts] = json.loads(verb(ann, "list", "--json"))["queues"]
        assert facts["router"] == router.announcement["smp"]
        with closing(AgentStore(ann)) as store:
            queue = store.queue_named(store.user("me"), "inbox")
        assert queue is not None
        queue_id = urlsafe_b64encode(queue.recipient_id).decode()
        assert router.client.delete(f"/api/smp/queues/{queue_id}").status_code == 204
        lost = refusal(ann, "receive", "inbox")
        assert isinstance(lost, NotAuthorizedError)
        assert "does not know the queue" in str(lost)
        verb(ann, "delete", "inbox", "--yes")
    assert isinstance(refusal(ann, "create", "inbox", "--router", facts["router"]), LinkLostError)


def test_queue_that_takes_nothing_now_says_why(
    ann: Path, bob: Path, address: str, router: RouterProcess
) -> None:
    queue = StreamId(QueueUri.parse(address).sender_id)
    router.client.post(f"/api/smp/queues/{queue}/block", json={"reason": "spam"})
    for store, words in ((bob, ["send", address, "hello"]), (ann, ["receive", "inbox"])):
        assert "blocked by whoever runs the router (spam)" in str(refusal(store, *words))
    router.client.post(f"/api/smp/queues/{queue}/unblock")
    assert verb(bob, "send", address, "hello") == "stored\n"


def test_full_queue_is_told_as_such(ann: Path, bob: Path, tmp_path: Path) -> None:
    with running(tmp_path / "data", SYNCLINE_SMP_QUOTA="1") as router:
        address = verb(ann, "create", "small", "--router", router.announcement["smp"]).strip()
        assert verb(bob, "send", address, "one") == "stored\n"
        assert "the queue is full" in str(refusal(bob, "send", address, "two"))


def test_mistakes_are_told(ann: Path, address: str, router: RouterProcess, tmp_path: Path) -> None:
    smp = router.announcement["smp"]
    (tmp_path / "folder").mkdir()
    found = [
        refusal(ann, "create", "inbox", "--router", smp),
        refusal(ann, "create", "other", "--router", "smp://x"),
        refusal(ann, "send", "smp://x", "text"),
        refusal(ann, "send", address, "x" * 20_000),
        refusal(tmp_path / "folder", "list"),
    ]
    assert [type(error) for error in found] == [
        QueueExistsError,
        MalformedMessageError,
        MalformedMessageError,
        type(found[3]),
        ConfigError,
    ]
    assert "the limit is" in str(found[3])


def test_second_reader_of_a_queue_ends_the_first(ann: Path, bob: Path, address: str) -> None:
    with following(ann) as first:
        verb(bob, "send", address, "hello")
        assert first.stdout is not None
        assert first.stdout.readline().endswith(" hello\n")
        with following(ann) as second:
            _, errors = first.communicate(timeout=WAIT_S)
            assert first.returncode == 2
            assert "another program reads this queue" in errors
            second.terminate()
            second.communicate(timeout=WAIT_S)
