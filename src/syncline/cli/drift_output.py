"""How `syncline drift` tells what it found, to people and to programs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

from syncline.cli.output import Output, bytes_text
from syncline.core.reconciliation.initiator import Mode
from syncline.storage.drift.comparing import Comparison
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.reconciliation import ID_BYTES, SetState

EXIT_DRIFT = 1
EXIT_UNKNOWN = 2

ROLE_NAMES = {
    ServiceRole.MESSAGING: "messaging",
    ServiceRole.NOTIFIER: "notifier",
    ServiceRole.PROXY: "proxy",
}

# Blocks of facts for people; the rest is counted.
_SHOWN_COUNT_MAX = 20


class Verdict(Enum):
    EQUAL = "equal"
    DRIFT = "drift"
    # It could not be found out.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Counted:
    """All that a router without reconciliation tells."""

    first_count: int
    second_count: int
    # Their hashes too.
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do, by name; and what is left, if it was looked for."""

    done: Mapping[str, int]
    is_dry: bool
    left: Comparison | None = None
    # What cannot be repaired, ids one after another, and why.
    unrepaired: bytes = b""
    reasons: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        is_equal = self.left is not None and self.left.is_equal
        return is_equal and not self.unrepaired and not self.reasons


@dataclass(frozen=True, slots=True)
class Compared:
    """Two sets. `facts` say whose they are; `troubles` what is wrong beside their difference."""

    title: str
    facts: Mapping[str, str | None]
    comparison: Comparison | None
    troubles: tuple[str, ...] = ()
    repaired: Repaired | None = None
    counted: Counted | None = None

    @property
    def verdict(self) -> Verdict:
        if self.repaired is not None and self.repaired.is_whole:
            return Verdict.EQUAL
        found = self.comparison or self.counted
        if found is None:
            return Verdict.UNKNOWN
        is_equal = found.is_equal and not self.troubles
        return Verdict.EQUAL if is_equal else Verdict.DRIFT

    @property
    def is_worth_telling(self) -> bool:
        return self.verdict is not Verdict.EQUAL or self.repaired is not None


@dataclass(frozen=True, slots=True)
class Report:
    """Of one run. `notes` are about all of it, `advice` says what to do."""

    kind: str
    first: str
    second: str
    mode: Mode
    compared: Sequence[Compared]
    notes: tuple[str, ...] = ()
    # Wrong in what was given, such as lines of a file that are no ids.
    flaws: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    advice: str | None = None
    sides: tuple[str, str] = ("only in the first", "only in the second")

    @property
    def verdict(self) -> Verdict:
        found = {each.verdict for each in self.compared}
        if Verdict.DRIFT in found:
            return Verdict.DRIFT
        return Verdict.UNKNOWN if Verdict.UNKNOWN in found else Verdict.EQUAL

    @property
    def exit_code(self) -> int:
        if self.verdict is Verdict.DRIFT or self.flaws:
            return EXIT_DRIFT
        return EXIT_UNKNOWN if self.verdict is Verdict.UNKNOWN else 0


def tell(output: Output, report: Report, list_count: int) -> None:
    if output.is_json:
        output.json(_json(report, list_count))
        return
    output.line(f"compared {report.first} with {report.second}")
    for note in report.notes:
        output.line(note)
    told = [each for each in report.compared if each.is_worth_telling]
    if len(report.compared) == 1:
        told = list(report.compared)
    for each in told[:_SHOWN_COUNT_MAX]:
        output.facts(each.title, dict(_shown(each, report.sides, list_count)))
    if len(told) > _SHOWN_COUNT_MAX:
        output.line(f"… and {len(told) - _SHOWN_COUNT_MAX:,} more; --json has all of them")
    if len(told) < len(report.compared):
        others = "services are" if not told else "others are"
        output.line(f"{len(report.compared) - len(told):,} {others} equal")
    for flaw in report.flaws:
        output.line(flaw, style="yellow")
    _tell_verdict(output, report)


def _tell_verdict(output: Output, report: Report) -> None:
    match report.verdict:
        case Verdict.EQUAL if not report.compared:
            output.line("there is nothing to compare: neither has a service", style="green")
        case Verdict.EQUAL:
            output.line("the sets are equal", style="bold green")
        case Verdict.DRIFT:
            output.line("the sets are not equal", style="bold red")
        case Verdict.UNKNOWN:
            output.line("it could not be found out whether the sets are equal", style="bold red")
    if report.advice is not None:
        output.line(report.advice)


# ---------------------------------------------------------------------------------------- people


def _shown(
    compared: Compared, sides: tuple[str, str], list_count: int
) -> Iterable[tuple[str, str]]:
    comparison = compared.comparison
    if comparison is not None:
        yield "ids", f"{comparison.first.count:,} and {comparison.second.count:,}"
        yield "digests", "equal" if comparison.is_equal else "differ"
        if comparison.failure is not None:
            yield "not found", comparison.failure
        elif not comparison.is_equal:
            yield sides[0], _ids_text(comparison.only_first, list_count)
            yield sides[1], _ids_text(comparison.only_second, list_count)
        yield "took", _traffic_text(comparison)
    if compared.counted is not None:
        counted = compared.counted
        yield "ids", f"{counted.first_count:,} and {counted.second_count:,}"
        yield "count and hash", "equal" if counted.is_equal else "differ"
    if compared.troubles:
        yield "wrong", "; ".join(compared.troubles)
    repaired = compared.repaired
    if repaired is None:
        return
    done = {name: count for name, count in repaired.done.items() if count}
    what = ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in done.items())
    yield "would be" if repaired.is_dry else "done", what or "nothing"
    if repaired.unrepaired:
        yield "cannot be repaired", _ids_text(repaired.unrepaired, list_count)
    if repaired.reasons:
        yield "not repaired", "; ".join(repaired.reasons)
    if repaired.left is not None:
        yield "left", _left_text(repaired.left, sides)


def _left_text(left: Comparison, sides: tuple[str, str]) -> str:
    if left.is_equal:
        return "nothing, the sets are equal"
    return f"{left.only_first_count:,} {sides[0]}, {left.only_second_count:,} {sides[1]}"


def _ids_text(ids: bytes, list_count: int) -> str:
    count = len(ids) // ID_BYTES
    shown = list(_texts(ids, list_count))
    more = ["…"] if shown and count > len(shown) else []
    return f"{count:,}" + (": " + " ".join(shown + more) if shown else "")


def _traffic_text(comparison: Comparison) -> str:
    traffic = comparison.traffic
    if not traffic.round_trips:
        return "nothing beyond the digests"
    trips = f"{traffic.round_trips} round trip{'s' if traffic.round_trips > 1 else ''}"
    asked, answered = bytes_text(traffic.asked_bytes), bytes_text(traffic.answered_bytes)
    return f"{trips}, {asked} asked and {answered} answered"


# -------------------------------------------------------------------------------------- programs


def _json(report: Report, list_count: int) -> dict[str, object]:
    return {
        "kind": report.kind,
        "first": report.first,
        "second": report.second,
        "mode": report.mode.value,
        "verdict": report.verdict.value,
        "compared": [_row(each, list_count) for each in report.compared],
        "notes": [*report.notes, *report.flaws],
        **report.details,
    }


def _row(compared: Compared, list_count: int) -> dict[str, object]:
    found: dict[str, object] = {**compared.facts, "verdict": compared.verdict.value}
    if compared.comparison is not None:
        found |= _facts(compared.comparison, list_count)
    if compared.counted is not None:
        found |= asdict(compared.counted)
    found["troubles"] = compared.troubles
    repaired = compared.repaired
    if repaired is not None:
        found["repair"] = {
            "dry_run": repaired.is_dry,
            "done": dict(repaired.done),
            "unrepaired": len(repaired.unrepaired) // ID_BYTES,
            "unrepaired_ids": list(_texts(repaired.unrepaired, list_count)),
            "reasons": repaired.reasons,
            "left": None if repaired.left is None else _facts(repaired.left, list_count),
        }
    return found


def _facts(comparison: Comparison, list_count: int) -> dict[str, object]:
    traffic = comparison.traffic
    return {
        "equal": comparison.is_equal,
        "first_set": _state(comparison.first),
        "second_set": _state(comparison.second),
        "only_first": comparison.only_first_count,
        "only_second": comparison.only_second_count,
        "only_first_ids": list(_texts(comparison.only_first, list_count)),
        "only_second_ids": list(_texts(comparison.only_second, list_count)),
        "asked_bytes": traffic.asked_bytes,
        "answered_bytes": traffic.answered_bytes,
        "round_trips": traffic.round_trips,
        "failure": comparison.failure,
    }


def _state(state: SetState) -> dict[str, object]:
    return {"count": state.count, "xor128": state.xor128.hex(), "sum128": state.sum128.hex()}


def _texts(ids: bytes, count: int) -> Iterable[str]:
    starts = range(0, len(ids), ID_BYTES)[:count]
    return (str(StreamId(ids[start : start + ID_BYTES])) for start in starts)
