"""`repair --plan`: what is sent to a router, in which order, and what is said of the answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from syncline.cli import plan_repairs
from syncline.cli.keeping import repair
from syncline.cli.output import Output
from syncline.cli.plan_repairs import repair_by_plan
from syncline.errors import (
    ConfigError,
    LinkLostError,
    MalformedMessageError,
    RefusedError,
    SynclineError,
)
from syncline.storage.drift.repair_plans import PlanHead, encode_head, encode_repair
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.repairs import Action, Repair

STORE = "0123abcd" + "00" * 12
VERB = typer.Typer()
VERB.command()(repair)
Line = dict[str, str]


class Router:
    """Keeps sets as dictionaries, and notes every batch that it is sent."""

    def __init__(self) -> None:
        self.store: str | None = STORE
        self.url = "http://router"
        self.services = {name(1), name(2)}
        # Ids that exist, by role, and what they belong to.
        self.owners: dict[tuple[str, str], str | None] = {}
        self.batches: list[tuple[bool, list[Line]]] = []
        self.left: int | None = None

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/smp"
        return {"store": self.store}

    def post(self, path: str, value: Any) -> dict[str, Any]:
        if self.left is not None:
            if self.left == 0:
                raise LinkLostError("the router is gone")
            self.left -= 1
        is_dry = path == "/api/smp/associations?dry_run=true"
        assert is_dry or path == "/api/smp/associations"
        assert value["store"] == STORE
        self.batches.append((is_dry, value["repairs"]))
        return {"answers": [self._answer(each, is_dry) for each in value["repairs"]]}

    def _answer(self, line: Line, is_dry: bool) -> Line:
        place, service = (line["role"], line["id"]), line["service"]
        owner = self.owners.get(place)
        if line["action"] == "dissociate":
            if owner != service:
                return {"state": "already"}
            if not is_dry:
                self.owners[place] = None
            return {"state": "done"}
        if service not in self.services:
            return {"state": "refused", "reason": "unknown_service"}
        if place not in self.owners:
            return {"state": "refused", "reason": "unknown_id"}
        if owner is not None:
            if owner == service:
                return {"state": "already"}
            return {"state": "refused", "reason": "other_service"}
        if not is_dry:
            self.owners[place] = service
        return {"state": "done"}


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    made = Router()
    monkeypatch.setattr(plan_repairs, "RouterClient", lambda url: made)
    return made


def id_of(number: int) -> StreamId:
    return StreamId(number.to_bytes(24, "big"))


def name(number: int) -> str:
    return str(id_of(number))


def made_of(action: Action, service: int, id_: int) -> Repair:
    return Repair(action, id_of(service), ServiceRole.MESSAGING, id_of(id_))


def written(path: Path, repairs: Sequence[Repair]) -> Path:
    ordered = sorted(repairs, key=lambda each: (each.service, each.role.value, each.id))
    head = PlanHead("0123abcd-0123456789abcdef", "89ab0123-0123456789abcdef", len(ordered))
    path.write_text(encode_head(head) + "".join(map(encode_repair, ordered)))
    return path


def run(path: Path, *more: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(
        VERB, ["--plan", str(path), "--url", "http://router", "--json", *more]
    )
    return result.exit_code, json.loads(result.stdout)


def refusal(path: Path, *more: str) -> SynclineError:
    result = CliRunner().invoke(VERB, ["--plan", str(path), "--url", "http://router", *more])
    assert isinstance(result.exception, SynclineError), result.output
    return result.exception


def test_what_goes_goes_first_so_that_an_id_can_move(tmp_path: Path, router: Router) -> None:
    # Sorted by service, what comes stands before what goes.
    moved = [made_of(Action.ASSOCIATE, 1, 7), made_of(Action.DISSOCIATE, 2, 7)]
    router.owners = {("M", name(7)): name(2)}
    path = written(tmp_path / "plan", moved)
    code, facts = run(path)
    assert (code, facts["applied"]) == (1, False)
    assert facts["done"] == {"associate": 1, "dissociate": 1}
    assert router.owners == {("M", name(7)): name(2)}, "only asked"
    code, facts = run(path, "--apply")
    assert (code, facts["refused"]) == (0, 0)
    assert facts["done"] == {"associate": 1, "dissociate": 1}
    assert router.owners == {("M", name(7)): name(1)}
    actions = [[each["action"] for each in batch] for _, batch in router.batches]
    assert actions == [["dissociate"], ["associate"]] * 2
    for more in ((), ("--apply",)):
        code, facts = run(path, *more)
        assert (code, facts["done"]) == (0, {"associate": 0, "dissociate": 0})
        assert facts["already"] == {"associate": 1, "dissociate": 1}


def test_only_what_would_be_let_go_of_is_foreseen(tmp_path: Path, router: Router) -> None:
    router.owners = {("M", name(7)): name(2), ("M", name(8)): name(2), ("M", name(9)): None}
    path = written(
        tmp_path / "plan",
        [
            made_of(Action.ASSOCIATE, 1, 7),
            made_of(Action.ASSOCIATE, 1, 8),
            made_of(Action.DISSOCIATE, 2, 7),
            made_of(Action.DISSOCIATE, 2, 9),
        ],
    )
    asked, done = run(path), run(path, "--apply")
    assert asked[0] == done[0] == 1
    for key in ("done", "already", "refused", "reasons", "refused_repairs"):
        assert asked[1][key] == done[1][key], key
    assert done[1]["reasons"] == {"other_service": 1}
    assert [each["id"] for each in done[1]["refused_repairs"]] == [name(8)]


def test_batches_are_as_large_as_a_router_takes(
    tmp_path: Path, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_repairs, "_BATCH_COUNT", 4)
    router.owners = {("M", name(number)): None for number in range(10)}
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, n) for n in range(10)])
    assert run(path, "--apply")[1]["done"]["associate"] == 10
    assert [len(batch) for _, batch in router.batches] == [4, 4, 2]
    sent = [each["id"] for _, batch in router.batches for each in batch]
    assert sent == [name(number) for number in range(10)]


def test_what_was_cut_short_goes_on_when_it_is_run_again(
    tmp_path: Path, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_repairs, "_BATCH_COUNT", 4)
    router.owners = {("M", name(number)): None for number in range(10)}
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, n) for n in range(10)])
    router.left = 2
    result = CliRunner().invoke(VERB, ["--plan", str(path), "--url", "http://router", "--apply"])
    assert isinstance(result.exception, LinkLostError)
    assert "8 of 10 repairs were answered" in result.stderr
    router.left = None
    code, facts = run(path, "--apply")
    assert (code, facts["done"]["associate"], facts["already"]["associate"]) == (0, 2, 8)


def test_refusals_are_told_and_counted(
    tmp_path: Path, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_repairs, "_TOLD_COUNT_MAX", 2)
    router.owners = {("M", name(7)): None}
    repairs = [
        *(made_of(Action.ASSOCIATE, 1, number) for number in (5, 6, 7)),
        made_of(Action.ASSOCIATE, 3, 7),
    ]
    path = written(tmp_path / "plan", repairs)
    result = CliRunner().invoke(VERB, ["--plan", str(path), "--url", "http://router", "--apply"])
    assert result.exit_code == 1
    assert "1 associated, 0 are already" in result.stdout
    assert result.stdout.count("no queue, or notifier") == 2
    assert "and 1 more are refused" in result.stdout
    assert "as the plan wants" not in result.stdout
    code, facts = run(path)
    assert (code, facts["refused"]) == (1, 3)
    assert facts["reasons"] == {"unknown_id": 2, "unknown_service": 1}
    assert len(facts["refused_repairs"]) == 2


def test_people_are_told_what_would_be_done_and_what_was(tmp_path: Path, router: Router) -> None:
    router.owners = {("M", name(7)): None}
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, 7)])
    arguments = ["--plan", str(path), "--url", "http://router"]
    asked = CliRunner().invoke(VERB, arguments)
    assert asked.exit_code == 1
    assert "1 would be associated" in asked.stdout
    assert "nothing was changed; --apply does it" in asked.stdout
    done = CliRunner().invoke(VERB, [*arguments, "--apply"])
    assert done.exit_code == 0
    assert "the sets are as the plan wants them" in done.stdout


@pytest.mark.parametrize("store", [None, "99" * 16, "0123abc", ""])
def test_another_router_is_sent_nothing(tmp_path: Path, router: Router, store: str | None) -> None:
    router.store = store
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, 7)])
    error = refusal(path, "--apply")
    assert isinstance(error, RefusedError)
    assert "0123abcd" in str(error)
    assert router.batches == []


def test_a_plan_that_is_cut_short_sends_nothing(tmp_path: Path, router: Router) -> None:
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, 7)] * 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert isinstance(refusal(path, "--apply"), ConfigError)
    assert isinstance(refusal(tmp_path / "absent", "--apply"), ConfigError)
    assert router.batches == []


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [{"state": "done"}] * 2,
        [{"state": "odd"}],
        [{"state": "refused"}],
        [{"state": "refused", "reason": "odd"}],
        None,
    ],
)
def test_answers_that_make_no_sense_are_not_believed(
    tmp_path: Path, router: Router, monkeypatch: pytest.MonkeyPatch, answers: object
) -> None:
    monkeypatch.setattr(router, "post", lambda path, value: {"answers": answers})
    path = written(tmp_path / "plan", [made_of(Action.ASSOCIATE, 1, 7)])
    assert isinstance(refusal(path, "--apply"), MalformedMessageError)


def test_an_empty_plan_is_done(tmp_path: Path, router: Router) -> None:
    path = written(tmp_path / "plan", [])
    assert repair_by_plan(Output(is_json=True), path, "http://router", applies=True)
    assert router.batches == []


@pytest.mark.parametrize(
    "arguments",
    [["--plan", "plan"], ["--url", "http://router"], ["data", "--plan", "p", "--url", "u"]],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], router: Router) -> None:
    assert CliRunner().invoke(VERB, arguments).exit_code == 2
    assert router.batches == []
