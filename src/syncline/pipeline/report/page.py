"""The page: one file that needs nothing else, neither a network nor a script."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from syncline.pipeline.report.facts import READ, Facts
from syncline.pipeline.report.history import Source
from syncline.pipeline.report.markup import Html, element, joined
from syncline.pipeline.report.pieces import COMMANDS, Section
from syncline.pipeline.report.verdict import State, Verdict, fault_counts, wrong_peer_count
from syncline.pipeline.report.wording import counted, duration, hour, moment, number
from syncline.pipeline.schemas import DELIVERY_AUDIT, SERVICE_DIGESTS

_STATE_WORDS: Final = {
    State.PROVED: "Proved",
    State.NOT_PROVED: "Not proved",
    State.FAULTS: "Faults found",
    State.NOTHING: "Nothing to judge",
}
# Not by colour alone: a tick, a question, a cross, a dash.
_STATE_STROKES: Final = {
    State.PROVED: "M7 12.5l3.4 3.4L17 8.6",
    State.NOT_PROVED: "M9 9.4a3 3 0 1 1 4.3 2.7c-.9.5-1.3 1-1.3 2M12 16.8v.2",
    State.FAULTS: "M8.4 8.4l7.2 7.2M15.6 8.4l-7.2 7.2",
    State.NOTHING: "M8 12h8",
}
_MARK: Final = Html(
    '<svg viewBox="0 0 32 32" aria-hidden="true">'
    '<rect width="32" height="32" rx="8" fill="#1d3557"/>'
    '<g fill="none" stroke-linecap="round">'
    '<path d="M5 11c5 0 6 10 11 10s6-10 11-10" stroke="#f4a259" stroke-width="3"/>'
    '<path d="M5 18c5 0 6 7 11 7s6-7 11-7" stroke="#a8dadc" stroke-width="2.2"/></g></svg>'
)


def page(facts: Facts, verdict: Verdict, parts: Sequence[Section], made_at_ms: int | None) -> Html:
    style = files("syncline.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{_STATE_WORDS[verdict.state]} · Syncline report"),
        element("style", Html(style)),
    )
    body = element(
        "body",
        _bar(facts),
        element(
            "main",
            _verdict(verdict),
            _answers(facts),
            _contents(parts),
            map(_section, parts, [facts] * len(parts)),
            class_="page",
        ),
        _footer(facts, made_at_ms),
    )
    return Html(f"<!doctype html>\n{element('html', head, body, lang='en')}\n")


def _bar(facts: Facts) -> Html:
    brand = element("span", _MARK, "Syncline", class_="brand")
    when = element("span", _period(facts), class_="when")
    return element("div", element("div", brand, "Report", when, class_="page"), class_="bar")


def _period(facts: Facts) -> str:
    """Which time it is about, by the messages that were audited."""
    if facts.delivery is None or not facts.delivery.hours:
        return "no hours audited"
    hours = facts.delivery.hours
    first, last = hour(hours[0].hour_ms), hour(hours[-1].hour_ms)
    return (
        f"messages stored {first} to {last} UTC"
        if first != last
        else f"messages stored from {first} UTC on"
    )


def _verdict(verdict: Verdict) -> Html:
    stroke = _STATE_STROKES[verdict.state]
    sign = Html(
        '<svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="currentColor" '
        'stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round">'
        f'<circle cx="12" cy="12" r="10"/><path d="{stroke}"/></svg>'
    )
    return element(
        "div",
        element("p", sign, _STATE_WORDS[verdict.state], class_="state"),
        element("h1", verdict.sentence),
        [element("p", note, class_="note") for note in verdict.notes],
        class_="verdict",
        data_state=str(verdict.state),
    )


def _answers(facts: Facts) -> Html | None:
    """The five questions, each with its number."""
    if facts.delivery is None or not facts.delivery.hours:
        return None
    totals, faults = facts.delivery.totals, fault_counts(facts)
    expected = f"of {number(totals['expected'])} expected"
    stretches = facts.logged.stretch_count if facts.logged is not None else 0
    wrong_peer = wrong_peer_count(facts.findings)
    answers = (
        ("Lost", faults.get("lost", 0), "bad", expected),
        (
            "Duplicated",
            faults.get("duplicate", 0),
            "bad",
            f"{number(totals['resent'])} sent again on purpose",
        ),
        ("To the wrong peer", wrong_peer, "bad", "author or not subscribed"),
        ("Late", totals["late"], "warn", _late_text(facts)),
        (
            "Unknown",
            totals["unknown"],
            "warn",
            f"{counted(stretches, 'stretch', 'stretches')} of the log",
        ),
    )
    return element(
        "dl",
        [
            element(
                "div",
                element("dt", name),
                element("dd", number(count), class_="count"),
                element("dd", about, class_="of"),
                class_=kind if count else None,
            )
            for name, count, kind, about in answers
        ],
        class_="answers",
    )


def _late_text(facts: Facts) -> str:
    """What counts as late, as the newest audit was told."""
    commits = facts.sources[DELIVERY_AUDIT.name].commits
    late_ms = commits[0].inputs.get("late_ms") if commits else None
    if isinstance(late_ms, int):
        return f"took over {duration(late_ms)}"
    return "took longer than allowed"


def _contents(parts: Sequence[Section]) -> Html:
    links = [element("a", part.title, href=f"#{part.key}") for part in parts]
    return element("nav", links, class_="contents", aria_label="Contents")


def _section(part: Section, facts: Facts) -> Html:
    return element(
        "section",
        element(
            "header",
            element("h2", part.title, id=f"{part.key}-title"),
            element("span", "from ", _versions(part.tables, facts), class_="from")
            if not part.is_empty and part.key != "history"
            else None,
        ),
        element("p", part.summary, class_="lead"),
        part.body,
        id=part.key,
        aria_labelledby=f"{part.key}-title",
    )


def _versions(tables: Iterable[str], facts: Facts) -> Html:
    named = [
        element("a", f"{name}@{version.number}", href=f"#table-{name}")
        for name in tables
        if (version := facts.version_of(name)) is not None
    ]
    return joined([joined(", " if place else "", each) for place, each in enumerate(named)])


def _footer(facts: Facts, made_at_ms: int | None) -> Html:
    rows = [
        element(
            "tr",
            element("td", element("code", source.name)),
            element("td", source.version.number if source.version else "not there", class_="n"),
            element("td", number(source.version.row_count) if source.version else "", class_="n"),
            element("td", "numbers" if source.name in READ else "history alone"),
            element("td", element("code", _about(source))),
            id=f"table-{source.name}",
        )
        for source in facts.sources.values()
    ]
    columns = (
        ("Table", ""),
        ("Version", "n"),
        ("Rows", "n"),
        ("Read for", ""),
        ("To know more", ""),
    )
    head = [element("th", text, scope="col", class_=kind or None) for text, kind in columns]
    caption = "Tables as this page found them"
    table = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", head)),
        element("tbody", rows),
    )
    made = f" Made at {moment(made_at_ms)} UTC." if made_at_ms is not None else ""
    return element(
        "footer",
        element("h2", "Where the numbers come from"),
        element(
            "p",
            "Every number is an aggregate of the versions below; earlier versions stay readable. "
            f"Times are in UTC.{made}",
        ),
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption),
        class_="page",
    )


def _about(source: Source) -> str:
    if source.version is not None:
        return f"syncline pipeline lineage {source.name}@{source.version.number}"
    # Those without one of their own are of snapshots, which `digest` takes.
    return COMMANDS.get(source.name, COMMANDS[SERVICE_DIGESTS.name])
