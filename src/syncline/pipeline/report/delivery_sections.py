"""The parts of the page about deliveries: what was delivered, what was wrong, how long it took."""

from collections.abc import Mapping
from typing import Final

from syncline.pipeline.report.delivery import Delivery, Findings, Hour
from syncline.pipeline.report.facts import Facts
from syncline.pipeline.report.markup import Content, Html, element, joined
from syncline.pipeline.report.pieces import (
    Section,
    empty,
    folded_away,
    stream_cell,
    table_of,
)
from syncline.pipeline.report.plots import (
    delivery_figure,
    lag_figure,
    latency_figure,
)
from syncline.pipeline.report.readers import COUNTED_MAX, Readers
from syncline.pipeline.report.wording import (
    NOTHING,
    counted,
    cut,
    duration,
    hour,
    moment,
    number,
    sequences,
    session_text,
)
from syncline.pipeline.schemas import (
    CONSUMER_HEALTH,
    DELIVERY_AUDIT,
    DELIVERY_FINDINGS,
)

HOURS_SHOWN_MAX: Final = 72
_RULE_MEANINGS: Final = {
    "lost": "stored, and never delivered to a reader that was to get it",
    "rolled_back": "stored once, and undone by a restore",
    "undurable": "delivered before it was stored, or without",
    "to_author": "delivered to the one who wrote it",
    "after_unsubscribe": "delivered after the reader had left",
    "unexpected": "delivered to a peer that had not asked for it",
    "duplicate": "delivered twice without need",
    "sequence_gap": "a sequence that was never given out",
    "late": "delivered later than allowed",
    "resent": "sent again on a reader's request, or after a break",
    "evicted": "a reader's place was given up",
    "repeated": "a mutation came again and was not stored twice",
    "interrupted": "the reader went away before the delivery",
    "unacknowledged": "delivered, and not acknowledged so far",
    "expired": "given up by age, unread",
    "damage": "a place in the log that fails its check",
    "gap": "a stretch of the log that was not there to be read",
}


# --------------------------------------------------------------------------------------- delivery

_HOUR_COLUMNS: Final = (
    ("appended", "Stored"),
    ("expected", "Expected"),
    ("delivered", "Delivered"),
    ("lost", "Lost"),
    ("duplicate", "Duplicate"),
    ("late", "Late"),
    ("interrupted", "Interrupted"),
    ("unacknowledged", "Unacked"),
    ("unknown", "Unknown"),
)


def delivery_section(facts: Facts) -> Section:
    tables = (DELIVERY_AUDIT.name,)
    found = facts.delivery
    if found is None or not found.hours:
        return empty("delivery", "Delivery", facts, tables, "No delivery has been audited.")
    totals = found.totals
    summary = (
        f"{number(totals['delivered'])} of "
        f"{counted(totals['expected'], 'expected delivery', 'expected deliveries')} happened; "
        f"{number(totals['lost'])} lost, {number(totals['duplicate'])} duplicate, "
        f"{number(totals['late'])} late, {number(totals['unknown'])} unknown."
    )
    body = joined(delivery_figure(found.hours), _hours(found))
    return Section("delivery", "Delivery", summary, body, tables)


def _hours(found: Delivery) -> Html:
    """Newest first; hours with something wrong stay, even if they are older."""
    shown = list(found.hours[::-1][:HOURS_SHOWN_MAX])
    older = found.hours[: -len(shown)]
    total = (
        "All hours",
        *(number(found.totals[key]) for key, _ in _HOUR_COLUMNS),
    )
    caption = "Deliveries by the hour (UTC) in which the message was stored"
    if older:
        caption += f"; the newest {len(shown)} of {number(len(found.hours))} hours"
    table = table_of(
        caption,
        ["Hour", *(title for _, title in _HOUR_COLUMNS)],
        [_hour_row(each) for each in shown],
        numeric=range(1, 1 + len(_HOUR_COLUMNS)),
        foot=total,
    )
    return folded_away("Hour by hour", table)


def _hour_row(found: Hour) -> list[Content]:
    cells: list[Content] = [hour(found.hour_ms)]
    for key, _ in _HOUR_COLUMNS:
        count = found.counts[key]
        is_wrong = count and key in ("lost", "duplicate")
        cells.append(element("strong", number(count), class_="bad") if is_wrong else number(count))
    return cells


# --------------------------------------------------------------------------------------- findings


def findings_section(facts: Facts) -> Section:
    tables = (DELIVERY_FINDINGS.name,)
    found = facts.findings
    if found is None:
        return empty("findings", "Findings", facts, tables, "Nothing has been looked for.")
    sign_count = sum(found.signs.values())
    faults = _rules("Faults", found.faults, "bad")
    signs = _rules("Signs, which are no faults", found.signs, "warn")
    both = element("div", faults, signs, class_="pair") if faults and signs else faults or signs
    summary = (
        f"{_count_or_no(found.fault_count, 'fault')}, {_count_or_no(sign_count, 'sign').lower()}."
    )
    body = joined(both, _faults(found, facts))
    return Section("findings", "Findings", summary, body, tables)


def _count_or_no(count: int, what: str) -> str:
    return counted(count, what) if count else f"No {what}s"


def _rules(caption: str, counts: Mapping[str, int], kind: str) -> Html | None:
    if not counts:
        return None
    rows: list[list[Content]] = [
        [
            element("span", _rule_name(rule), class_=f"rule {kind}"),
            _RULE_MEANINGS.get(rule, ""),
            number(count),
        ]
        for rule, count in counts.items()
    ]
    return table_of(caption, ["Rule", "Meaning", "Count"], rows, numeric=[2], class_="wrap")


def _rule_name(rule: str) -> str:
    return cut(rule.replace("_", " "), 40)


def _faults(found: Findings, facts: Facts) -> Html | None:
    if not found.worst:
        return None
    rest = found.row_count - len(found.worst)
    caption = "Faults, the worst rules first, the newest of each first"
    if rest > 0:
        caption += f"; {number(rest)} more are in the table {DELIVERY_FINDINGS.name}"
    rows: list[list[Content]] = [
        [
            element("span", _rule_name(each.rule), class_="rule bad"),
            stream_cell(each.store, each.stream, facts),
            sequences(each.seq, each.last_seq),
            session_text(each.session),
            moment(each.appended_ms),
            moment(each.found_ms),
            number(each.position or 0),
        ]
        for each in found.worst
    ]
    columns = [
        "Rule",
        "Stream",
        "Sequence",
        "Session",
        "Stored (UTC)",
        "Found (UTC)",
        "Log position",
    ]
    return table_of(caption, columns, rows, numeric=[2, 6])


# ---------------------------------------------------------------------------------------- latency


def latency_section(facts: Facts) -> Section:
    tables = (DELIVERY_AUDIT.name,)
    found = facts.delivery
    if found is None or found.latency is None:
        text = "No delivery has been timed."
        return empty("latency", "Latency", facts, tables, text)
    whole = found.latency
    summary = (
        f"Half of all deliveries took {duration(whole.p50)} or less, 95 % {duration(whole.p95)}, "
        f"99 % {duration(whole.p99)}."
    )
    body = joined(latency_figure(found), _slowest(found, facts))
    return Section("latency", "Latency", summary, body, tables)


def _slowest(found: Delivery, facts: Facts) -> Html:
    rows: list[list[Content]] = []
    for each in found.slowest:
        times = each.latency
        rows.append(
            [
                stream_cell(each.store, each.stream, facts),
                number(each.delivered),
                duration(times.p50) if times else NOTHING,
                duration(times.p95) if times else NOTHING,
                duration(times.p99) if times else NOTHING,
                duration(each.worst_ms),
                hour(each.worst_hour_ms),
            ]
        )
    columns = [
        *("Stream", "Delivered", "p50", "p95", "p99"),
        *("p99, worst hour", "Worst hour (UTC)"),
    ]
    return table_of("Slowest streams, by their worst hour", columns, rows, numeric=range(1, 6))


# ---------------------------------------------------------------------------------------- readers


def readers_section(facts: Facts) -> Section:
    tables = (CONSUMER_HEALTH.name,)
    found = facts.readers
    if found is None or not found.slots:
        text = (
            "No reader was seen: of one that comes and goes between two looks of the job, "
            "nothing is told."
        )
        return empty("readers", "Lag of readers", facts, tables, text)
    rows: list[list[Content]] = [
        [
            stream_cell(each.store, each.stream, facts),
            session_text(each.session),
            duration(each.lag_ms),
            number(each.acked_seq),
            number(each.head_seq),
            number(max(each.head_seq - each.acked_seq, 0)),
            each.rule,
            moment(each.as_of_ms),
        ]
        for each in found.slowest
    ]
    columns = [
        "Document",
        "Session",
        "Behind",
        "Acknowledged",
        "Head",
        "Left",
        "Rule",
        "As of (UTC)",
    ]
    caption = "Readers that were furthest behind on the newest day"
    table = table_of(caption, columns, rows, numeric=range(2, 6))
    body = joined(lag_figure(found), table)
    return Section("readers", "Lag of readers", _lag_text(found), body, tables)


def _lag_text(found: Readers) -> str:
    """Readers are counted, not how often each was looked at."""
    worst = max(each.lag_ms_max for each in found.slots)
    text = f"The reader furthest behind was {duration(worst)} behind; "
    count = found.behind_count
    if not count:
        return text + "none was so far that its place would be given up."
    or_more = " or more" if count >= COUNTED_MAX else ""
    were = "reader was" if count == 1 else "readers were"
    return text + (
        f"{number(count)}{or_more} {were} too far behind, by {duration(found.behind_ms_max)} at "
        "most, and would be given up."
    )
