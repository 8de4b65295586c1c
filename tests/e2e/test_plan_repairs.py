"""`repair --plan` against a real router that dies in between: what was answered is durable."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from syncline.server.smp.associating import REPAIR_COUNT_MAX
from syncline.storage.drift.repair_plans import PlanHead, encode_head, encode_repair
from syncline.storage.files import DiskFiles
from syncline.storage.folder import read_format
from syncline.storage.records.base import commit
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.repairs import Action, Repair
from tests.e2e.router_process import COMMAND, RouterProcess, environment, run_cli, running
from tests.pipeline.record_folders import RecordsFolder
from tests.storage.records.under_test import queue, queue_id, service_id

pytestmark = pytest.mark.timeout(180)

TOKEN = "a-token-that-is-long"
# Several batches.
COUNT = 4_000
WAIT_SECONDS = 60


def make_queues(folder: Path) -> None:
    """A folder of a router that does not run, with a service that has none of these."""
    made = RecordsFolder(folder)
    for number in range(COUNT):
        made.records.create_queue(queue(number))
        if number % 1_000 == 0:
            commit(made.records)
    commit(made.records)
    made.stop()


def write_plan(folder: Path, path: Path) -> str:
    """To make all of them the service's; the id of the store."""
    found = read_format(str(folder), DiskFiles())
    assert found is not None
    head = PlanHead(f"{found.store_id.hex()[:8]}-{'0' * 16}", "wanted", COUNT)
    ids = sorted(queue_id(number) for number in range(COUNT))
    lines = [
        encode_repair(
            Repair(Action.ASSOCIATE, StreamId(service_id(1)), ServiceRole.MESSAGING, each)
        )
        for each in ids
    ]
    path.write_text(encode_head(head) + "".join(lines))
    return found.store_id.hex()


def associated_count(router: RouterProcess) -> int:
    answer = router.client.get(
        f"/api/services/{StreamId(service_id(1))}", headers={"authorization": f"Bearer {TOKEN}"}
    )
    count: int = answer.json()["count"]
    return count


def test_a_router_that_is_killed_has_what_it_answered_and_the_rest_is_done_then(
    tmp_path: Path,
) -> None:
    folder, plan = tmp_path / "data", tmp_path / "plan.jsonl"
    make_queues(folder)
    store = write_plan(folder, plan)
    with running(folder, SYNCLINE_HTTP_TOKEN=TOKEN) as router:
        arguments = ["repair", "--plan", str(plan), "--url", router.url, "--apply"]
        refused = run_cli(*arguments, "--json")
        assert refused.returncode == 2
        assert "SYNCLINE_HTTP_TOKEN" in refused.stderr
        verb = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(SYNCLINE_HTTP_TOKEN=TOKEN),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # With the second batch under way the first was answered.
        while verb.poll() is None and associated_count(router) <= REPAIR_COUNT_MAX:
            pass
        router.kill()
        _, told = verb.communicate(timeout=WAIT_SECONDS)
        assert verb.returncode == 2, told
    answered = re.search(r"(\d+) of 4000 repairs were answered", told)
    assert answered is not None, told
    with running(folder, SYNCLINE_HTTP_TOKEN=TOKEN) as router:
        arguments = ["repair", "--plan", str(plan), "--url", router.url, "--apply", "--json"]
        facts = json.loads(run_cli(*arguments, SYNCLINE_HTTP_TOKEN=TOKEN).stdout)
        assert facts["store"] == store
        assert facts["already"]["associate"] >= int(answered[1]) >= REPAIR_COUNT_MAX
        assert facts["done"]["associate"] + facts["already"]["associate"] == COUNT
        assert associated_count(router) == COUNT
        whole = router.client.post("/api/smp/verify", headers={"authorization": f"Bearer {TOKEN}"})
        assert json.loads(whole.text.splitlines()[-1])["whole"]
