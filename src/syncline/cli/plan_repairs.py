"""`repair --plan`: a repair plan carried out by a running router, a batch at a time.

What is to go goes first: an id that belongs to one service can only then become another's. Nothing
is sent before the plan was read in full and the router is known to be the one that it was made for.
Whatever cuts it short, the same again goes on where it stopped: what is done is left alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from syncline.cli.folders import whole_path
from syncline.cli.output import Output
from syncline.cli.router_client import RouterClient
from syncline.errors import MalformedMessageError, RefusedError, SynclineError
from syncline.server.smp.associating import REPAIR_COUNT_MAX
from syncline.storage.drift.repair_plans import Plan, read_plan
from syncline.storage.files import DiskFiles
from syncline.values.repairs import Action, Reason, Repair, State

# In one request: as many as a router takes.
_BATCH_COUNT: Final = REPAIR_COUNT_MAX
# Refusals that are told one by one; all are counted.
_TOLD_COUNT_MAX: Final = 20

_WORDS: Final = {
    Reason.UNKNOWN_SERVICE: "the router has no such service",
    Reason.UNKNOWN_ID: "there is no queue, or notifier, with that id",
    Reason.OTHER_ROLE: "the service has another role",
    Reason.OTHER_SERVICE: "it belongs to another service",
    Reason.BLOCKED: "the queue is blocked",
}


class _Answer(msgspec.Struct):
    state: State
    reason: Reason | None = None


class _Answers(msgspec.Struct):
    answers: list[_Answer]


class Tally:
    """What became of the repairs, or would."""

    def __init__(self) -> None:
        self.done: Counter[Action] = Counter()
        self.already: Counter[Action] = Counter()
        self.reasons: Counter[Reason] = Counter()
        self.refused: list[tuple[Repair, Reason]] = []

    @property
    def answered_count(self) -> int:
        return self.done.total() + self.already.total() + self.reasons.total()

    def add(self, repair: Repair, answer: _Answer) -> None:
        if answer.state is State.DONE:
            self.done[repair.action] += 1
        elif answer.state is State.ALREADY:
            self.already[repair.action] += 1
        elif answer.reason is not None:
            self.reasons[answer.reason] += 1
            if len(self.refused) < _TOLD_COUNT_MAX:
                self.refused.append((repair, answer.reason))


def repair_by_plan(output: Output, path: Path, url: str, *, applies: bool) -> bool:
    """Whether nothing is left to do. Raises ConfigError, RefusedError, LinkLostError."""
    client = RouterClient(url)
    with ExitStack() as stack:
        with output.count_progress("reading the plan", None) as bar:
            plan = stack.enter_context(read_plan(whole_path(path), DiskFiles(), bar.advance))
        store = _store_of(client, plan)
        tally = Tally()
        with output.count_progress("repairing" if applies else "asking", plan.head.count) as bar:
            try:
                for batch, answers in _answers(client, store, plan, applies=applies):
                    for repair, answer in zip(batch, answers, strict=True):
                        tally.add(repair, answer)
                    bar.advance(len(batch))
            except SynclineError:
                output.note(
                    f"{tally.answered_count} of {plan.head.count} repairs were answered; "
                    "run it again, what is done is left alone"
                )
                raise
        _tell(output, plan, store, tally, path, is_applied=applies)
    return not tally.reasons and (applies or not tally.done)


def _store_of(client: RouterClient, plan: Plan) -> str:
    """The id of the router's store, in hex. Raises RefusedError if it is not the plan's."""
    store = client.get("/api/smp").get("store")
    if not isinstance(store, str) or not store.startswith(plan.head.store):
        raise RefusedError(
            f"the plan is for the router whose store id begins with {plan.head.store}, and the "
            f"one at {client.url} has {store or 'none'}; check --url"
        )
    return store


def _answers(
    client: RouterClient, store: str, plan: Plan, *, applies: bool
) -> Iterator[tuple[list[Repair], list[_Answer]]]:
    """Batch by batch, in the order in which they are done."""
    freed: set[tuple[str, bytes]] = set()
    for action in (Action.DISSOCIATE, Action.ASSOCIATE):
        for batch in _batches(plan.repairs(action)):
            answers = _asked(client, store, batch, applies=applies)
            if not applies:
                pairs = zip(batch, answers, strict=True)
                answers = [_foreseen(repair, answer, freed) for repair, answer in pairs]
            yield batch, answers


def _foreseen(repair: Repair, answer: _Answer, freed: set[tuple[str, bytes]]) -> _Answer:
    """What is asked for and not done may stand in the way of what comes behind it, or not."""
    place = (repair.role.value, repair.id)
    if repair.action is Action.DISSOCIATE:
        if answer.state is State.DONE:
            freed.add(place)
    elif answer.reason is Reason.OTHER_SERVICE and place in freed:
        return _Answer(State.DONE)
    return answer


def _asked(
    client: RouterClient, store: str, batch: Sequence[Repair], *, applies: bool
) -> list[_Answer]:
    query = "" if applies else "?dry_run=true"
    lines = [
        {
            "action": each.action.value,
            "service": str(each.service),
            "role": each.role.value,
            "id": str(each.id),
        }
        for each in batch
    ]
    said = client.post(f"/api/smp/associations{query}", {"store": store, "repairs": lines})
    try:
        answers = msgspec.convert(said, _Answers).answers
    except msgspec.MsgspecError as error:
        raise MalformedMessageError("the answer is not one of a router; check --url") from error
    refused = [each for each in answers if each.state is State.REFUSED]
    if len(answers) != len(batch) or any(each.reason is None for each in refused):
        raise MalformedMessageError("the answer is not one of a router; check --url")
    return answers


def _batches(repairs: Iterable[Repair]) -> Iterator[list[Repair]]:
    batch: list[Repair] = []
    for each in repairs:
        batch.append(each)
        if len(batch) == _BATCH_COUNT:
            yield batch
            batch = []
    if batch:
        yield batch


# ------------------------------------------------------------------------------------------ telling


def _tell(
    output: Output, plan: Plan, store: str, tally: Tally, path: Path, *, is_applied: bool
) -> None:
    if output.is_json:
        output.json(_facts(plan, store, tally, path, is_applied=is_applied))
        return
    would = "" if is_applied else "would be "
    for action in Action:
        output.line(f"{tally.done[action]} {would}{action}d, {tally.already[action]} are already")
    for repair, reason in tally.refused:
        output.line(
            f"{repair.action} {repair.id} ({repair.role}) of service {repair.service}: "
            f"{_WORDS[reason]}",
            style="red",
        )
    if tally.reasons.total() > len(tally.refused):
        output.line(f"… and {tally.reasons.total() - len(tally.refused)} more are refused")
    if not is_applied and tally.done:
        output.line("nothing was changed; --apply does it")
    elif not tally.reasons:
        output.line("the sets are as the plan wants them", style="green")


def _facts(plan: Plan, store: str, tally: Tally, path: Path, *, is_applied: bool) -> dict[str, Any]:
    return {
        "applied": is_applied,
        "plan": whole_path(path),
        "router": plan.head.router,
        "wanted": plan.head.wanted,
        "store": store,
        "count": plan.head.count,
        "done": {action.value: tally.done[action] for action in Action},
        "already": {action.value: tally.already[action] for action in Action},
        "refused": tally.reasons.total(),
        "reasons": {reason.value: count for reason, count in sorted(tally.reasons.items())},
        "refused_repairs": [
            {
                "action": repair.action.value,
                "service": str(repair.service),
                "role": repair.role.value,
                "id": str(repair.id),
                "reason": reason.value,
            }
            for repair, reason in tally.refused
        ],
    }
