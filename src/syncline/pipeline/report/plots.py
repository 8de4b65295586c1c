"""The figures of the report. Each is drawn wide and narrow; the page shows one of the two.

Series are labelled where they are, not in a legend. What is zero all along is still a line: that
nothing was lost is a fact, too.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from syncline.pipeline.report.bins import HOUR_MS, Bins, Numbers, Points, bins_of
from syncline.pipeline.report.delivery import Delivery, Hour
from syncline.pipeline.report.drawing import (
    AMBER,
    BARS_MIN,
    BLUE,
    GREY,
    INK,
    INK_SOFT,
    PALE,
    RED,
    Sheet,
)
from syncline.pipeline.report.drift import Reconciled
from syncline.pipeline.report.markup import Html, element
from syncline.pipeline.report.readers import Readers
from syncline.pipeline.report.storage import Logged
from syncline.pipeline.report.svg import settings, written
from syncline.pipeline.report.wording import byte_text, duration, number

WIDE: Final = 1040
HALF: Final = 500
NARROW: Final = 340
# Room below for the times.
_FOOT: Final = 24
# A series that has a line of its own, and room around it.
_STRIP: Final = 28
_STRIP_LEFT: Final = 88
_STRIP_RIGHT: Final = 66
_STRIP_GAP: Final = 10

# Below, there is no course of time to be seen.
_HOURS_MIN: Final = 3

# What is counted beside deliveries, in what colour: faults, signs, and what is not known.
_STRIPS: Final = (
    ("lost", "Lost", RED),
    ("duplicate", "Duplicate", RED),
    ("late", "Late", AMBER),
    ("interrupted", "Interrupted", AMBER),
    ("unknown", "Unknown", GREY),
)


def _both(
    name: str, title: str, description: str, draw: Callable[[int], Sheet], wide: int = WIDE
) -> Html:
    """A drawing for wide and one for narrow windows, in one element."""
    with settings():
        shown_wide = written(draw(wide), f"{name}-wide", title, description)
        shown_narrow = written(draw(NARROW), f"{name}-narrow", title, description)
    return element(
        "figure",
        element("figcaption", title),
        element("div", shown_wide, class_="wide"),
        element("div", shown_narrow, class_="narrow"),
    )


# --------------------------------------------------------------------------------------- delivery


def delivery_figure(hours: Sequence[Hour]) -> Html:
    """Over time; of few hours, what became of all of them."""
    if len(hours) < _HOURS_MIN:
        return _sums_figure(hours)
    times = [hour.hour_ms for hour in hours]
    bins = bins_of(times)
    keys = ["delivered", *(key for key, _, _ in _STRIPS)]
    points = {key: [(hour.hour_ms, hour.counts[key]) for hour in hours] for key in keys}
    totals = {key: sum(value for _, value in points[key]) for key in keys}
    words = ", ".join(f"{label.lower()} {number(totals[key])}" for key, label, _ in _STRIPS)
    return _both(
        "delivery",
        f"Deliveries by {bins.name} in which their messages were stored (UTC)"
        f"{bins.left_out(times)}",
        f"Bars over time. Delivered {number(totals['delivered'])}, {words}.",
        lambda width: _draw_delivery(bins, points, totals, width),
    )


def _sums_figure(hours: Sequence[Hour]) -> Html:
    series = (("delivered", "Delivered", BLUE), *_STRIPS)
    rows = [
        (label, sum(hour.counts[key] for hour in hours), colour) for key, label, colour in series
    ]
    expected = sum(hour.counts["expected"] for hour in hours)
    words = ", ".join(f"{label.lower()} {number(count)}" for label, count, _ in rows)
    return _both(
        "delivery",
        f"What became of {number(expected)} expected deliveries",
        f"Horizontal bars: {words}.",
        lambda width: _draw_rows(rows, expected, number, width),
    )


def _draw_rows(
    rows: Sequence[tuple[str, int, str]], whole: int, text: Callable[[int], str], width: int
) -> Sheet:
    """A bar for each row, `whole` as long as there is room."""
    left, right = 98, 72
    sheet = Sheet(width, _STRIP * len(rows))
    panel = sheet.panel(left, 0, width - left - right, sheet.height)
    panel.without_frame()
    panel.show(x=(0, max(whole, 1)), y=(0, len(rows)))
    for place, (name, count, colour) in enumerate(rows):
        low = len(rows) - place - 1
        # What is there at all is seen.
        length = max(float(count), whole / (width - left - right)) if count else 0.0
        panel.boxes([(0.0, low + 0.2, length, low + 0.8)], colour)
        middle = (low + 0.5) * _STRIP - 4
        sheet.write(0, middle, name, INK if count else INK_SOFT)
        shade = colour if count else INK_SOFT
        sheet.write(width, middle, text(count), shade, at_right=True)
    return sheet


def _draw_delivery(
    bins: Bins, points: Mapping[str, Points], totals: Mapping[str, int], width: int
) -> Sheet:
    main, strips = 104, len(_STRIPS) * _STRIP + _FOOT
    sheet = Sheet(width, main + strips)
    values = bins.added(points["delivered"])
    size = width - _STRIP_LEFT - _STRIP_RIGHT
    panel = sheet.panel(_STRIP_LEFT, strips, size, main - _STRIP_GAP)
    panel.bars(bins.edges(), values, BLUE)
    panel.show(y=(0, max(float(values.max()), 1)))
    panel.rule(float(values.max()))
    panel.times(bins, has_labels=False)
    top = strips + main - 22
    sheet.write(0, top, "Delivered", INK)
    sheet.write(0, top - 16, f"up to {number(int(values.max()))}", INK_SOFT, is_small=True)
    sheet.write(0, top - 30, f"per {bins.name}", INK_SOFT, is_small=True)
    sheet.write(width, top, number(totals["delivered"]), BLUE, at_right=True, is_bold=True)
    edge = strips
    for key, label, colour in _STRIPS:
        edge -= _STRIP
        _draw_strip(sheet, edge, bins, points[key], label, colour)
    return sheet


def _draw_strip(
    sheet: Sheet, edge: int, bins: Bins, points: Points, label: str, colour: str
) -> None:
    """A line of bars with its name before it and its sum behind. The lowest has the times."""
    values, total = bins.added(points), sum(value for _, value in points)
    size = sheet.width - _STRIP_LEFT - _STRIP_RIGHT
    panel = sheet.panel(_STRIP_LEFT, edge, size, _STRIP - _STRIP_GAP)
    panel.bars(bins.edges(), values, colour)
    panel.show(y=(0, max(float(values.max()), 1)))
    panel.times(bins, has_labels=edge == _FOOT)
    sheet.write(0, edge + 5, label, INK if total else INK_SOFT)
    shade = colour if total else INK_SOFT
    sheet.write(sheet.width, edge + 5, number(total), shade, at_right=True, is_bold=bool(total))


# ---------------------------------------------------------------------------------------- latency


def latency_figure(delivery: Delivery) -> Html:
    """Over time; of few hours, how many took how long. At least one delivery was timed."""
    hours = delivery.hours
    if sum(hour.latency is not None for hour in hours) < _HOURS_MIN:
        return _took_figure(delivery.took)
    timed = [(hour.hour_ms, hour.latency) for hour in hours if hour.latency is not None]
    bins = bins_of([at for at, _ in timed])
    known = [(at, found) for at, found in timed if bins.has(at)]
    lines = {
        "p99": [(at, found.p99) for at, found in known],
        "p95": [(at, found.p95) for at, found in known],
        "p50": [(at, found.p50) for at, found in known],
    }
    newest = known[-1][1]
    coarse = "" if bins.size_ms == HOUR_MS else f", the highest of each {bins.name}"
    return _both(
        "latency",
        f"Time from stored to delivered by hour{coarse} (UTC)"
        f"{bins.left_out([at for at, _ in timed])}",
        f"Lines over time. In the newest hour the median is {duration(newest.p50)}, the 95th "
        f"percentile {duration(newest.p95)}, the 99th {duration(newest.p99)}.",
        lambda width: _draw_latency(bins, lines, width),
    )


def _took_figure(took: Sequence[tuple[int, int]]) -> Html:
    """`took`: from how many milliseconds on, up to twice as many; and how many did."""
    total = sum(count for _, count in took)
    words = ", ".join(f"from {duration(ms)} {number(count)}" for ms, count in took if count)
    return _both(
        "latency",
        f"Time from stored to delivered of {number(total)} deliveries, bars by doubling",
        f"Bars: {words}.",
        lambda width: _draw_took(took, width),
    )


def _draw_took(took: Sequence[tuple[int, int]], width: int) -> Sheet:
    height = 150
    sheet = Sheet(width, height)
    panel = sheet.panel(0, _FOOT, width, height - _FOOT - 18)
    counts = np.array([float(count) for _, count in took])
    bar_count = max(len(took), BARS_MIN)
    panel.bars(np.arange(len(took) + 1.0), counts, BLUE)
    highest = float(counts.max())
    panel.show(x=(0, bar_count), y=(0, highest))
    step = width / bar_count
    for place, (ms, count) in enumerate(took):
        if width > HALF or place % 2 == 0:
            sheet.write(place * step, 6, duration(ms), INK_SOFT, is_small=True)
        if count >= highest / 20:
            up = _FOOT + (height - _FOOT - 18) * count / highest + 4
            sheet.write(place * step, up, number(count), BLUE, is_small=True)
    return sheet


def _draw_latency(bins: Bins, lines: Mapping[str, Points], width: int) -> Sheet:
    left, right, height = 56, 96, 196
    sheet = Sheet(width, height)
    panel = sheet.panel(left, _FOOT, width - left - right, height - _FOOT - 8)
    looks = {"p99": (BLUE, ":"), "p95": (BLUE, "--"), "p50": (INK, "-")}
    # On a scale of powers there is no nothing.
    values = {name: np.maximum(bins.highest(points), 1.0) for name, points in lines.items()}
    for name, (colour, style) in looks.items():
        panel.line(bins, values[name], colour, style)
    everything = np.concatenate(list(values.values()))
    panel.durations(float(np.nanmin(everything)), float(np.nanmax(everything)))
    panel.times(bins)
    place = float(height)
    for name, (colour, _) in looks.items():
        # Labels at the ends of lines, moved apart where they would lie on one another.
        place = min(panel.height_of(_last(values[name])) - 4, place - 14)
        text = f"{name} {duration(lines[name][-1][1])}"
        sheet.write(width - right + 6, place, text, colour)
    return sheet


def _last(values: Numbers) -> float:
    return float(values[~np.isnan(values)][-1])


# ---------------------------------------------------------------------------------------- readers


def lag_figure(readers: Readers) -> Html:
    slots = readers.slots
    times = [slot.at_ms for slot in slots]
    bins = bins_of(times, readers.unit_ms)
    behind = [(slot.at_ms, slot.lag_ms_max) for slot in slots]
    relative = [(slot.at_ms, slot.relative) for slot in slots]
    absolute = [(slot.at_ms, slot.absolute) for slot in slots]
    worst = duration(max(value for _, value in behind))
    return _both(
        "lag",
        f"The reader furthest behind, by {bins.name}, and readers that were too far behind, by "
        f"which rule: each once, where it was furthest behind (UTC){bins.left_out(times)}",
        f"A line over time; the highest is {worst}. Readers that were too far behind: "
        f"{number(readers.behind_count)}.",
        lambda width: _draw_lag(bins, behind, relative, absolute, width),
    )


def _draw_lag(bins: Bins, behind: Points, relative: Points, absolute: Points, width: int) -> Sheet:
    main, strips = 130, 2 * _STRIP + _FOOT
    sheet = Sheet(width, main + strips)
    size = width - _STRIP_LEFT - _STRIP_RIGHT
    panel = sheet.panel(_STRIP_LEFT, strips, size, main - _STRIP_GAP)
    # On a scale of powers there is no nothing.
    values = np.maximum(bins.highest(behind), 1.0)
    panel.line(bins, values, BLUE)
    panel.durations(float(np.nanmin(values)), float(np.nanmax(values)))
    panel.times(bins, has_labels=False)
    top = strips + main - 22
    most = duration(max(value for _, value in behind))
    sheet.write(0, top, "Behind", INK)
    sheet.write(width, top, most, BLUE, at_right=True, is_bold=True)
    _draw_strip(sheet, _FOOT + _STRIP, bins, relative, "Relative", AMBER)
    _draw_strip(sheet, _FOOT, bins, absolute, "Absolute", AMBER)
    return sheet


# ------------------------------------------------------------------------------------------ drift


def drift_figure(runs: Sequence[Reconciled]) -> Html:
    newest = runs[-1]
    return _both(
        "drift",
        "Ids that the router lacks (up) and has beyond what is wanted (down), by comparison",
        f"{len(runs)} comparisons, oldest first. In the newest, {number(newest.missing)} ids are "
        f"missing and {number(newest.extra)} are extra.",
        lambda width: _draw_drift(runs, width),
    )


def _draw_drift(runs: Sequence[Reconciled], width: int) -> Sheet:
    right, height = 88, 156
    sheet = Sheet(width, height)
    panel = sheet.panel(0, _FOOT, width - right, height - _FOOT - 8)
    missing = np.array([float(run.missing) for run in runs])
    extra = np.array([float(run.extra) for run in runs])
    places = np.arange(len(runs) + 1.0)
    panel.bars(places, missing, RED)
    panel.bars(places, -extra, AMBER)
    # Few bars stand at the right, beside the numbers of the newest.
    bar_count = max(len(runs), BARS_MIN * (2 if width > HALF else 1))
    high, low = max(float(missing.max()), 1.0), max(float(extra.max()), 1.0)
    panel.show(x=(len(runs) - bar_count, len(runs)), y=(-low * 1.1, high * 1.1))
    panel.base_at_zero()
    # They are not evenly apart in time: the ends are named, that is all.
    first, last = _day_text(runs[0].time_ms), _day_text(runs[-1].time_ms)
    span = first if first == last else f"{first} to {last}"
    sheet.write(width - right, 6, span, INK_SOFT, at_right=True, is_small=True)
    zero = panel.height_of(0)
    sheet.write(width, zero + 6, f"{number(runs[-1].missing)} missing", RED, at_right=True)
    sheet.write(width, zero - 17, f"{number(runs[-1].extra)} extra", AMBER, at_right=True)
    return sheet


def _day_text(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%-d %b %Y")


# ---------------------------------------------------------------------------------------- storage


def logged_figure(logged: Logged) -> Html:
    """Of a log in which there is a message or a snapshot."""
    times = [each.at_ms for each in logged.slots]
    bins = bins_of(times, logged.unit_ms)
    messages = [(each.at_ms, each.message_bytes) for each in logged.slots]
    snapshots = [(each.at_ms, each.snapshot_bytes) for each in logged.slots]
    total = sum(count for _, count in (*messages, *snapshots))
    return _both(
        "logged",
        f"Bytes logged by {bins.name}: messages and, above them, snapshots (UTC)"
        f"{bins.left_out(times)}",
        f"Bars over time, {byte_text(total)} in all.",
        lambda width: _draw_logged(bins, messages, snapshots, width),
        HALF,
    )


def _draw_logged(bins: Bins, messages: Points, snapshots: Points, width: int) -> Sheet:
    right, height = 88, 176
    sheet = Sheet(width, height)
    panel = sheet.panel(4, _FOOT, width - right - 4, height - _FOOT - 14)
    below, above = bins.added(messages), bins.added(snapshots)
    panel.bars(bins.edges(), below, BLUE)
    panel.bars(bins.edges(), above, PALE, below)
    highest = max(float((below + above).max()), 1.0)
    panel.show(y=(0, highest))
    panel.rule(highest, byte_text(highest))
    panel.times(bins)
    labels = (("messages", messages, BLUE, 6), ("snapshots", snapshots, INK_SOFT, 44))
    for name, points, colour, up in labels:
        amount = byte_text(sum(value for _, value in points))
        sheet.write(width, _FOOT + up + 14, amount, colour, at_right=True)
        sheet.write(width, _FOOT + up, name, colour, at_right=True)
    return sheet


def age_figure(held_by_age: Mapping[str, int]) -> Html:
    words = ", ".join(f"{name} {byte_text(count)}" for name, count in held_by_age.items())
    rows = [(name, count, BLUE) for name, count in held_by_age.items()]
    return _both(
        "age",
        "Bytes that are held, by the age of the oldest message of their stream",
        f"Horizontal bars: {words}.",
        lambda width: _draw_rows(rows, max(held_by_age.values()), byte_text, width),
        HALF,
    )
