"""Line charts as geometry: what the template draws, in a square of 1000 units that stretches to any screen.

Labels are HTML beside the stretched drawing, so they keep their size on a phone. Colours are names of the style
sheet, so one drawing serves light and dark mode.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

from embodied.report.metrics import Series, thinned
from embodied.report.reader import STEPS
from embodied.report.words import count, number

SIDE = 1000.0
INTERVAL = ", 95% interval"  # ends the label of a line that has one


@dataclasses.dataclass(frozen=True)
class Line:
    """One series to draw. colour: a name `c-<colour>` in the style sheet. dots: mark each record."""

    label: str
    series: Series
    colour: str
    dots: bool = False


@dataclasses.dataclass(frozen=True)
class Drawn:
    label: str
    colour: str
    path: str
    band: str
    dots: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """Ticks and goal are (position in percent, label); `hover` is JSON for the page's script, `summary` the words."""

    title: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Drawn]
    goal: tuple[float, str] | None
    hover: str
    summary: str
    unit: str


def line_chart(
    title: str,
    lines: list[Line],
    *,
    y_range: tuple[float, float] | None = None,
    y_format: Callable[[float], str] = number,
    goal: float | None = None,
    unit: str = STEPS,
) -> Chart | None:
    """A chart of `lines` over steps (of what: `unit`), with a mark at `goal`; None if no line has a finite value."""
    lines = [dataclasses.replace(line, series=thinned(line.series)) for line in lines]
    finite = [v for line in lines for v in _all_values(line.series) if math.isfinite(v)]
    if not finite:
        return None
    marks = [] if goal is None else [goal]
    y_low, y_high, y_ticks = nice_scale(*(y_range or (min([*finite, *marks]), max([*finite, *marks]))), 4)
    most = max((step for line in lines for step in line.series.steps), default=1.0)
    x_low, x_high = 0.0, max(most, 1.0)
    x_ticks = [tick for tick in nice_scale(x_low, x_high, 5)[2] if tick.is_integer() and tick <= x_high]

    def x(step: float) -> float:
        return SIDE * (step - x_low) / (x_high - x_low)

    def y(value: float) -> float:
        return SIDE * (1 - (value - y_low) / (y_high - y_low))

    drawn = [
        Drawn(
            label=line.label,
            colour=line.colour,
            path=_path(line.series.steps, line.series.values, x, y),
            band=_band(line.series, x, y),
            dots=_dots(line.series, x, y) if line.dots or len(line.series.values) == 1 else "",
        )
        for line in lines
    ]
    hover = [
        {
            "label": line.label.removesuffix(INTERVAL),
            "points": [
                [round(x(s), 1), round(y(v), 1), count(s), _reading(line.series, i, y_format)]
                for i, (s, v) in enumerate(zip(line.series.steps, line.series.values, strict=True))
                if math.isfinite(v)
            ],
        }
        for line in lines
    ]
    return Chart(
        title=title,
        x_ticks=[(x(t) / 10, count(t)) for t in x_ticks],
        y_ticks=[(y(t) / 10, y_format(t)) for t in y_ticks],
        lines=drawn,
        goal=None if goal is None else (y(goal) / 10, f"goal {y_format(goal)}"),
        hover=json.dumps(hover, separators=(",", ":"), ensure_ascii=False),
        summary=f"{title}: " + "; ".join(_in_words(line, y_format, unit) for line in lines),
        unit=unit,
    )


def nice_scale(low: float, high: float, about: int) -> tuple[float, float, list[float]]:
    """Bounds and round ticks (steps of 1, 2, 2.5 or 5 times a power of ten) that cover [low, high]."""
    # what differs by rounding alone, as means of equal values do, has no scale of its own
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
        margin = abs(low) * 0.1
        low, high = (low - margin, high + margin) if margin > 1e-300 else (0.0, 1.0)
    raw = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 12 - math.floor(math.log10(max(abs(low), abs(high))))  # significant ones: small numbers keep theirs
    ticks = [round(index * step, digits) for index in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _all_values(line: Series) -> list[float]:
    return [*line.values, *(line.low or []), *(line.high or [])]


def _path(steps: list[float], values: list[float], x: Callable, y: Callable) -> str:
    """An SVG path that breaks where a value is not finite."""
    parts, pen_down = [], False
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            parts.append(f"{'L' if pen_down else 'M'}{x(step):.1f} {y(value):.1f}")
        pen_down = math.isfinite(value)
    return "".join(parts)


def _band(line: Series, x: Callable, y: Callable) -> str:
    if line.low is None or line.high is None:
        return ""
    if len(line.steps) == 1 and math.isfinite(line.low[0]) and math.isfinite(line.high[0]):
        at = x(line.steps[0])  # a single interval is a bar beside its point
        return f"M{at - 7:.1f} {y(line.high[0]):.1f}h14V{y(line.low[0]):.1f}h-14Z"
    there = [f"{x(s):.1f} {y(v):.1f}" for s, v in zip(line.steps, line.high, strict=True) if math.isfinite(v)]
    back = [f"{x(s):.1f} {y(v):.1f}" for s, v in zip(line.steps, line.low, strict=True) if math.isfinite(v)]
    return "M" + "L".join(there + back[::-1]) + "Z" if there and back else ""


def _dots(line: Series, x: Callable, y: Callable) -> str:
    # lines of no length with round ends: they stay round however the drawing is stretched
    pairs = zip(line.steps, line.values, strict=True)
    return "".join(f"M{x(s):.1f} {y(v):.1f}h0" for s, v in pairs if math.isfinite(v))


def _reading(line: Series, index: int, y_format: Callable[[float], str]) -> str:
    text = y_format(line.values[index])
    if line.low is not None and line.high is not None:
        text += f" ({y_format(line.low[index])} – {y_format(line.high[index])})"
    return text


def _in_words(line: Line, y_format: Callable[[float], str], unit: str) -> str:
    first, last = line.series.values[0], line.series.values[-1]
    return f"{line.label} from {y_format(first)} to {y_format(last)} at {count(line.series.steps[-1])} {unit}"
