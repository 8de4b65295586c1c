"""Records that somebody changed by hand, or a disk did: found, told and set right."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.queue_records import ServiceRole
from tests.e2e.command_line import Cli
from tests.e2e.router_process import RouterProcess, running
from tests.e2e.test_cli import cli as cli
from tests.e2e.test_cli import make_folder
from tests.storage.records.under_test import notifier, queue, service, service_id

pytestmark = pytest.mark.timeout(120)

QUEUE_COUNT = 300
EXIT_DAMAGED = 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with two services and their queues; nobody works on it."""
    made = make_folder(tmp_path / "data")
    records = SqliteRecords.open(str(made), DiskFiles())
    records.create_service(service(1))
    records.create_service(service(2, ServiceRole.NOTIFIER))
    for number in range(QUEUE_COUNT):
        records.create_queue(
            queue(number, service_id=service_id(1), notifier=notifier(number, service_id(2)))
        )
    commit(records)
    records.close()
    return made


def damage(folder: Path, *texts: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        for text in texts:
            connection.execute(text)


WRONG = ("UPDATE digests SET count = 7 WHERE service = 1", "UPDATE totals SET queues = 9")


def digest_count(folder: Path) -> int:
    with closing(SqliteRecords.open(str(folder), DiskFiles())) as records:
        return records.digest(service_id(1)).count


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name != "LOCK"
    }


# -------------------------------------------------------------------------------- a folder


def test_verify_reads_the_records_too(cli: Cli, folder: Path) -> None:
    before = contents(folder)
    shown = cli("verify", folder)
    assert shown.code == 0, shown.error
    assert "all digests and counters of the records are right" in shown.out
    facts = cli("verify", folder, "--json").json
    assert facts["whole"]
    assert facts["records"]["found_counts"]["association_count"] == QUEUE_COUNT
    assert contents(folder) == before


def test_an_export_says_that_it_leaves_the_records_behind(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    before = contents(folder)
    left = {"queue_count": QUEUE_COUNT, "service_count": 2}
    journal = tmp_path / "journal"
    facts = cli("export", journal, "--data", folder, "--layout", "journal", "--json").json
    assert (facts["whole"], facts["left_records"]) == (True, left)
    shown = cli("export", tmp_path / "out", "--data", folder)
    assert shown.code == 0
    assert f"the SMP records of {QUEUE_COUNT} queues and 2 services" in shown.out
    assert contents(folder) == before
    without = cli("import", tmp_path / "out", "--data", tmp_path / "made", "--json")
    assert (without.code, without.json["left_records"]) == (0, None)
    (journal / FILE_NAME).write_bytes((folder / FILE_NAME).read_bytes())
    imported = cli("import", journal, "--data", tmp_path / "again", "--json")
    assert (imported.code, imported.json["left_records"]) == (0, left)
    # What is left behind anyway stops nobody, however damaged it is.
    (folder / FILE_NAME).write_bytes(b"no database")
    damaged = cli("export", tmp_path / "third", "--data", folder, "--json")
    assert damaged.code == 0
    assert damaged.json["left_records"] == {"queue_count": None, "service_count": None}
    assert "of ? queues and ? services" in cli("export", tmp_path / "x", "--data", folder).out


def test_a_folder_without_records_has_none_to_verify(cli: Cli, folder: Path) -> None:
    (folder / FILE_NAME).unlink()
    found = cli("verify", folder, "--repair", "--json")
    assert found.code == 0, found.error
    assert found.json["records"] is None
    assert not (folder / FILE_NAME).exists()


def test_verify_finds_what_is_wrong_and_repairs_it_if_asked(cli: Cli, folder: Path) -> None:
    damage(folder, *WRONG)
    before = contents(folder)
    shown = cli("verify", folder)
    assert shown.code == EXIT_DAMAGED
    assert f"says 7 ids, and its set has {QUEUE_COUNT}" in shown.out
    assert f"there are {QUEUE_COUNT} queues, and the counter says 9" in shown.out
    assert "--repair" in shown.out
    found = cli("verify", folder, "--json")
    assert found.code == EXIT_DAMAGED
    assert (found.json["whole"], found.json["records"]["mismatch_count"]) == (False, 1)
    assert contents(folder) == before

    repaired = cli("verify", folder, "--repair")
    assert repaired.code == 0, repaired.error
    assert f"says 7 ids, and its set has {QUEUE_COUNT}" in repaired.out
    assert "were set right" in repaired.out
    assert cli("verify", folder).code == 0
    assert digest_count(folder) == QUEUE_COUNT


def test_a_backup_is_checked_and_not_repaired(cli: Cli, folder: Path, tmp_path: Path) -> None:
    damage(folder, *WRONG)
    assert cli("backup", tmp_path / "copy", "--data", folder).code == 0
    assert cli("verify", tmp_path / "copy").code == EXIT_DAMAGED
    refused = cli("verify", tmp_path / "copy", "--repair")
    assert refused.code == 2
    assert "is a backup" in refused.sentence
    assert not (tmp_path / "copy" / "LOCK").exists()


def test_repair_sets_digests_right_after_a_copy(cli: Cli, folder: Path, tmp_path: Path) -> None:
    damage(folder, *WRONG)
    dry = cli("repair", folder)
    assert dry.code == EXIT_DAMAGED
    assert f"says 7 ids, and its set has {QUEUE_COUNT}" in dry.out
    assert "nothing was changed" in dry.out
    found = cli("repair", folder, "--apply", "--json")
    assert found.code == 0, found.error
    facts = found.json
    assert facts["records"]["before"]["mismatch_count"] == 1
    assert facts["records"]["after"]["whole"]
    assert facts["records"]["saved"] is None
    assert digest_count(folder) == QUEUE_COUNT
    assert digest_count(Path(facts["copy"])) == 7


def spoil(folder: Path, table: str, count: int = 1) -> None:
    path = folder / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        pages = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' LIMIT ?", (table, count)
        ).fetchall()
    data = bytearray(path.read_bytes())
    for (page,) in pages:
        data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(data)


def test_repair_keeps_what_is_readable_of_damaged_records(cli: Cli, folder: Path) -> None:
    spoil(folder, "queues", 2)
    shown = cli("verify", folder)
    assert shown.code == EXIT_DAMAGED
    assert "records are damaged" in shown.out
    assert "`syncline repair`" in shown.out
    # Nothing is taken from a damaged file.
    assert cli("verify", folder, "--repair").code == EXIT_DAMAGED

    shown = cli("repair", folder, "--apply")
    assert shown.code == 0, shown.error
    (copy,) = folder.parent.glob("data.before-repair-*")
    assert (copy / FILE_NAME).exists()
    with closing(SqliteRecords.open(str(folder), DiskFiles())) as records:
        saved = records.counts().queue_count
    assert 0 < QUEUE_COUNT - saved < 60
    assert f"saved {saved} queues of {QUEUE_COUNT}" in shown.out
    assert "all digests and counters of the records are right" in shown.out
    assert cli("verify", folder).code == 0
    with running(folder) as router:
        assert router.client.get("/api/services").json()["count"] == 2


def test_records_of_which_nothing_can_be_read_are_told_and_left(cli: Cli, folder: Path) -> None:
    path = folder / FILE_NAME
    path.write_bytes(b"\xff" * path.stat().st_size)
    before = path.read_bytes()
    for verb in (["verify"], ["verify", "--repair"], ["repair", "--apply"]):
        found = cli(verb[0], folder, *verb[1:])
        assert found.code == 2, found.out
        assert FILE_NAME in found.sentence
    assert path.read_bytes() == before


def test_a_folder_that_a_router_has_is_left_to_it(cli: Cli, folder: Path) -> None:
    with running(folder) as router:
        damage(folder, *WRONG)
        for verb in (["verify"], ["verify", "--repair"], ["repair", "--apply"]):
            refused = cli(verb[0], folder, *verb[1:])
            assert refused.code == 2
            assert str(router.process.pid) in refused.sentence
        assert services(router)[0]["count"] in (7, QUEUE_COUNT)
    assert not list(folder.parent.glob("data.before-repair-*"))


# -------------------------------------------------------------------------------- a router


def services(router: RouterProcess) -> list[dict[str, Any]]:
    answer = router.client.get("/api/services")
    found: list[dict[str, Any]] = answer.json()["services"]
    return sorted(found, key=lambda each: each["role"])


def metric(router: RouterProcess, name: str) -> float:
    lines = router.client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_a_router_checks_its_records_while_it_serves(cli: Cli, folder: Path) -> None:
    with running(folder) as router:
        shown = cli("verify", "--url", router.url)
        assert shown.code == 0, shown.error
        assert "all digests and counters of the records are right" in shown.out

        damage(folder, *WRONG)
        shown = cli("verify", "--url", router.url)
        assert shown.code == EXIT_DAMAGED
        assert f"says 7 ids, and its set has {QUEUE_COUNT}" in shown.out
        assert services(router)[0]["count"] == 7

        found = cli("verify", "--url", router.url, "--repair", "--json")
        assert found.code == 0, found.error
        facts = found.json
        assert facts["whole"]
        assert facts["records"]["repaired"]
        assert facts["records"]["read_ids"] == 2 * QUEUE_COUNT
        assert services(router)[0]["count"] == QUEUE_COUNT
        assert metric(router, "syncline_smp_repaired_digests_total") == 1
        assert metric(router, "syncline_smp_queues") == QUEUE_COUNT
        assert "was wrong and is repaired" in router.errors.read_text()
        assert cli("verify", "--url", router.url).code == 0

        odd = router.client.post("/api/smp/verify", params={"repair": "maybe"})
        assert (odd.status_code, odd.json()["error"]) == (400, "MALFORMED")
        assert router.stop() == 0


def test_all_digests_are_recomputed_at_a_start_that_asks_for_it(cli: Cli, folder: Path) -> None:
    damage(folder, "UPDATE digests SET md5_low = 1", "UPDATE totals SET services = 2")
    with running(folder) as router:
        wrong = [each["xor_md5"] for each in services(router)]
        assert router.stop() == 0
    with running(folder, "--recompute-digests") as router:
        assert [each["xor_md5"] for each in services(router)] != wrong
        logged = router.errors.read_text()
        assert logged.count("was wrong and is repaired") == 2
        assert "all digests were recomputed" in logged
        assert cli("verify", "--url", router.url).code == 0
        assert router.stop() == 0
    # As a setting, where nothing is wrong, and in memory, where nothing can be.
    with running(folder, SYNCLINE_SMP_RECOMPUTE_DIGESTS="true") as router:
        assert router.errors.read_text().count("all digests were recomputed") == 2
    with running(folder.with_name("none"), "--store", "memory", "--recompute-digests") as router:
        assert cli("verify", "--url", router.url).code == 0


def test_a_router_that_goes_round_its_sets_stops_in_order(cli: Cli, folder: Path) -> None:
    """In a pause of the round, and after a check that was asked for."""
    with running(folder, SYNCLINE_SMP_WALK_HOURS="1") as router:
        with router.client.stream("POST", "/api/smp/verify") as answer:
            assert answer.status_code == 200
            answer.read()
        assert router.stop() == 0
    assert cli("verify", folder).code == 0
