"""The answer in one sentence: was anything lost, late, duplicated, or delivered to the wrong peer?

- *faults*: something of it happened, or what the router keeps is wrong.
- *not proved*: no fault was found, but something could not be looked at.
- *proved*: everything that was to be delivered is accounted for.
- *nothing*: there is nothing to judge.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from syncline.pipeline.report.delivery import Findings, severity
from syncline.pipeline.report.facts import Facts
from syncline.pipeline.report.wording import counted, number
from syncline.pipeline.schemas import DELIVERY_AUDIT, DELIVERY_FINDINGS, EVENTS
from syncline.pipeline.tables import TableSpec

# What to say of so many findings of a rule: of one, of several.
_FAULT_WORDS: Final = {
    "lost": ("{} delivery was lost", "{} deliveries were lost"),
    "rolled_back": (
        "{} stored message was undone by a restore",
        "{} stored messages were undone by a restore",
    ),
    "undurable": (
        "{} delivery was made before it was stored",
        "{} deliveries were made before they were stored",
    ),
    "to_author": ("{} update went back to its author", "{} updates went back to their authors"),
    "after_unsubscribe": (
        "{} delivery went to a reader that had left",
        "{} deliveries went to readers that had left",
    ),
    "unexpected": (
        "{} delivery went to a peer that had not asked for it",
        "{} deliveries went to peers that had not asked for them",
    ),
    "duplicate": ("{} delivery was made twice", "{} deliveries were made twice"),
    "sequence_gap": ("{} sequence was left out", "{} sequences were left out"),
}
WRONG_PEER_RULES: Final = ("to_author", "after_unsubscribe", "unexpected")


class State(StrEnum):
    PROVED = "proved"
    NOT_PROVED = "not proved"
    FAULTS = "faults"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`notes` are further sentences, the weightiest first."""

    state: State
    sentence: str
    notes: tuple[str, ...]


def judge(facts: Facts) -> Verdict:
    faults, wrong, notes = _faults(facts), _wrong_states(facts), _notes(facts)
    if faults:
        sentence = f"{_listed(faults)}{_but_happened(facts)}."
        return Verdict(State.FAULTS, sentence, (*wrong, *notes))
    if facts.delivery is None or not facts.delivery.hours:
        sentence = "Nothing can be said about deliveries yet: no audit has looked at any."
        return Verdict(State.FAULTS if wrong else State.NOTHING, sentence, (*wrong, *notes))
    if wrong:
        return Verdict(State.FAULTS, wrong[0], (*wrong[1:], _happened(facts), *notes))
    if reasons := _reasons_against(facts):
        sentence = (
            f"No fault was found, but it is not proved that nothing was lost: {_listed(reasons)}."
        )
        return Verdict(State.NOT_PROVED, sentence, (_happened(facts), *notes))
    return Verdict(State.PROVED, f"Nothing was lost: {_lower(_happened(facts))}", tuple(notes))


def fault_counts(facts: Facts) -> dict[str, int]:
    """By rule, the worst first. What both tables count is taken from the one that has more."""
    found = dict(facts.findings.faults) if facts.findings is not None else {}
    if facts.delivery is not None:
        for rule in ("lost", "duplicate"):
            count = max(found.get(rule, 0), facts.delivery.totals[rule])
            if count:
                found[rule] = count
    return {rule: found[rule] for rule in sorted(found, key=severity)}


def wrong_peer_count(findings: Findings | None) -> int:
    return sum(findings.faults.get(rule, 0) for rule in WRONG_PEER_RULES) if findings else 0


def _faults(facts: Facts) -> list[str]:
    return [_fault_text(rule, count) for rule, count in fault_counts(facts).items()]


def _fault_text(rule: str, count: int) -> str:
    one, many = _FAULT_WORDS.get(rule, (f"{{}} finding of {rule}", f"{{}} findings of {rule}"))
    return (one if count == 1 else many).format(number(count))


def _wrong_states(facts: Facts) -> list[str]:
    """What routers keep and what the pipeline made of the same log, where the two differ."""
    found: list[str] = []
    if facts.documents is not None and (count := facts.documents.totals["mismatch_count"]):
        found.append(
            f"{counted(count, 'state')} that a router kept of a document "
            f"{'is' if count == 1 else 'are'} not what its updates come to."
        )
    if count := facts.drift.mismatch_count:
        found.append(
            f"{counted(count, 'digest')} that a router kept of a set of ids "
            f"{'is' if count == 1 else 'are'} wrong."
        )
    return found


def _reasons_against(facts: Facts) -> list[str]:
    """Why a clean audit proves nothing."""
    found: list[str] = []
    assert facts.delivery is not None
    if count := facts.delivery.totals["unknown"]:
        found.append(f"{counted(count, 'delivery', 'deliveries')} cannot be judged")
    if facts.logged is None:
        found.append("the events that were audited are not there any more")
    else:
        if count := facts.logged.stretch_count:
            stretches = counted(count, "stretch", "stretches")
            found.append(f"{stretches} of the log {'is' if count == 1 else 'are'} unknown")
        if count := facts.logged.dropped_count:
            found.append(f"routers left {counted(count, 'event')} unnoted")
        if count := facts.logged.silent_count:
            found.append(f"{counted(count, 'run')} of a router noted no events")
    if facts.findings is None:
        found.append("the findings of the audit are not there")
    elif _audited_up_to(facts, DELIVERY_FINDINGS) != _audited_up_to(facts, DELIVERY_AUDIT):
        found.append("the last audit was cut off")
    return found


def _happened(facts: Facts) -> str:
    """Of what was expected, how much came about, and why the rest did not."""
    text = _how_many(facts)
    assert facts.delivery is not None
    if count := facts.delivery.totals["interrupted"]:
        text += f"; {number(count)} did not, because the reader went away"
    return text + "."


def _how_many(facts: Facts) -> str:
    assert facts.delivery is not None
    expected, delivered = (facts.delivery.totals[name] for name in ("expected", "delivered"))
    if not expected:
        return "No deliveries were expected"
    deliveries = counted(expected, "expected delivery", "expected deliveries")
    if delivered >= expected:
        return f"All {deliveries} happened"
    return f"{number(delivered)} of {deliveries} happened"


def _but_happened(facts: Facts) -> str:
    if facts.delivery is None or not facts.delivery.totals["expected"]:
        return ""
    return f"; {_lower(_how_many(facts))}"


def _notes(facts: Facts) -> list[str]:
    found: list[str] = []
    if facts.delivery is not None and (count := facts.delivery.totals["late"]):
        found.append(f"{counted(count, 'delivery', 'deliveries')} came late.")
    if facts.drift.reconciled:
        newest = facts.drift.reconciled[-1]
        if newest.missing or newest.extra:
            found.append(
                f"The router's sets drifted: {counted(newest.missing, 'id')} missing, "
                f"{number(newest.extra)} beyond what is wanted."
            )
    if facts.documents is not None and (count := facts.documents.problem_count):
        found.append(f"{counted(count, 'document')} could not be put together.")
    if pending := _newest(facts, DELIVERY_AUDIT, "pending"):
        open_ = counted(pending, "delivery is", "deliveries are")
        found.append(f"{open_} still open: the next audit judges them.")
    if behind := _audit_is_behind(facts):
        found.append(behind)
    return found


def _audit_is_behind(facts: Facts) -> str | None:
    events, audited = facts.version_of(EVENTS.name), _audited_up_to(facts, DELIVERY_AUDIT)
    if events is None or not isinstance(audited, int) or audited >= events.number:
        return None
    there = f"there is version {events.number} by now"
    return f"The audit has read events up to version {audited}; {there}."


def _audited_up_to(facts: Facts, spec: TableSpec) -> object:
    """Of which version of `events` the newest rows are; None if that is not known."""
    commits = facts.sources[spec.name].commits
    return commits[0].inputs.get(EVENTS.name) if commits else None


def _newest(facts: Facts, spec: TableSpec, name: str) -> int | None:
    """What the newest commit has counted under a name."""
    commits = facts.sources[spec.name].commits
    return commits[0].observed.get(name) if commits else None


def _listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
