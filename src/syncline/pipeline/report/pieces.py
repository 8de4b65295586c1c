"""What all parts of the page are put together from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from syncline.pipeline.report.facts import Facts
from syncline.pipeline.report.logs import Logs
from syncline.pipeline.report.markup import Content, Html, element, joined
from syncline.pipeline.report.wording import cut, number, store_text, stream_text
from syncline.pipeline.schemas import (
    CONSUMER_HEALTH,
    DELIVERY_AUDIT,
    DELIVERY_CARRY,
    DELIVERY_FINDINGS,
    DOCUMENT_STATES,
    DRIFT_ITEMS,
    EVENTS,
    SERVICE_DIGESTS,
    TRUNCATION_PLAN,
)

# What makes a table.
COMMANDS: Final = {
    EVENTS.name: "syncline pipeline ingest FOLDER",
    DELIVERY_AUDIT.name: "syncline pipeline audit",
    DELIVERY_FINDINGS.name: "syncline pipeline audit",
    DELIVERY_CARRY.name: "syncline pipeline audit",
    CONSUMER_HEALTH.name: "syncline pipeline lag FOLDER",
    DOCUMENT_STATES.name: "syncline pipeline compact",
    TRUNCATION_PLAN.name: "syncline pipeline gc-plan",
    SERVICE_DIGESTS.name: "syncline pipeline digest FOLDER",
    DRIFT_ITEMS.name: "syncline pipeline reconcile ROUTER WANTED",
}


@dataclass(frozen=True, slots=True)
class Section:
    """`summary` is what it says, in one line."""

    key: str
    title: str
    summary: str
    body: Html
    tables: tuple[str, ...]
    is_empty: bool = False


def empty(key: str, title: str, facts: Facts, tables: tuple[str, ...], text: str) -> Section:
    return Section(key, title, text, to_run(facts, tables, ""), tables, is_empty=True)


def to_run(facts: Facts, tables: Sequence[str], text: str) -> Html:
    """An empty place: what is missing, and what would fill it."""
    missing = [name for name in tables if facts.version_of(name) is None]
    why = (
        joined("There is no table ", listed_codes(missing), ". To make it, run")
        if missing
        else joined("The table ", listed_codes(tables), " has no rows yet. To add some, run")
    )
    commands = dict.fromkeys(COMMANDS[name] for name in (missing or tables))
    return element(
        "div",
        element("p", text) if text else None,
        element("p", why, ":"),
        [element("p", element("code", each)) for each in commands],
        class_="empty",
    )


def listed_codes(names: Sequence[str]) -> Html:
    parts: list[Content] = []
    for place, name in enumerate(names):
        parts += [" or " if place else "", element("code", name)]
    return joined(parts)


def stream_cell(store: bytes, stream: bytes | None, facts: Facts) -> Html:
    """The name of a document, or its id; and its log, if the page is about several."""
    return joined(_stream_name(stream, facts.names), log_line(store, facts.logs))


def log_line(store: bytes, logs: Logs) -> Html | None:
    """Below what it belongs to; None if there is but one log."""
    if not store or not logs.are_several:
        return None
    return element("span", "log ", log_name(store, logs), class_="log")


def log_name(store: bytes, logs: Logs) -> Html:
    """The beginning of its id, and of the one that it was restored from, if that is known."""
    former = logs.former.get(store)
    return joined(
        element("code", store_text(store)),
        [", restored from ", element("code", store_text(former))] if former else None,
    )


def _stream_name(stream: bytes | None, names: Mapping[bytes, str]) -> Html:
    """The id goes with the name."""
    text = stream_text(stream)
    name = names.get(stream or b"")
    if name is None:
        return element("code", text, class_="id")
    return element("span", cut(name), class_="name", title=text)


def alarming(count: int) -> Content:
    return element("strong", number(count), class_="bad") if count else number(count)


def folded_away(summary: str, content: Html) -> Html:
    return element("details", element("summary", summary), content)


def table_of(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    numeric: Iterable[int] = (),
    foot: Sequence[Content] = (),
    class_: str | None = None,
) -> Html:
    """A table that can be scrolled sideways where the page is narrow."""
    places = frozenset(numeric)

    def cells(name: str, values: Sequence[Content], **more: str) -> list[Content]:
        return [
            element(name, value, class_="n" if place in places else None, **more)
            for place, value in enumerate(values)
        ]

    table = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", cells("th", columns, scope="col"))),
        element("tbody", [element("tr", cells("td", row)) for row in rows]),
        element("tfoot", element("tr", cells("td", foot))) if foot else None,
        class_=class_,
    )
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
