"""The edge to matplotlib: sheets with panels on them, in pixels from below and from the left."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

from syncline.pipeline.report.bins import HOUR_MS, MINUTE_MS, Bins, Numbers
from syncline.pipeline.sources.rows import DAY_MS

# What is drawn in a colour is shown in the variable: no other colours may be used.
INK: Final = "#1d3557"
INK_SOFT: Final = "#5b6b82"
LINE: Final = "#d9d3c4"
BLUE: Final = "#2f6f9f"
PALE: Final = "#a9c8de"
RED: Final = "#b8420f"
AMBER: Final = "#b7791f"
GREY: Final = "#7c8798"
VARIABLES: Final = {
    INK: "--ink",
    INK_SOFT: "--ink-soft",
    LINE: "--line",
    BLUE: "--blue",
    PALE: "--pale",
    RED: "--bad",
    AMBER: "--warn",
    GREY: "--grey",
}
SETTINGS: Final = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK_SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK_SOFT,
    "ytick.color": INK_SOFT,
}
SMALL: Final = 11
# With so many points to the inch, a point is a pixel.
_DPI: Final = 72
# Few bars are not stretched over the whole width.
BARS_MIN: Final = 12
_GAPS_BELOW: Final = 90
_POINTS_SHOWN_MAX: Final = 48
_TICK_PX: Final = 110
_SECOND_MS: Final = 1_000
_DURATION_TICKS: Final = (
    *(1, 10, 100),
    *(_SECOND_MS, 10 * _SECOND_MS),
    *(MINUTE_MS, 10 * MINUTE_MS),
    *(HOUR_MS, 10 * HOUR_MS),
    *(10 * DAY_MS, 100 * DAY_MS),
)
_TIME_STEPS: Final = (
    *(MINUTE_MS * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(HOUR_MS * hours for hours in (1, 2, 3, 6, 12)),
    *(DAY_MS * days for days in (1, 2, 4, 7, 14, 28, 91, 365, 1_826, 7_305, 36_525)),
)
# By the hour, by the day, by months.
_TIME_FORMS: Final = ("%H:%M", "%-d %b", "%b %Y")
_LONG_MS: Final = 91 * DAY_MS

Box = tuple[float, float, float, float]


class Sheet:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        FigureCanvasSVG(self.figure)

    def panel(self, left: float, bottom: float, width: float, height: float) -> "Panel":
        return Panel(self, (left, bottom, width, height))

    def write(
        self,
        x: float,
        y: float,
        text: str,
        colour: str,
        *,
        at_right: bool = False,
        is_bold: bool = False,
        is_small: bool = False,
    ) -> None:
        cast(Any, self.figure).text(
            x / self.width,
            y / self.height,
            text,
            color=colour,
            ha="right" if at_right else "left",
            weight="bold" if is_bold else "normal",
            fontsize=SMALL if is_small else None,
        )


class Panel:
    """A part of a sheet with axes of its own."""

    def __init__(self, sheet: Sheet, place: Box) -> None:
        self._sheet = sheet
        left, bottom, width, height = place
        shares = (left / sheet.width, bottom / sheet.height)
        sizes = (width / sheet.width, height / sheet.height)
        self._axes: Any = cast(Any, sheet.figure).add_axes((*shares, *sizes))
        self._axes.tick_params(length=0, labelsize=SMALL)

    def bars(
        self, edges: Numbers, values: Numbers, colour: str, below: Numbers | None = None
    ) -> None:
        """All bars as one shape: a page has many of them."""
        bottoms = np.zeros(len(values)) if below is None else below
        gap = float(edges[1] - edges[0]) * (0.12 if len(values) < _GAPS_BELOW else 0.0)
        self.boxes(
            [
                (
                    float(edges[place]),
                    float(bottoms[place]),
                    float(edges[place + 1]) - gap,
                    float(bottoms[place] + values[place]),
                )
                for place in np.flatnonzero(values)
            ],
            colour,
        )

    def boxes(self, boxes: Sequence[Box], colour: str) -> None:
        if not boxes:
            return
        corners: list[tuple[float, float]] = []
        for left, bottom, right, top in boxes:
            corners += [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
        one = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
        outline = Outline(np.array(corners), cast(Any, one * len(boxes)))
        self._axes.add_patch(PathPatch(outline, facecolor=colour, linewidth=0))

    def line(self, bins: Bins, values: Numbers, colour: str, style: str = "-") -> None:
        """Broken where a value is NaN; few values are points as well."""
        edges = bins.edges()
        middles = (edges[:-1] + edges[1:]) / 2
        is_sparse = int((~np.isnan(values)).sum()) <= _POINTS_SHOWN_MAX
        how = {"marker": "o", "markersize": 3} if is_sparse else {}
        self._axes.plot(middles, values, color=colour, linestyle=style, linewidth=1.6, **how)

    def rule(self, value: float, text: str = "") -> None:
        """A thin line across, with a text behind its end."""
        self._axes.axhline(value, color=LINE, linewidth=0.8, zorder=0)
        if text:
            self._axes.annotate(
                text,
                (1, value),
                (4, -4),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                color=INK_SOFT,
            )

    def height_of(self, value: float) -> float:
        """How high on the sheet a value is."""
        return float(self._axes.transData.transform((0, value))[1])

    def show(self, *, x: tuple[float, float] | None = None, y: tuple[float, float]) -> None:
        """From where to where; without any scale beside it."""
        if x is not None:
            self._axes.set_xlim(*x)
            self._axes.xaxis.set_major_locator(NullLocator())
        self._axes.set_ylim(*y)
        self._axes.yaxis.set_major_locator(NullLocator())

    def without_frame(self) -> None:
        self._axes.set_axis_off()

    def base_at_zero(self) -> None:
        """The line below is where zero is."""
        self._axes.spines["bottom"].set_position(("data", 0))

    def times(self, bins: Bins, *, has_labels: bool = True) -> None:
        edges = bins.edges()
        size = float(edges[1] - edges[0])
        self._axes.set_xlim(float(edges[0]), float(edges[0]) + max(bins.count, BARS_MIN) * size)
        if not has_labels:
            self._axes.xaxis.set_major_locator(NullLocator())
            return
        step_ms = self._tick_step(bins)
        first = -(-bins.start_ms // step_ms) * step_ms
        places = range(first, bins.start_ms + _shown_ms(bins), step_ms)
        self._axes.xaxis.set_major_locator(FixedLocator([each / DAY_MS for each in places]))
        form = _TIME_FORMS[0] if step_ms < DAY_MS else _TIME_FORMS[1 if step_ms < _LONG_MS else 2]
        labels = [_time_text(each, form) for each in places]
        self._axes.xaxis.set_major_formatter(FixedFormatter(labels))

    def _tick_step(self, bins: Bins) -> int:
        """The smallest for which labels do not touch."""
        shown_ms = _shown_ms(bins)
        count_max = max(self._sheet.width // _TICK_PX, 3)
        return next((each for each in _TIME_STEPS if shown_ms // each < count_max), _TIME_STEPS[-1])

    def durations(self, lowest_ms: float, highest_ms: float) -> None:
        """Powers of ten: a millisecond and a minute have to be told apart in one figure."""
        low, high = lowest_ms / 1.6, max(highest_ms, lowest_ms * 8) * 1.6
        self._axes.set_yscale("log")
        self._axes.set_ylim(low, high)
        ticks = [float(tick) for tick in _DURATION_TICKS if low <= tick <= high]
        self._axes.yaxis.set_major_locator(FixedLocator(ticks))
        self._axes.yaxis.set_minor_locator(NullLocator())
        self._axes.yaxis.set_major_formatter(FuncFormatter(_tick_text))
        self._axes.grid(axis="y", color=LINE, linewidth=0.8)


def _shown_ms(bins: Bins) -> int:
    return max(bins.count, BARS_MIN) * bins.size_ms


def _time_text(time_ms: int, form: str) -> str:
    try:
        found = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        # Beyond every calendar.
        return ""
    # Where hours are counted, the first of a day has its name.
    is_midnight = (found.hour, found.minute) == (0, 0)
    return found.strftime(_TIME_FORMS[1] if is_midnight and form == _TIME_FORMS[0] else form)


def _tick_text(value: float, _: object) -> str:
    for size, name in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (_SECOND_MS, "s")):
        if value >= size:
            return f"{value / size:.0f} {name}"
    return f"{value:.0f} ms"
