"""The parts of the page about what is kept: sets, storage, documents, and where all is from."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from syncline.pipeline.report.documents import DocumentState
from syncline.pipeline.report.drift import Drift, Reconciled
from syncline.pipeline.report.facts import Facts
from syncline.pipeline.report.history import Commit
from syncline.pipeline.report.logs import Logs
from syncline.pipeline.report.markup import Content, Html, element, joined
from syncline.pipeline.report.pieces import (
    Section,
    alarming,
    empty,
    log_line,
    log_name,
    stream_cell,
    table_of,
    to_run,
)
from syncline.pipeline.report.plots import (
    age_figure,
    drift_figure,
    logged_figure,
)
from syncline.pipeline.report.storage import Logged, Plan
from syncline.pipeline.report.wording import (
    NOTHING,
    byte_text,
    counted,
    cut,
    minute,
    moment,
    number,
    session_text,
    stream_text,
)
from syncline.pipeline.schemas import (
    DOCUMENT_STATES,
    DRIFT_ITEMS,
    EVENTS,
    SERVICE_DIGESTS,
    TRUNCATION_PLAN,
)

RUNS_SHOWN_MAX: Final = 24
COMMITS_SHOWN_MAX: Final = 20
_INPUTS_CHARACTERS_MAX: Final = 300


# ------------------------------------------------------------------------------------------ drift


def drift_section(facts: Facts) -> Section:
    tables = (SERVICE_DIGESTS.name, DRIFT_ITEMS.name)
    found = facts.drift
    if not found.digested and not found.reconciled:
        return empty("drift", "Drift of sets", facts, tables, "No sets of ids have been compared.")
    parts: list[str] = []
    if found.digested:
        wrong = found.mismatch_count
        parts.append(
            "Every digest that routers keep now is right."
            if not wrong
            else f"{counted(wrong, 'digest')} that routers keep now "
            f"{'is' if wrong == 1 else 'are'} wrong."
        )
    if found.reconciled:
        newest = found.reconciled[-1]
        parts.append(
            f"In the newest comparison {counted(newest.missing, 'id')} "
            f"{'is' if newest.missing == 1 else 'are'} missing and {number(newest.extra)} extra."
        )
    body = joined(
        _comparisons(facts, found.reconciled),
        _services(found.reconciled[-1]) if found.reconciled else None,
        _digests(facts, found),
        _wrong_sets(found),
    )
    return Section("drift", "Drift of sets", " ".join(parts), body, tables)


def _comparisons(facts: Facts, runs: Sequence[Reconciled]) -> Html:
    if not runs:
        return to_run(facts, (DRIFT_ITEMS.name,), "No router was compared with what is wanted.")
    return drift_figure(runs[-RUNS_SHOWN_MAX:])


def _digests(facts: Facts, found: Drift) -> Html:
    if not found.digested:
        return to_run(facts, (SERVICE_DIGESTS.name,), "No digest has been checked.")
    shown = found.digested[::-1][:RUNS_SHOWN_MAX]
    rows: list[list[Content]] = [
        [
            element("code", cut(each.snapshot, 60)),
            minute(each.time_ms),
            number(each.set_count),
            number(each.id_count),
            alarming(each.mismatch_count),
        ]
        for each in shown
    ]
    caption = "Digests that routers keep, checked; newest snapshot first"
    if len(found.digested) > len(shown):
        caption += f", {len(shown)} of {number(len(found.digested))}"
    return table_of(
        caption, ["Snapshot", "Checked (UTC)", "Sets", "Ids", "Wrong"], rows, numeric=[2, 3, 4]
    )


def _wrong_sets(found: Drift) -> Html | None:
    if not found.wrong:
        return None
    rows: list[list[Content]] = [
        [
            element("code", cut(each.snapshot, 60)),
            element("code", stream_text(each.service)),
            each.role,
            number(each.count),
            number(each.claimed_count),
        ]
        for each in found.wrong
    ]
    columns = ["Snapshot", "Service", "Role", "Ids", "Claimed"]
    return table_of("Sets whose kept digest is wrong", columns, rows, numeric=[3, 4])


def _services(newest: Reconciled) -> Html | None:
    if not newest.services:
        return None
    caption = f"Services that drifted, in the newest comparison ({cut(newest.run)})"
    if newest.service_count > len(newest.services):
        caption += f"; the worst {len(newest.services)} of {number(newest.service_count)}"
    rows: list[list[Content]] = [
        [
            element("code", stream_text(each.service)),
            each.role,
            number(each.missing),
            number(each.extra),
        ]
        for each in newest.services
    ]
    return table_of(caption, ["Service", "Role", "Missing", "Extra"], rows, numeric=[2, 3])


# ---------------------------------------------------------------------------------------- storage


def storage_section(facts: Facts) -> Section:
    tables = (EVENTS.name, TRUNCATION_PLAN.name)
    logged, plan = facts.logged, facts.plan
    has_slots = logged is not None and bool(logged.slots)
    if not has_slots and plan is None:
        return empty("storage", "Storage", facts, tables, "Nothing has been read of any log.")
    parts: list[str] = []
    if logged is not None and logged.slots:
        total = sum(slot.message_bytes + slot.snapshot_bytes for slot in logged.slots)
        messages = sum(slot.message_count for slot in logged.slots)
        parts.append(
            f"{counted(messages, 'message')} and their snapshots come to {byte_text(total)}."
        )
    if plan is not None:
        free = sum(each.reclaimable_bytes for each in plan.holders)
        held = sum(each.held_bytes for each in plan.holders)
        parts.append(f"{byte_text(free)} can be reclaimed, {byte_text(held)} are held.")
    body = joined(
        element(
            "div",
            logged_figure(logged) if logged is not None and logged.slots else None,
            _plan_figure(facts, plan),
            class_="pair",
        ),
        _holders(plan, facts) if plan is not None else None,
    )
    return Section("storage", "Storage by age", " ".join(parts), body, tables)


def _plan_figure(facts: Facts, plan: Plan | None) -> Html:
    if plan is None:
        text = "What could be truncated has not been worked out."
        return to_run(facts, (TRUNCATION_PLAN.name,), text)
    return age_figure(plan.held_by_age)


def _holders(plan: Plan, facts: Facts) -> Html:
    rows: list[list[Content]] = [
        [
            each.held_by,
            number(each.stream_count),
            number(each.reclaimable_count),
            byte_text(each.reclaimable_bytes),
            byte_text(each.held_bytes),
        ]
        for each in plan.holders
    ]
    columns = ["Held by", "Streams", "Reclaimable messages", "Reclaimable", "Held"]
    holders = table_of("What holds the rest of each stream", columns, rows, numeric=range(1, 5))
    held: list[list[Content]] = [
        [
            stream_cell(each.store, each.stream, facts),
            each.held_by,
            session_text(each.session),
            byte_text(each.held_bytes),
            byte_text(each.reclaimable_bytes),
            moment(each.oldest_held_ms),
        ]
        for each in plan.largest
    ]
    if not held:
        return holders
    columns = ["Stream", "Held by", "Session", "Held", "Reclaimable", "Oldest held (UTC)"]
    return joined(holders, table_of("Streams that hold most", columns, held, numeric=[3, 4]))


# -------------------------------------------------------------------------------------- documents


def documents_section(facts: Facts) -> Section:
    tables = (DOCUMENT_STATES.name,)
    found = facts.documents
    if found is None:
        return empty("documents", "Documents", facts, tables, "No document has been put together.")
    totals = found.totals
    summary = (
        f"{counted(found.document_count, 'document')}"
        f"{', each counted in every log that has it' if facts.logs.are_several else ''}: "
        f"{counted(totals['update_count'], 'update')} of {byte_text(totals['bytes_in'])} "
        f"come to {byte_text(totals['bytes_out'])}. "
        f"{counted(totals['checked_count'], 'state')} of routers compared, "
        f"{number(totals['mismatch_count'])} differ."
    )
    wrong = None
    if found.wrong:
        caption = "Documents whose state differs, or that could not be put together"
        if found.wrong_count > len(found.wrong):
            caption += f"; the worst {len(found.wrong)} of {number(found.wrong_count)}"
        wrong = table_of(
            caption,
            [*_DOCUMENT_COLUMNS, "Problem"],
            [[*_document_row(each, facts), cut(each.problem) or NOTHING] for each in found.wrong],
            numeric=range(2, 8),
        )
    largest = table_of(
        "Documents with the most bytes of updates",
        _DOCUMENT_COLUMNS,
        [_document_row(each, facts) for each in found.largest],
        numeric=range(2, 8),
    )
    return Section("documents", "Documents", summary, joined(wrong, largest), tables)


_DOCUMENT_COLUMNS: Final = [
    "Document",
    "Kind",
    "Sequence",
    "Updates",
    "In",
    "Out",
    "Compared",
    "Differ",
]


def _document_row(each: DocumentState, facts: Facts) -> list[Content]:
    return [
        joined(element("span", cut(each.name), class_="name"), log_line(each.store, facts.logs))
        if each.name
        else stream_cell(each.store, each.stream, facts),
        each.kind,
        number(each.up_to_seq),
        number(each.update_count),
        byte_text(each.bytes_in),
        byte_text(each.bytes_out),
        number(each.checked_count),
        alarming(each.mismatch_count),
    ]


# ---------------------------------------------------------------------------------------- unknown


def unknown_section(facts: Facts) -> Section:
    tables = (EVENTS.name,)
    found = facts.logged
    if found is None:
        return empty("unknown", "Unknown stretches", facts, tables, "No log has been read.")
    body = _stretches(found, facts.logs)
    return Section("unknown", "Unknown stretches", _unknown_text(found), body, tables)


def _unknown_text(found: Logged) -> str:
    parts: list[str] = []
    if found.stretch_count:
        stretches = counted(found.stretch_count, "stretch", "stretches")
        parts.append(
            f"{stretches} of the log could not be read, {byte_text(found.unread_bytes)} in all."
        )
    else:
        parts.append("Every stretch of the log was read.")
    if found.dropped_count:
        parts.append(f"Routers left {counted(found.dropped_count, 'event')} unnoted.")
    if found.silent_count:
        parts.append(f"{counted(found.silent_count, 'run')} of a router noted no events.")
    if found.torn_count:
        batches = counted(found.torn_count, "batch", "batches")
        parts.append(f"{batches} cut off by a crash, never acknowledged: nothing is missing there.")
    return " ".join(parts)


def _stretches(found: Logged, logs: Logs) -> Html:
    if not found.stretches:
        return Html()
    rows: list[list[Content]] = [
        [
            element("span", each.kind, class_="rule warn"),
            number(each.position),
            byte_text(each.byte_count),
            cut(each.reason),
            *([log_name(each.store, logs)] if logs.are_several else []),
        ]
        for each in found.stretches
    ]
    caption = "Stretches of which nothing is known, the longest first"
    if found.stretch_count > len(rows):
        caption += f"; {len(rows)} of {number(found.stretch_count)}"
    columns = ["Kind", "Position", "Length", "Why", *(["Log"] if logs.are_several else [])]
    return table_of(caption, columns, rows, numeric=[1, 2], class_="wrap")


# ---------------------------------------------------------------------------------------- history


def history_section(facts: Facts) -> Section:
    there = [each for each in facts.sources.values() if each.version is not None]
    if not there:
        return empty("history", "Run history", facts, (EVENTS.name,), "There are no tables.")
    commits = [
        commit for each in there for commit in each.commits if commit.job or commit.row_count
    ]
    newest = sorted(commits, key=lambda each: (-(each.time_ms or 0), each.table, -each.version))
    shown = _newest_of_each(newest)
    summary = f"{counted(len(there), 'table')}, {counted(len(commits), 'load')}."
    caption = "Loads, newest first"
    if len(shown) < len(commits):
        caption += f"; the newest {COMMITS_SHOWN_MAX} of each table"
    table = table_of(
        caption,
        ["When (UTC)", "Table", "Job", "Rows", "Read", "Counted"],
        [_commit_row(each) for each in shown],
        numeric=[3],
        class_="wrap",
    )
    return Section("history", "Run history", summary, table, tuple(each.name for each in there))


def _newest_of_each(commits: Iterable[Commit]) -> list[Commit]:
    counts: dict[str, int] = {}
    kept: list[Commit] = []
    for each in commits:
        counts[each.table] = counts.get(each.table, 0) + 1
        if counts[each.table] <= COMMITS_SHOWN_MAX:
            kept.append(each)
    return kept


def _commit_row(each: Commit) -> list[Content]:
    return [
        moment(each.time_ms),
        element("code", f"{each.table}@{each.version}"),
        each.job or NOTHING,
        number(each.row_count),
        cut(_pairs(each.inputs), _INPUTS_CHARACTERS_MAX) or NOTHING,
        cut(
            _pairs({name: count for name, count in each.observed.items() if count}),
            _INPUTS_CHARACTERS_MAX,
        )
        or NOTHING,
    ]


def _pairs(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in sorted(facts.items()))


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str | int) else json.dumps(value, sort_keys=True)
