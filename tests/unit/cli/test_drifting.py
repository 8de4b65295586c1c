"""`syncline drift`: what it says, and what it leaves alone."""

import asyncio
import json
import os
import sqlite3
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from syncline.certificates import ServiceCredentials, SigningKey
from syncline.cli import drift_agents, drifting
from syncline.cli.drift_output import Compared, Report, Verdict, tell
from syncline.cli.output import Output
from syncline.client.smp.agent_records import Account, StoredNotifier, StoredQueue
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.linking import Connect
from syncline.core.reconciliation.initiator import Mode
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import Snapshot, state_of
from syncline.errors import (
    ConfigError,
    ForeignFolderError,
    LinkLostError,
    RefusedError,
    ServiceMismatchError,
    SynclineError,
)
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_link import Outcome, Request
from syncline.links.smp_session import LinkService
from syncline.storage.drift.comparing import Comparison
from syncline.storage.files import DiskFiles
from syncline.storage.folder import LOCK_NAME
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values import reconciliation
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.values.reconciliation import SetState
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Bus, Command, Nsubs, Subs
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import RouterMessage, Sok, Soks
from tests.reconciliation import random_ids
from tests.storage.records.under_test import queue, queue_id, service, service_id

IDS = sorted(random_ids(Random(1), 60))
TEXTS = [urlsafe_b64encode(each).decode() for each in IDS]


def run(*arguments: str | Path) -> tuple[int, str]:
    """Its exit code, and what it prints."""
    result = CliRunner().invoke(drifting.app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def facts(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code, printed = run(*arguments, "--json")
    return code, cast("dict[str, Any]", json.loads(printed))


# ------------------------------------------------------------------------------------------- files


@pytest.fixture
def first(tmp_path: Path) -> Path:
    path = tmp_path / "first.ids"
    path.write_text("\n".join(TEXTS[:50]) + "\n")
    return path


@pytest.fixture
def second(tmp_path: Path) -> Path:
    path = tmp_path / "second.ids"
    path.write_text("# of today\n" + "\n".join(each.hex() for each in IDS[3:55]) + "\n")
    return path


def test_equal_files_end_with_nothing_to_do(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"".join(reversed(IDS[:50])))
    code, found = facts("check", first, other)
    assert (code, found["verdict"], found["kind"]) == (0, "equal", "files")
    [row] = found["compared"]
    assert (row["equal"], row["round_trips"], row["only_first"], row["only_second"]) == (
        True,
        0,
        0,
        0,
    )
    assert row["first_set"] == row["second_set"]
    code, printed = run("check", first, other)
    assert code == 0
    assert "the sets are equal" in printed
    assert "50 and 50" in printed


@pytest.mark.parametrize("mode", Mode)
def test_files_that_differ_are_told_in_both_directions(
    first: Path, second: Path, mode: Mode
) -> None:
    code, found = facts("check", first, second, "--list", "4", "--mode", mode.value)
    assert (code, found["verdict"], found["mode"]) == (1, "drift", mode.value)
    [row] = found["compared"]
    assert (row["only_first"], row["only_first_ids"]) == (3, TEXTS[:3])
    # As many as were asked for.
    assert (row["only_second"], row["only_second_ids"]) == (5, TEXTS[50:54])
    assert row["round_trips"] >= 1
    assert row["asked_bytes"] > 0
    assert row["answered_bytes"] > 0
    assert [each["form"] for each in found["files"]] == ["base64url", "hex"]


def test_people_are_told_what_was_compared_and_what_to_do(first: Path, second: Path) -> None:
    code, printed = run("check", first, second, "--list", "1")
    assert code == 1
    words = " ".join(printed.split())
    assert f"compared {first} with {second}" in words
    assert "ids 50 and 52" in words
    assert "digests differ" in words
    assert f"only in the first 3: {TEXTS[0]} …" in words
    assert f"only in the second 5: {TEXTS[50]} …" in words
    assert "round trip" in words
    assert f"`syncline drift repair {first} {second}`" in words
    words = " ".join(run("check", first, second, "-n", "0")[1].split())
    assert "only in the first 3 only in the second 5 took" in words


def test_lines_that_are_no_ids_are_told_and_end_with_one(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ids"
    other.write_text("\n".join([*TEXTS[:50], "no id", TEXTS[7]]))
    code, found = facts("check", first, other)
    # What could be read is equal.
    assert (code, found["verdict"]) == (1, "equal")
    file = found["files"][1]
    assert (file["malformed"], file["duplicates"]) == (1, 1)
    assert file["malformed_lines"][0]["line"] == 51
    assert file["duplicate_lines"] == [{"line": 52, "first_line": 8, "id": TEXTS[7]}]
    code, printed = run("check", first, other)
    assert code == 1
    assert f"{other}, line 51: no id is no id" in printed
    assert f"{other}, line 52: the same id as in line 8" in printed


def test_a_file_is_made_like_the_first(first: Path, second: Path) -> None:
    second.chmod(0o640)
    code, found = facts("repair", first, second)
    [row] = found["compared"]
    assert (code, found["verdict"]) == (0, "equal")
    assert row["repair"]["done"] == {"added": 3, "removed": 5}
    assert row["repair"]["left"]["equal"]
    # In the way it was written, for those who could read it.
    assert second.read_text() == "".join(each.hex() + "\n" for each in IDS[:50])
    assert second.stat().st_mode & 0o777 == 0o640
    assert run("check", first, second)[0] == 0


def test_a_dry_run_changes_nothing(first: Path, second: Path) -> None:
    before = second.read_bytes()
    code, found = facts("repair", first, second, "--dry-run")
    assert (code, found["verdict"]) == (1, "drift")
    assert found["compared"][0]["repair"]["dry_run"]
    assert found["compared"][0]["repair"]["done"] == {"added": 3, "removed": 5}
    assert second.read_bytes() == before
    assert "would be added: 3, removed: 5" in " ".join(
        run("repair", first, second, "--dry-run")[1].split()
    )
    second.write_text("\n".join(TEXTS[:50]))
    assert run("repair", first, second, "--dry-run")[0] == 0


def test_the_set_can_be_written_elsewhere(first: Path, second: Path, tmp_path: Path) -> None:
    before = second.read_bytes()
    target = tmp_path / "target.bin"
    assert run("repair", first, second, "--output", target)[0] == 0
    assert target.read_bytes() == b"".join(IDS[:50])
    assert second.read_bytes() == before


def test_a_link_stays_a_link(first: Path, second: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.ids"
    link.symlink_to(second)
    assert run("repair", first, link)[0] == 0
    assert link.is_symlink()
    assert run("check", first, second)[0] == 0


def test_what_is_no_id_is_not_written_over(first: Path, second: Path, tmp_path: Path) -> None:
    second.write_text(f"{TEXTS[0]}\nDear diary\n")
    with pytest.raises(ConfigError, match=r"1 lines that are no ids \(line 2\)"):
        run("repair", first, second)
    assert second.read_text() == f"{TEXTS[0]}\nDear diary\n"
    target = tmp_path / "target.ids"
    assert run("repair", first, second, "--output", target)[0] == 0
    # A set that is not known cannot be written anywhere.
    with pytest.raises(ConfigError, match="its set is not known"):
        run("repair", second, first, "--output", target)


def test_what_cannot_be_compared_is_told(first: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    empty = tmp_path / "empty"
    empty.mkdir()
    mistakes: list[tuple[type[SynclineError], str, tuple[str | Path, ...]]] = [
        (ConfigError, "nothing to compare", ("check", first)),
        (ConfigError, "there is no", ("check", first, tmp_path / "none")),
        (ConfigError, "compare two of a kind", ("check", first, tmp_path)),
        (ConfigError, "compare two of a kind", ("check", tmp_path, first)),
        (ConfigError, "can be read twice", ("check", first, pipe)),
        (ForeignFolderError, "holds no store", ("check", empty, empty)),
        (ConfigError, "for files", ("repair", empty, empty, "--output", first)),
        (ConfigError, "for files", ("repair", "--output", first)),
        (ConfigError, "no store", ("check", "--store", tmp_path / "none")),
        (ConfigError, "no store", ("check", "--store", tmp_path)),
    ]
    for kind, text, arguments in mistakes:
        with pytest.raises(kind, match=text):
            run(*arguments)
    assert not (tmp_path / "none").exists()


# ----------------------------------------------------------------------------------------- folders


def folder_with(folder: Path, associated: Sequence[int], count: int = 6) -> Path:
    """A data folder with queues, of which some belong to a service."""
    files, options = DiskFiles(), StoreOptions()
    open_store("log", str(folder), files, options, now_ms=1, random_bytes=os.urandom).close()
    with closing(SqliteRecords.open(str(folder), files)) as records:
        records.create_service(service(1))
        for number in range(count):
            owner = service_id(1) if number in associated else None
            records.create_queue(queue(number, service_id=owner))
        commit(records)
    return folder


def text_of(number: int) -> str:
    return str(queue_id(number))


def test_folders_are_compared_and_repaired(tmp_path: Path) -> None:
    backup = folder_with(tmp_path / "backup", range(6))
    data = folder_with(tmp_path / "data", [0, 1, 2, 3], count=5)
    code, found = facts("check", backup, data)
    [row] = found["compared"]
    assert (code, found["kind"], row["role"]) == (1, "folders", "messaging")
    assert set(row["only_first_ids"]) == {text_of(4), text_of(5)}
    code, found = facts("repair", backup, data, "--dry-run")
    assert code == 1
    assert found["compared"][0]["repair"]["done"]["associated"] == 1
    assert facts("check", backup, data)[1]["compared"][0]["only_first"] == 2
    code, found = facts("repair", backup, data)
    # One queue does not exist there.
    repair = found["compared"][0]["repair"]
    assert (code, repair["done"]["associated"], repair["unrepaired_ids"]) == (1, 1, [text_of(5)])
    assert repair["left"]["only_first_ids"] == [text_of(5)]
    code, printed = run("repair", backup, data)
    words = " ".join(printed.split())
    assert (code, f"cannot be repaired 1: {text_of(5)}" in words) == (1, True)
    assert "1 queues do not exist in the second folder" in words
    # The other way round nothing is in the way.
    code, printed = run("repair", data, backup)
    assert (code, "the sets are equal" in printed) == (0, True)
    assert run("check", backup, data)[0] == 0


def test_a_folder_in_use_is_compared_and_not_repaired(tmp_path: Path) -> None:
    backup = folder_with(tmp_path / "backup", [0])
    data = folder_with(tmp_path / "data", [1])
    lock = DiskFiles().lock(str(data / LOCK_NAME))
    try:
        code, found = facts("check", backup, data)
        assert (code, found["compared"][0]["only_first"]) == (1, 1)
        assert "a router works on" in found["notes"][0]
        with pytest.raises(RefusedError, match=r"is in use by another router .*`drift check`"):
            run("repair", backup, data)
        # The first is only looked at.
        assert run("repair", data, backup)[0] == 0
    finally:
        lock.release()
    with pytest.raises(ConfigError, match="the same folder"):
        run("repair", data, data)


def test_what_is_wrong_in_the_first_folder_stays_and_is_told(tmp_path: Path) -> None:
    first = folder_with(tmp_path / "first", [0])
    second = folder_with(tmp_path / "second", [1])
    with closing(sqlite3.connect(first / "records.sqlite")) as connection:
        connection.execute("UPDATE digests SET count = 7")
        connection.commit()
    wrong = "the digest in the first folder is not that of its ids"
    code, found = facts("check", first, second)
    assert (code, found["compared"][0]["troubles"]) == (1, [wrong])
    code, found = facts("repair", first, second)
    repair = found["compared"][0]["repair"]
    assert (code, repair["left"]["equal"], repair["reasons"]) == (1, True, [wrong])


def test_a_backup_is_not_changed(tmp_path: Path) -> None:
    backup = folder_with(tmp_path / "backup", [0])
    data = folder_with(tmp_path / "data", [1])
    (backup / "BACKUP.json").write_text("{}")
    with pytest.raises(ConfigError, match="`syncline restore`"):
        run("repair", data, backup)
    assert run("check", data, backup)[0] == 1
    assert run("repair", backup, data)[0] == 0


def test_of_many_services_those_that_differ_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    empty = SetState(0, 0, bytes(16), bytes(16))
    one = SetState(0, 1, IDS[0][:16], IDS[0][:16])
    rows = [
        Compared(f"service {n}", {"service": str(n)}, Comparison(empty, empty)) for n in range(9)
    ]
    rows += [
        Compared(f"drifted {n}", {}, Comparison(one, empty, only_first=IDS[0])) for n in range(22)
    ]
    report = Report("folders", "a", "b", Mode.SKETCH, rows)
    tell(Output(is_json=False), report, 1)
    printed = capsys.readouterr().out
    assert "drifted 0" in printed
    assert "drifted 20" not in printed
    assert "and 2 more" in printed
    assert "service 0" not in printed
    assert "9 others are equal" in printed
    assert report.exit_code == 1


# ------------------------------------------------------------------------------------------ agents

KEY = PrivateKey(KeyKind.ED25519, b"k" * 32)
CREDENTIALS = ServiceCredentials((b"leaf", b"root"), SigningKey(KeyKind.ED25519, b"p" * 32))
ROUTER = RouterAddress(b"f" * 32, ("one.example",), 5223, "secret")
OTHER_ROUTER = RouterAddress(b"g" * 32, ("two.example",), 5223)
SERVICE = IDS[-1]


@dataclass
class FakeRouter:
    """Has a set of its own, and answers about it."""

    ids: set[bytes]
    is_extended: bool = True
    service_id: bytes | None = SERVICE
    # Queues that it does not know.
    unknown: set[bytes] = field(default_factory=set[bytes])
    commands: list[Command] = field(default_factory=list[Command])
    is_closed: bool = False
    failure: Exception | None = None

    @property
    def version(self) -> int:
        return 0x7FFF if self.is_extended else 20

    @property
    def session_id(self) -> bytes:
        return b"session"

    @property
    def service(self) -> LinkService | None:
        if self.service_id is None:
            return None
        return LinkService(self.service_id, ServiceRole.MESSAGING, KEY, bytes(32))

    async def ask(self, question: reconciliation.Request) -> reconciliation.Answer:
        return Responder(Snapshot(b"".join(self.ids)), b"saltsalt").answer(question)

    async def request(self, command: Command, entity_id: bytes = b"") -> RouterMessage:
        assert entity_id == self.service_id
        self.commands.append(command)
        if isinstance(command, Bus):
            self.ids -= set(command.ids)
            return Soks(len(self.ids), None, state_of(Snapshot(b"".join(self.ids))))
        assert isinstance(command, Subs | Nsubs)
        # A hash that is right says that the count decides.
        return Soks(len(self.ids), command.ids_hash)

    async def request_many(self, requests: Sequence[Request]) -> list[Outcome]:
        found: list[Outcome] = []
        for request in requests:
            self.commands.append(request.command)
            if request.entity_id in self.unknown:
                found.append(FailureError(failures.AUTH))
            else:
                self.ids.add(request.entity_id)
                found.append(Sok(self.service_id))
        return found

    async def close(self) -> None:
        self.is_closed = True

    def connect(self) -> Connect:
        async def connect(address: RouterAddress, service: object) -> "FakeRouter":
            assert service is not None
            if self.failure is not None:
                raise self.failure
            return self

        return cast("Connect", connect)


def add_account(
    store: AgentStore, user: str, address: RouterAddress, ids: Sequence[bytes]
) -> Account:
    account = Account(store.user(user), store.server(address))
    store.save_credentials(account, CREDENTIALS)
    store.save_service_id(account, SERVICE)
    for each in ids:
        store.add_queue(
            StoredQueue(
                account,
                each.hex(),
                each,
                bytes(24),
                QueueMode.MESSAGING,
                KEY,
                b"s" * 32,
                is_associated=True,
            )
        )
    return account


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with twenty queues of one service."""
    path = tmp_path / "agent.sqlite"
    with closing(AgentStore(path)) as store:
        add_account(store, "me", ROUTER, IDS[:20])
    return path


QUIET = Output(is_json=True)


def checked(
    path: Path,
    router: FakeRouter,
    user: str | None = None,
    server: str | None = None,
    *,
    subscribes: bool = False,
    mode: Mode = Mode.SKETCH,
) -> Report:
    return asyncio.run(
        drift_agents.check(
            QUIET, path, user, server, mode, subscribes=subscribes, connect=router.connect()
        )
    )


def repaired(
    path: Path, router: FakeRouter, *, subscribes: bool = False, is_dry: bool = False
) -> Report:
    return asyncio.run(
        drift_agents.repair(
            QUIET,
            path,
            None,
            None,
            Mode.SKETCH,
            subscribes=subscribes,
            is_dry=is_dry,
            connect=router.connect(),
        )
    )


@pytest.mark.parametrize("mode", Mode)
def test_a_store_is_compared_without_any_command(path: Path, mode: Mode) -> None:
    router = FakeRouter(set(IDS[2:23]))
    report = checked(path, router, mode=mode)
    [found] = report.compared
    comparison = found.comparison
    assert comparison is not None
    assert (comparison.only_first, comparison.only_second) == (
        b"".join(IDS[:2]),
        b"".join(IDS[20:23]),
    )
    assert (report.verdict, report.exit_code) == (Verdict.DRIFT, 1)
    assert (router.commands, router.is_closed) == ([], True)
    assert checked(path, FakeRouter(set(IDS[:20]))).exit_code == 0


def test_a_store_is_repaired_if_no_agent_is_in_the_way(path: Path) -> None:
    router = FakeRouter(set(IDS[2:23]))
    with closing(AgentStore(path)) as store:
        [account] = store.accounts()
        # An answer was lost, and something is not wanted any more.
        store.dissociate(account, [IDS[2]])
    with pytest.raises(ConfigError, match="stop the agent"):
        repaired(path, router)
    assert router.commands == []
    planned = repaired(path, router, is_dry=True)
    assert (planned.exit_code, router.commands) == (1, [])
    assert planned.compared[0].repaired is not None
    expected = {
        "associated_at_the_router": 2,
        "let_go_of_at_the_router": 3,
        "associated_in_the_store": 1,
        "let_go_of_in_the_store": 0,
    }
    assert planned.compared[0].repaired.done == expected
    report = repaired(path, router, subscribes=True)
    done = report.compared[0].repaired
    assert done is not None
    assert {name: done.done[name] for name in expected} == expected
    assert (report.verdict, report.exit_code) == (Verdict.EQUAL, 0)
    assert router.ids == set(IDS[:20])
    assert checked(path, router).exit_code == 0


def test_a_store_without_drift_is_left_alone(path: Path) -> None:
    router = FakeRouter(set(IDS[:20]))
    report = repaired(path, router)
    assert (report.exit_code, router.commands) == (0, [])


def test_what_the_router_does_not_know_is_dissociated(path: Path) -> None:
    router = FakeRouter(set(IDS[2:20]), unknown={IDS[0]})
    report = repaired(path, router, subscribes=True)
    done = report.compared[0].repaired
    assert done is not None
    assert (done.done["associated_at_the_router"], done.done["refused_by_the_router"]) == (1, 1)
    assert report.exit_code == 0


def test_a_plain_router_is_not_subscribed_unasked(path: Path) -> None:
    router = FakeRouter(set(IDS[:19]), is_extended=False)
    report = checked(path, router)
    assert (report.verdict, report.exit_code, router.commands) == (Verdict.UNKNOWN, 2, [])
    assert "--subscribe" in report.compared[0].troubles[0]
    report = checked(path, router, subscribes=True)
    assert [type(each) for each in router.commands] == [Subs]
    assert (report.verdict, report.exit_code) == (Verdict.DRIFT, 1)
    counted = report.compared[0].counted
    assert counted is not None
    assert (counted.first_count, counted.second_count) == (20, 19)
    assert checked(path, FakeRouter(set(IDS[:20]), False), subscribes=True).exit_code == 0
    # There is nothing more that could be done from here.
    report = repaired(path, router, subscribes=True)
    assert report.exit_code == 1
    assert report.compared[0].repaired is not None
    assert "start it" in report.compared[0].repaired.reasons[0]


def test_a_notifier_service_is_compared_by_its_notifiers(tmp_path: Path) -> None:
    path = tmp_path / "notifier.sqlite"
    with closing(AgentStore(path)) as store:
        account = Account(store.user("me"), store.server(ROUTER), ServiceRole.NOTIFIER)
        store.save_credentials(account, CREDENTIALS)
        store.save_service_id(account, SERVICE)
        for each in IDS[:4]:
            store.add_notifier(StoredNotifier(account, each, KEY, is_associated=True))
    report = checked(path, FakeRouter(set(IDS[1:4])))
    [found] = report.compared
    assert found.facts["role"] == "notifier"
    assert found.comparison is not None
    assert found.comparison.only_first == IDS[0]
    router = FakeRouter(set(IDS[:4]), is_extended=False)
    assert checked(path, router, subscribes=True).exit_code == 0
    assert [type(each) for each in router.commands] == [Nsubs]


def test_another_service_id_is_drift_that_the_agent_repairs(path: Path) -> None:
    router = FakeRouter(set(IDS[:20]), service_id=IDS[-2])
    report = checked(path, router)
    assert (report.verdict, report.exit_code) == (Verdict.DRIFT, 1)
    assert "another id" in report.compared[0].troubles[0]
    report = repaired(path, router, subscribes=True)
    assert (report.exit_code, router.commands) == (1, [])


def test_a_damaged_digest_in_the_store_is_told_and_repaired(path: Path) -> None:
    with closing(AgentStore(path)) as store:
        store._db.execute("UPDATE services SET queue_count = 7")
    router = FakeRouter(set(IDS[:20]))
    report = checked(path, router)
    assert report.exit_code == 1
    assert "digest in the store" in report.compared[0].troubles[0]
    assert repaired(path, router, subscribes=True).exit_code == 0
    assert checked(path, router).exit_code == 0


@pytest.mark.parametrize(
    "failure", [LinkLostError("no router"), ServiceMismatchError("it does not take the service")]
)
def test_a_router_that_cannot_be_asked_leaves_it_open(path: Path, failure: Exception) -> None:
    for report in (
        checked(path, FakeRouter(set(), failure=failure)),
        repaired(path, FakeRouter(set(), failure=failure), subscribes=True),
    ):
        assert (report.verdict, report.exit_code) == (Verdict.UNKNOWN, 2)
        assert report.compared[0].troubles == (str(failure),)
    report = checked(path, FakeRouter(set(), service_id=None))
    assert (report.verdict, report.exit_code) == (Verdict.UNKNOWN, 2)


def test_accounts_are_chosen_by_user_and_router(path: Path) -> None:
    with closing(AgentStore(path)) as store:
        add_account(store, "you", OTHER_ROUTER, IDS[20:30])
        # One without a service has nothing to compare.
        store.service(Account(store.user("nobody"), store.server(ROUTER)))
    router = FakeRouter(set(IDS[:20]))

    def users(report: Report) -> list[str | None]:
        return [each.facts["user"] for each in report.compared]

    report = checked(path, router)
    assert (users(report), report.second, report.exit_code) == (["me", "you"], "2 routers", 1)
    assert [each.verdict for each in report.compared] == [Verdict.EQUAL, Verdict.DRIFT]
    assert users(checked(path, router, "you")) == ["you"]
    assert users(checked(path, router, server="one.example")) == ["me"]
    for user, server in (("you", "one.example"), ("nobody", None)):
        with pytest.raises(ConfigError, match="no service"):
            checked(path, router, user, server)


def test_passwords_are_not_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked(path, FakeRouter(set()))
    for is_json in (False, True):
        tell(Output(is_json=is_json), report, 3)
        printed = capsys.readouterr().out
        assert "one.example" in printed
        assert "secret" not in printed


def test_people_are_told_of_store_and_router(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(Output(is_json=False), checked(path, FakeRouter(set(IDS[1:21]))), 1)
    words = " ".join(capsys.readouterr().out.split())
    assert f"only in the store 1: {TEXTS[0]}" in words
    assert f"only at the router 1: {TEXTS[20]}" in words
    assert "an agent repairs this when it connects" in words
    tell(Output(is_json=False), checked(path, FakeRouter(set(), False)), 1)
    words = " ".join(capsys.readouterr().out.split())
    assert "it could not be found out whether the sets are equal" in words
    router = FakeRouter(set(IDS[1:21]))
    tell(Output(is_json=False), repaired(path, router, subscribes=True), 1)
    words = " ".join(capsys.readouterr().out.split())
    assert "done associated at the router: 1, let go of at the router: 1" in words
    assert "left nothing, the sets are equal" in words
