"""Every verb, for a person and for a program, on folders that stores really wrote."""

import base64
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from syncline.cli import exchanging, keeping
from syncline.errors import DeviceError
from syncline.storage.base import Store, StreamKind, commit, run_jobs
from syncline.storage.files import DiskFiles
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId
from tests.e2e.command_line import Cli
from tests.e2e.router_process import RouterProcess, run_cli, run_without_powers, running

pytestmark = pytest.mark.timeout(90)

QUEUES = [StreamId(bytes([number]) * 24) for number in (1, 2, 3)]
STORES = ["log", "journal"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(monkeypatch, capfd)


def make_folder(folder: Path, kind: str = "log", message_count: int = 5) -> Path:
    """Three queues with messages, the first of them acknowledged."""
    options = StoreOptions(segment_bytes=65_536)
    store = open_store(
        kind, str(folder), DiskFiles(), options, now_ms=1, random_bytes=secrets.token_bytes
    )
    for queue in QUEUES:
        store.create(queue, StreamKind.QUEUE, 1_000, 1)
        for index in range(message_count):
            store.append(queue, b"message %d" % index, 1_700_000_000_000 + index)
            commit(store)
            run_jobs(store)
        store.truncate_before(queue, 2)
    store.close()
    return folder


@pytest.fixture(params=STORES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", request.param)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


# Looking.


@pytest.mark.parametrize("is_killed", [False, True])
def test_inspect_says_what_is_there_and_changes_nothing(
    cli: Cli, folder: Path, is_killed: bool
) -> None:
    if is_killed:
        # A journal that ended in order has counted what it holds.
        (folder / "CLEAN").unlink(missing_ok=True)
    before = contents(folder)
    facts = cli("inspect", folder, "--queues", "9", "--json").json
    assert facts["kind"] in STORES
    assert facts["stats"]["stream_count"] == 3
    assert facts["stats"]["disk_bytes"] > 0
    assert facts["damage"] == []
    assert sorted(each["queue"] for each in facts["queues"]) == [str(each) for each in QUEUES]
    assert {(each["first"], each["next"]) for each in facts["queues"]} == {(2, 6)}
    shown = cli("inspect", folder, "--queues", "9")
    assert shown.code == 0
    assert str(QUEUES[0]) in shown.out
    assert "no damage is known" in shown.out
    assert contents(folder) == before


def test_verify_reads_everything_and_changes_nothing(cli: Cli, folder: Path) -> None:
    before = contents(folder)
    shown = cli("verify", folder)
    assert shown.code == 0
    assert "no damage is known" in shown.out
    facts = cli("verify", folder, "--json").json
    assert (facts["whole"], facts["entry_count"], facts["missing_count"]) == (True, 12, 0)
    assert contents(folder) == before


def damage_payload(folder: Path, wanted: bytes = b"message 2") -> None:
    """Flip a bit in the payload of one message of the last queue, where the log keeps it."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = bytearray(path.read_bytes())
        places = [place for place in range(len(data)) if data.startswith(wanted, place)]
        if places:
            data[places[-1] + 4] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError("the message is nowhere")


def test_verify_finds_damage_and_says_whose_it_is(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data")
    damage_payload(folder)
    result = cli("verify", folder, "--json")
    assert result.code == 1
    assert (result.json["whole"], result.json["missing_count"]) == (False, 1)
    lost = [
        (each["queue"], each["first_lost_seq"], each["lost_count"])
        for each in result.json["damage"]
        if each["lost_count"]
    ]
    assert lost == [(str(QUEUES[2]), 3, 1)]
    shown = cli("verify", folder)
    assert shown.code == 1
    assert str(QUEUES[2]) in shown.out
    inspected = cli("inspect", folder, "--json")
    assert inspected.code == 0


def damage_slot(folder: Path, queue: StreamId) -> None:
    """Flip a bit of what the table knows of a queue, beside its id."""
    (path,) = (folder / "table").iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(bytes(queue)) + len(bytes(queue))] ^= 1
    path.write_bytes(data)


def test_a_queue_that_cannot_be_read_leaves_the_others_to_every_verb(
    cli: Cli, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "data", message_count=20)
    damage_slot(folder, QUEUES[0])
    lost = str(QUEUES[0])
    verified = cli("verify", folder, "--json")
    assert (verified.code, verified.json["entry_count"]) == (1, 38)
    assert [each["queue"] for each in verified.json["damage"]] == [lost]
    inspected = cli("inspect", folder, "--queues", "9", "--json").json
    assert [each["queue"] for each in inspected["damage"]] == [lost]
    assert inspected["counts"]["unreadable_count"] == 1
    assert len(inspected["queues"]) == 2
    assert "no damage is known" not in cli("inspect", folder).out
    tailed = cli("tail", folder, "--json")
    assert (tailed.code, len(tailed.out.splitlines())) == (1, 38)
    assert lost in json.loads(tailed.error)["warning"]
    assert lost in cli("tail", folder).error
    assert cli("repair", folder).code == 1
    for number, layout in enumerate(["json-lines", "journal"]):
        out = tmp_path / f"out-{number}"
        exported = cli("export", out, "--data", folder, "--layout", layout, "--json")
        assert (exported.code, exported.json["whole"]) == (1, False)
        assert [place for place, _ in exported.json["damage"]] == [lost]
        assert (exported.json["stream_count"], exported.json["entry_count"]) == (2, 38)


@pytest.mark.parametrize("kind", STORES)
def test_tail_tells_of_messages_that_are_lost(cli: Cli, tmp_path: Path, kind: str) -> None:
    folder = make_folder(tmp_path / "data", kind)
    assert cli("tail", folder).code == 0
    damage_payload(folder, b"message 2" if kind == "log" else base64.b64encode(b"message 2"))
    verified = cli("verify", folder, "--json").json
    (lost,) = {each["queue"] for each in verified["damage"]} - {None}

    def tailed(*words: str | Path) -> tuple[int, int, list[str]]:
        result = cli("tail", *words, "--json")
        warnings = [json.loads(line)["warning"] for line in result.error.splitlines()]
        return result.code, len(result.out.splitlines()), [each.split()[0] for each in warnings]

    assert tailed(folder) == (1, 11, [lost])
    whole = next(str(queue) for queue in QUEUES if str(queue) != lost)
    assert tailed(folder, "--queue", whole) == (0, 4, [])
    assert tailed(folder, "--from", "4") == (0, 6, [])
    with running(folder) as router:
        assert tailed("--url", router.url) == (1, 11, [lost])
        assert tailed("--url", router.url, "--queue", whole) == (0, 4, [])
        answer = httpx.post(f"{router.url}/api/queues/{lost}/acknowledge", json={"seq": 4})
        assert answer.json() == {"first": 5}
        # The log also tells of a record that it could not read; which one, nobody knows.
        assert tailed("--url", router.url)[0] == (1 if kind == "log" else 0)


def test_a_router_lists_what_it_can_beside_a_queue_that_cannot_be_read(
    cli: Cli, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "data", message_count=20)
    damage_slot(folder, QUEUES[0])
    with running(folder) as router:
        tailed = cli("tail", "--url", router.url, "--json")
        assert (tailed.code, len(tailed.out.splitlines())) == (1, 38)
        assert str(QUEUES[0]) in json.loads(tailed.error)["warning"]
        assert cli("document", "list", "--url", router.url, "--json").code == 1


def test_tail_prints_messages(cli: Cli, folder: Path) -> None:
    before = contents(folder)
    lines = [json.loads(line) for line in cli("tail", folder, "--json").out.splitlines()]
    assert len(lines) == 12
    assert {line["queue"] for line in lines} == {str(each) for each in QUEUES}
    shown = cli("tail", folder, "--queue", str(QUEUES[1]), "--from", "4")
    assert [line.split()[-2:] for line in shown.out.splitlines()] == [
        ["message", "3"],
        ["message", "4"],
    ]
    assert len(cli("tail", folder, "-n", "2").out.splitlines()) == 2
    assert contents(folder) == before


def test_tail_of_a_folder_cannot_follow(cli: Cli, folder: Path) -> None:
    result = cli("tail", folder, "--follow")
    assert result.code == 2
    assert "needs --url" in result.sentence


def test_a_folder_in_use_is_left_to_its_router(cli: Cli, router: RouterProcess) -> None:
    for verb in (["inspect"], ["verify"], ["tail"], ["repair"]):
        result = cli(*verb, router.folder)
        assert result.code == 2
        assert f"process {router.process.pid}" in result.sentence
    result = cli("backup", router.folder.with_name("copy"), "--data", router.folder)
    assert result.code == 2
    assert "give its address with --url" in result.sentence
    assert not router.folder.with_name("copy").exists()


# A running router.


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "served") as made:
        yield made


def test_tail_follows_a_router(cli: Cli, router: RouterProcess) -> None:
    queue, other = router.create(), router.create()
    router.append(queue, b"one")
    router.append(other, b"two")
    both = cli("tail", "--url", router.url, "--json").out.splitlines()
    assert len(both) == 2
    process = run_cli("tail", "--url", router.url, "-q", queue, "-f", "-n", "1", "--json")
    assert json.loads(process.stdout)["seq"] == 1


def test_a_router_is_backed_up_while_it_serves(cli: Cli, router: RouterProcess) -> None:
    queue = router.create()
    for index in range(10):
        router.append(queue, b"m%d" % index)
    copy = router.folder.with_name("copy")
    result = cli("backup", copy, "--url", router.url, "--json")
    assert (result.code, result.error) == (0, "")
    assert result.json["files"] == len(contents(copy)) - 1
    router.append(queue, b"after")
    again = cli("backup", copy, "--url", router.url)
    assert again.code == 2
    assert "is not empty" in again.sentence
    assert cli("verify", copy, "--json").json["entry_count"] == 10
    link = router.folder.with_name("link")
    link.symlink_to(router.folder)
    for place in (router.folder, link, copy / ".." / router.folder.name):
        inside = cli("backup", place / "inside", "--url", router.url)
        assert "inside the data folder" in inside.sentence
    restored = router.folder.with_name("restored")
    assert cli("restore", copy, restored).code == 0
    with running(restored) as second:
        assert second.seqs(queue) == list(range(1, 11))
        assert second.append(queue, b"goes on") == 11
        # A copy of what was restored knows that as well.
        assert cli("backup", copy.with_name("again"), "--url", second.url).code == 0
        assert contents(copy.with_name("again"))["LIFE"] == contents(restored)["LIFE"]


def test_an_address_without_a_router_is_said_so(cli: Cli) -> None:
    result = cli("tail", "--url", "http://127.0.0.1:1")
    assert result.code == 2
    assert "no router answers at http://127.0.0.1:1" in result.sentence
    assert "write http://" in cli("tail", "--url", "router").sentence


# Copies.


def test_a_backup_is_restored_as_it_was(cli: Cli, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    assert cli("backup", tmp_path / "copy", "--data", folder).code == 0
    assert contents(folder) == before
    facts = cli("restore", tmp_path / "copy", tmp_path / "back", "--json").json
    assert facts["files"] == len(before)
    restored = contents(tmp_path / "back")
    # The one thing that tells it from the folder it was made of.
    restored.pop("LIFE")
    assert restored == before
    verified = cli("verify", tmp_path / "copy", "--json").json
    assert (verified["whole"], verified["checked_files"]) == (True, len(before))


def test_a_restored_folder_knows_that_it_is_one_and_is_told_when_it_forgot(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    never = cli("inspect", folder, "--json").json
    assert "log_id" not in never
    logs = {never["store_id"]}
    source = folder
    for number in (1, 2):
        copy, back = tmp_path / f"copy-{number}", tmp_path / f"back-{number}"
        assert cli("backup", copy, "--data", source).code == 0
        assert cli("restore", copy, back).code == 0
        seen = cli("inspect", back, "--json").json
        assert (seen["store_id"], seen["restores"]) == (never["store_id"], number)
        logs.add(seen["log_id"])
        source = back
    assert len(logs) == 3
    life = source / "LIFE"
    life.write_bytes(life.read_bytes()[:-1])
    verified = cli("verify", source, "--json")
    assert verified.code == 1
    assert [each["file"] for each in verified.json["damage"]] == [str(life)]
    assert cli("inspect", source, "--json").json["damage"] == verified.json["damage"]
    refused = run_cli("serve", "--data", source, "--port", "0")
    assert refused.returncode == 2
    assert "LIFE" in refused.stderr
    # It is copied as it is, and no data folder is made of it.
    assert cli("backup", tmp_path / "copy", "--data", source).code == 0
    result = cli("restore", tmp_path / "copy", tmp_path / "back")
    assert result.code == 2
    assert "LIFE" in result.sentence
    assert not (tmp_path / "back").exists()


def test_what_was_restored_by_half_is_no_data_folder(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise DeviceError("LIFE", "write", "it was cut off")

    assert cli("backup", tmp_path / "copy", "--data", folder).code == 0
    monkeypatch.setattr(keeping, "begin_life", cut_off)
    assert cli("restore", tmp_path / "copy", tmp_path / "back").code == 2
    # It would not know that it was restored, so nobody may take it for a data folder.
    assert cli("inspect", tmp_path / "back").code == 2


def test_restoring_refuses_what_is_not_whole(cli: Cli, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    cli("backup", copy, "--data", folder)
    pristine = contents(copy)
    some_file = next(name for name in pristine if name not in ("FORMAT", "BACKUP.json"))

    def refused(sentence: str) -> None:
        result = cli("restore", copy, tmp_path / "back")
        assert result.code == 2
        assert sentence in result.sentence
        assert not (tmp_path / "back").exists()
        shutil.rmtree(copy)
        for name, data in pristine.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(data)

    (copy / some_file).write_bytes(pristine[some_file] + b"x")
    refused("it differs from what was backed up")
    (copy / some_file).unlink()
    refused("it is missing")
    (copy / "more").write_bytes(b"x")
    refused("it is not on the list")
    (copy / "BACKUP.json").unlink()
    refused("no backup ended there")
    (copy / "BACKUP.json").write_text("{}")
    refused("it is no list of files")
    (copy / "BACKUP.json").write_bytes(
        pristine["BACKUP.json"].replace(some_file.encode(), b"../" + some_file.encode())
    )
    refused("which is outside")


def test_nobody_works_on_a_backup(cli: Cli, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    cli("backup", copy, "--data", folder)
    pristine = contents(copy)
    for words in (["serve", "--port", "0", "--data"], ["repair", "--apply"]):
        result = run_cli(*words, copy)
        assert result.returncode == 2
        assert "is a backup" in " ".join(result.stderr.split())
        assert contents(copy) == pristine
    assert cli("restore", copy, tmp_path / "back").code == 0


def test_verify_lists_what_is_damaged_in_a_backup(cli: Cli, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    cli("backup", copy, "--data", folder)
    (copy / "more").write_bytes(b"x")
    (copy / "FORMAT").write_bytes(b"x")
    shown = cli("verify", copy)
    assert (shown.code, shown.error) == (1, "")
    assert "damage in 2 places" in shown.out
    found = cli("verify", copy, "--json")
    assert found.code == 1
    reasons = {each["file"]: each["reason"] for each in found.json["damage"]}
    assert reasons == {
        str(copy / "FORMAT"): "it differs from what was backed up",
        str(copy / "more"): "it is not on the list of the backup",
    }
    (copy / "BACKUP.json").write_text("{}")
    found = cli("verify", copy, "--json")
    assert (found.code, found.json["damage"][0]["reason"]) == (1, "it is no list of files")


def test_restoring_refuses_a_folder_that_holds_something(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    cli("backup", tmp_path / "copy", "--data", folder)
    before = contents(folder)
    result = cli("restore", tmp_path / "copy", folder)
    assert result.code == 2
    assert "is not empty" in result.sentence
    assert contents(folder) == before


def test_nothing_is_written_into_the_folder_that_is_read(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    copy, journal = tmp_path / "copy", tmp_path / "journal"
    assert cli("backup", copy, "--data", folder).code == 0
    assert cli("export", journal, "--data", folder, "--layout", "journal").code == 0
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "copy-link").symlink_to(copy)
    before = [contents(each) for each in (folder, copy, journal)]
    cases: list[tuple[list[str | Path], str]] = [
        (["backup", folder / "inner", "--data", folder], "the data folder"),
        (["backup", tmp_path / "link" / "inner", "--data", folder], "the data folder"),
        (["backup", folder / "inner", "--data", tmp_path / "link"], "the data folder"),
        (["restore", copy, copy / "inner"], "the backup"),
        (["restore", copy, tmp_path / "copy-link" / "inner"], "the backup"),
        (["export", folder / "inner", "--data", folder], "the data folder"),
        (["export", folder / "wal" / ".." / "inner", "--data", folder], "the data folder"),
        (
            ["export", tmp_path / "link" / "in", "--data", folder, "--layout", "journal"],
            "the data folder",
        ),
        (["import", journal, "--data", journal / "inner"], "the source"),
        (["import", journal, "--data", journal], "the source"),
        (["import", journal, "--data", tmp_path], "the data folder"),
    ]
    for words, what in cases:
        result = cli(*words)
        assert result.code == 2, words
        assert f"lies inside {what}" in result.sentence
    assert [contents(each) for each in (folder, copy, journal)] == before
    assert not list(tmp_path.rglob("in")) + list(tmp_path.rglob("inner"))


def test_a_copy_whose_parent_is_missing_says_so(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli("backup", tmp_path / "copy", "--data", folder)
    missing = tmp_path / "no" / "such"
    cases: list[list[str | Path]] = [
        ["backup", missing, "--data", folder],
        ["restore", tmp_path / "copy", missing],
    ]
    for words in cases:
        result = cli(*words)
        assert result.code == 2
        assert f"there is no folder {missing.parent}; make that first" in result.sentence


def test_a_folder_that_may_only_be_read_is_backed_up(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data")
    for path in folder.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    folder.chmod(0o500)
    copied = run_without_powers("backup", tmp_path / "copy", "--data", folder)
    assert copied.returncode == 0, copied.stderr
    assert cli("verify", tmp_path / "copy").code == 0
    lock = DiskFiles().lock(str(folder / "LOCK"))
    refused = run_without_powers("backup", tmp_path / "other", "--data", folder)
    lock.release()
    assert (refused.returncode, "in use by another router" in refused.stderr) == (2, True)
    (folder / "LOCK").chmod(0)
    refused = run_without_powers("backup", tmp_path / "other", "--data", folder)
    assert refused.returncode == 2
    assert "run this as the user that the folder belongs to" in refused.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("verb", ["inspect", "tail", "verify"])
def test_a_folder_that_may_only_be_read_is_looked_at_unless_a_router_has_it(
    tmp_path: Path, verb: str
) -> None:
    folder = make_folder(tmp_path / "data")
    for path in folder.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    folder.chmod(0o500)
    looked = run_without_powers(verb, folder)
    assert looked.returncode == 0, looked.stderr
    lock = DiskFiles().lock(str(folder / "LOCK"))
    refused = run_without_powers(verb, folder)
    lock.release()
    assert (refused.returncode, "in use by another router" in refused.stderr) == (2, True)


# Other layouts.


@pytest.mark.parametrize("layout", ["json-lines", "journal"])
@pytest.mark.parametrize("store", STORES)
def test_what_was_exported_is_imported(
    cli: Cli, folder: Path, tmp_path: Path, layout: str, store: str
) -> None:
    before = contents(folder)
    wanted = sorted(cli("tail", folder, "--json").out.splitlines())
    shown = cli("export", tmp_path / "out", "--data", folder, "--layout", layout)
    assert (shown.code, shown.error) == (0, "")
    assert "exported 12 entries of 3 queues and documents" in shown.out
    assert contents(folder) == before
    made = tmp_path / "made"
    facts = cli("import", tmp_path / "out", "--data", made, "--store", store, "--json").json
    assert (facts["whole"], facts["stream_count"], facts["entry_count"]) == (True, 3, 12)
    assert cli("inspect", made, "--json").json["kind"] == store
    assert sorted(cli("tail", made, "--json").out.splitlines()) == wanted
    again = cli("import", tmp_path / "out", "--data", made, "--store", store)
    assert again.code == 2
    assert "import into a new data folder" in again.sentence
    assert cli("export", tmp_path / "out", "--data", folder, "--layout", layout).code == 2


def test_what_cannot_be_read_is_left_behind_and_said(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data")
    damage_payload(folder)
    result = cli("export", tmp_path / "out", "--data", folder, "--json")
    assert result.code == 1
    assert (result.json["whole"], result.json["entry_count"]) == (False, 11)
    assert result.json["lost_entry_count"] == 1
    shown = cli("export", tmp_path / "other", "--data", folder)
    assert "some of it could not be read and was left behind" in shown.out


@pytest.mark.parametrize("layout", ["json-lines", "journal"])
@pytest.mark.parametrize("kept_bytes", [0, 8_192])
def test_an_export_of_a_log_that_lost_its_end_says_so(
    cli: Cli, tmp_path: Path, layout: str, kept_bytes: int
) -> None:
    folder = make_folder(tmp_path / "data", message_count=20)
    last = sorted((folder / "wal").glob("0*.wal"))[-1]
    last.write_bytes(last.read_bytes()[:kept_bytes])
    verified = cli("verify", folder, "--json").json
    assert [each["queue"] for each in verified["damage"]] == [None]
    result = cli("export", tmp_path / "out", "--data", folder, "--layout", layout, "--json")
    assert (result.code, result.json["whole"]) == (1, False)
    assert [place for place, _ in result.json["damage"]] == [verified["damage"][0]["file"]]
    assert result.json["damaged_file_count"] == 1


def test_an_import_says_what_its_source_lacks(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data")
    assert cli("export", tmp_path / "out", "--data", folder).code == 0
    lines = (tmp_path / "out").read_bytes().splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if b'"type":"stream"' in line]
    second = begins[1]
    bad_id = lines[second].replace(b'"id":"', b'"id":"!')
    for number, (changed, entry_count, skipped_count) in enumerate(
        [
            ([lines[0], lines[1][:20] + b"\0" + lines[1][21:], *lines[2:]], 8, 5),
            ([lines[0], *lines[2:]], 8, 4),
            ([*lines[:second], bad_id, *lines[second + 1 :]], 8, 5),
            ([*lines[:3], *lines[4:]], 11, 0),
            ([*lines[:-2], lines[-1]], 11, 0),
            ([*lines[: begins[2]], lines[-1]], 8, 0),
        ]
    ):
        source, made = tmp_path / f"changed-{number}", tmp_path / f"made-{number}"
        source.write_bytes(b"".join(changed))
        result = cli("import", source, "--data", made, "--json")
        facts = result.json
        assert (result.code, facts["whole"]) == (1, False)
        assert (facts["entry_count"], facts["skipped_line_count"]) == (entry_count, skipped_count)
        assert facts["lost_entry_count"] == 12 - entry_count
        assert facts["damage"]
        shown = cli("import", source, "--data", tmp_path / f"again-{number}")
        assert shown.code == 1
        assert f"{12 - entry_count} entries are missing" in shown.out


@pytest.mark.parametrize("store", STORES)
def test_what_was_imported_by_half_is_no_data_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    folder = make_folder(tmp_path / "data")
    assert cli("export", tmp_path / "out", "--data", folder).code == 0

    def cut_off(path: str, target: Store, *_: object, **__: object) -> None:
        target.create(QUEUES[0], StreamKind.QUEUE, 0, 1)
        commit(target)
        raise DeviceError(path, "reading", "it was cut off")

    half = tmp_path / "half"
    monkeypatch.setattr(exchanging, "import_detected", cut_off)
    assert cli("import", tmp_path / "out", "--data", half, "--store", store).code == 2
    monkeypatch.undo()
    before = contents(half)
    for words in (
        ["inspect", half],
        ["verify", half],
        ["tail", half],
        ["repair", half, "--apply"],
        ["backup", tmp_path / "copy", "--data", half],
        ["export", tmp_path / "more", "--data", half],
        ["import", half, "--data", tmp_path / "made"],
        ["import", tmp_path / "out", "--data", half],
        ["serve", "--data", half, "--port", "0"],
    ):
        refused = run_cli(*map(str, words))
        assert refused.returncode == 2, words
        assert "cut short; remove it and start that again" in " ".join(refused.stderr.split())
    assert contents(half) == before


@pytest.mark.parametrize("store", ["memory", "auto", "other"])
def test_an_import_makes_only_what_stays_on_the_disk(cli: Cli, tmp_path: Path, store: str) -> None:
    folder = make_folder(tmp_path / "data")
    assert cli("export", tmp_path / "out", "--data", folder).code == 0
    result = cli("import", tmp_path / "out", "--data", tmp_path / "made", "--store", store)
    assert result.code == 2
    assert "'log', 'journal'" in result.sentence
    assert not (tmp_path / "made").exists()


def test_what_is_no_export_is_not_imported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for source, sentence in (
        ("nowhere", "there is nothing at"),
        ("notes.txt", "is no file of exported messages"),
        ("empty", "empty holds no journal that can be imported"),
    ):
        result = cli("import", source)
        assert result.code == 2
        assert sentence in result.sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "notes.txt"]


# Mending.


def test_nothing_is_repaired_where_all_is_whole(cli: Cli, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    assert "nothing to repair" in cli("repair", folder, "--apply").out
    assert cli("repair", folder, "--json").json["before"]["whole"] is True
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_repair_says_first_and_copies_before_it_changes(cli: Cli, tmp_path: Path) -> None:
    folder = make_sealed_folder(tmp_path / "data")
    damage_run(folder)
    damaged = contents(folder)
    dry = cli("repair", folder)
    assert dry.code == 1
    assert "59 entries in 3 queues and documents are readable, 1 are not" in dry.out
    assert "nothing was changed" in dry.out
    assert contents(folder) == damaged
    facts = cli("repair", folder, "--apply", "--json").json
    assert facts["applied"] is True
    assert facts["after"]["entry_count"] == 59
    kept = contents(Path(facts["copy"]))
    kept.pop("BACKUP.json")
    assert kept == damaged, "the copy is the folder as it was"
    assert len(cli("tail", folder).out.splitlines()) == 59


def damage_run(folder: Path) -> Path:
    """Flip a bit in a row of a run, which nobody meets before that is read."""
    run = min((folder / "runs").iterdir())
    data = bytearray(run.read_bytes())
    data[data.index(b"message") + 4] ^= 1
    run.write_bytes(data)
    return run


def make_sealed_folder(folder: Path) -> Path:
    """As `make_folder`, with its messages in runs."""
    options = StoreOptions(segment_bytes=65_536)
    store = open_store(
        "log", str(folder), DiskFiles(), options, now_ms=1, random_bytes=secrets.token_bytes
    )
    for queue in QUEUES:
        store.create(queue, StreamKind.QUEUE, 1_000, 1)
        for index in range(20):
            store.append(queue, b"message %d" % index + bytes(8_000), 1_700_000_000_000)
            commit(store)
            run_jobs(store)
    store.close()
    assert any((folder / "runs").iterdir())
    return folder


def test_repair_writes_damaged_files_anew_and_copies_once(cli: Cli, tmp_path: Path) -> None:
    folder = make_sealed_folder(tmp_path / "data")
    run = damage_run(folder)
    lost = cli("verify", folder, "--json").json
    assert lost["missing_count"] == 1
    assert [each["file"] for each in lost["damage"]] == [str(run)]
    facts = cli("repair", folder, "--apply", "--json").json
    assert facts["applied"] is True
    assert not run.exists()
    assert str(run) not in {each["file"] for each in facts["after"]["damage"]}
    assert facts["after"]["entry_count"] == lost["entry_count"]
    # What is gone stays gone; there is nothing to do about it a second time.
    mended = contents(folder)
    again = cli("repair", folder, "--apply")
    assert again.code == 1
    assert "nothing of this can be mended" in again.out
    assert lost["damage"][0]["queue"] in again.out
    facts = cli("repair", folder, "--apply", "--json").json
    assert (facts["applied"], facts["copy"]) == (False, None)
    assert contents(folder) == mended
    assert len(list(tmp_path.glob("data.before-repair-*"))) == 1


def test_what_a_journal_lost_is_said_and_nothing_is_copied(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", "journal")
    messages = max((folder / "messages").rglob("messages.*"))
    messages.write_bytes(messages.read_bytes().replace(b"seq=3", b"seq=7"))
    damaged = contents(folder)
    result = cli("repair", folder, "--apply")
    assert result.code == 1
    assert "what is lost is only in a backup" in result.out
    assert str(QUEUES[2]) in result.out
    assert contents(folder) == damaged
    assert not list(tmp_path.glob("data.before-repair-*"))


def test_what_cannot_even_be_opened_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data")
    (folder / "FORMAT").write_bytes(b"syncline log one\n")
    before = contents(folder)
    for verb in (["verify"], ["repair", "--apply"], ["inspect"]):
        result = cli(*verb, folder)
        assert result.code == 2
        assert "FORMAT is damaged" in result.sentence
        assert "Traceback" not in result.error
    assert contents(folder) == before


# Words about the machine and the settings.


def test_config_prints_values_with_their_origin(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "syncline.toml").write_text("[http]\nport = 9000\n")
    monkeypatch.setenv("SYNCLINE_LOG_LEVEL", "debug")
    monkeypatch.setenv("SYNCLINE_HTTP_TOKEN", "do-not-show-this-one")
    found = {
        each["key"]: each
        for each in cli("config", "--set", "store.folder=elsewhere", "--json").json
    }
    assert (found["http.port"]["value"], found["http.port"]["origin"]) == (
        9000,
        "file syncline.toml",
    )
    assert found["log.level"]["origin"] == "environment SYNCLINE_LOG_LEVEL"
    assert found["store.folder"]["origin"] == "flag store.folder"
    assert found["http.host"]["origin"] == "default"
    shown = cli("config")
    assert "file syncline.toml" in shown.out
    assert "do-not-show-this-one" not in shown.out
    assert "do-not-show-this-one" not in cli("config", "--toml").out


def test_config_writes_a_file_that_it_reads(cli: Cli, tmp_path: Path) -> None:
    text = cli("config", "--set", "http.port=81", "--toml").out
    (tmp_path / "made.toml").write_text(text)
    found = cli("config", "--config", "made.toml", "--json").json
    assert {each["key"]: each["value"] for each in found}["http.port"] == 81
    assert all(each["origin"] == "file made.toml" for each in found)


def test_config_checks(cli: Cli, tmp_path: Path) -> None:
    assert cli("config", "--check").out == "the configuration is good\n"
    assert cli("config", "--check", "--json").json == {"good": True}
    (tmp_path / "syncline.toml").write_text("[http]\nprot = 9000\n")
    result = cli("config", "--check")
    assert result.code == 2
    assert "did you mean http.port?" in result.sentence


def test_doctor_measures_the_disk_and_lists_packages(cli: Cli, tmp_path: Path) -> None:
    facts = cli("doctor", tmp_path / "not" / "yet", "--json").json
    assert facts["packages"]["syncline"]
    assert facts["packages"]["starlette"]
    assert facts["disk"]["sync_median_ms"] > 0
    assert facts["disk"]["sync_slowest_ms"] >= facts["disk"]["sync_median_ms"]
    assert facts["disk"]["free_bytes"] > 0
    assert facts["disk"]["file_system"] != "unknown"
    assert not (tmp_path / "not").exists()
    shown = cli("doctor")
    assert shown.code == 0
    assert "sync_median_ms" in shown.out


# Errors.


def test_an_error_is_one_sentence_or_a_traceback_if_asked(cli: Cli, tmp_path: Path) -> None:
    result = cli("inspect", tmp_path / "nowhere")
    assert (result.code, result.out) == (2, "")
    assert result.error.startswith("error: ")
    assert "there is no such folder; check its name" in result.sentence
    assert "Traceback" not in result.error
    assert "Traceback" in cli("--debug", "inspect", tmp_path / "nowhere").error
    facts = json.loads(cli("inspect", tmp_path / "nowhere", "--json").error)
    assert facts["error"] == "ForeignFolderError"


def test_words_that_are_no_verb_are_refused(cli: Cli) -> None:
    assert cli("inspekt").code == 2
    assert cli("inspect", "--queues", "x").code == 2
    assert cli("--version").out.startswith("syncline ")


def test_more_than_can_be_counted_to_are_all(cli: Cli, folder: Path) -> None:
    many = "99999999999999999999"
    assert len(cli("inspect", folder, "--queues", many, "--json").json["queues"]) == 3
    assert len(cli("tail", folder, "--count", many, "--json").out.splitlines()) == 12
