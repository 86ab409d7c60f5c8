"""A Gantt picture of executions, predicted or measured: a row a range of devices, a colour a stage."""

from __future__ import annotations

from pathlib import Path

from embodied.errors import RefusedInput
from embodied.scheduler.planner.simulation import Execution, Span

FORMATS = (".svg", ".png", ".pdf")
MOST_BARS = 4000  # more than a picture can show; neighbouring bars are joined above it


def draw(executions: dict[str, Execution], path: Path) -> None:
    """Draw executions, by title, below each other on one time axis. Raises RefusedInput for another kind of file."""
    if path.suffix not in FORMATS:
        raise RefusedInput(f"{path} cannot be drawn: its name must end in one of {', '.join(FORMATS)}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    stages = list(dict.fromkeys(span.stage for e in executions.values() for span in e.spans))
    colours = {stage: f"C{index}" for index, stage in enumerate(stages)}
    rows = [max(1, sum(e.capacity.values()) and len(e.capacity)) for e in executions.values()]
    figure = Figure(figsize=(11, 1.2 + 1.6 * sum(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(executions), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    for axis, (title, execution) in zip(axes, executions.items(), strict=True):
        _draw_one(axis, execution, colours)
        axis.set_title(f"{title}: {execution.seconds:.1f} s", loc="left", fontsize=10)
    axes[-1].set_xlim(0, 1.01 * max(e.seconds for e in executions.values()))
    axes[-1].set_xlabel("seconds")
    legend = [Patch(color=colours[stage], label=stage) for stage in stages]
    legend += [Patch(facecolor="none", edgecolor="grey", hatch="////", label="loads, unloads, held up")]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def _draw_one(axis, execution: Execution, colours: dict[str, str]) -> None:
    """One execution: each resource takes one unit of height, divided among its devices."""
    labels = []
    for base, ((group, kind), capacity) in enumerate(execution.capacity.items()):
        spans = joined([s for s in execution.spans if (s.group, s.kind) == (group, kind)], execution.seconds)
        for span in spans:
            low, height = base + 0.92 * span.first / capacity, 0.92 * span.count / capacity
            style = (
                {"color": colours[span.stage]}
                if span.what == "run"
                else {"facecolor": "none", "edgecolor": "grey", "hatch": "////"}
            )
            axis.broken_barh([(span.begin, span.end - span.begin)], (low, height), linewidth=0, **style)
        labels.append(f"{capacity} {'cores' if kind == 'cpu' else 'accelerators'}\nof {group}")
    axis.set_yticks([i + 0.46 for i in range(len(labels))], labels, fontsize=8)
    axis.set_ylim(len(labels), 0)


def joined(spans: list[Span], seconds: float) -> list[Span]:
    """The spans, with those of one stage joined across gaps too narrow to see when there are very many."""
    if len(spans) <= MOST_BARS:
        return spans
    gap = seconds / MOST_BARS
    found: dict[tuple[str, int, int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda s: s.begin):
        row = found.setdefault((span.stage, span.first, span.count, span.what), [])
        if row and span.begin - row[-1].end < gap:
            last = row.pop()
            span = Span(
                *(getattr(last, f) for f in ("stage", "group", "kind", "first", "count", "begin")),
                max(last.end, span.end),
                span.what,
            )
        row.append(span)
    return [span for row in found.values() for span in row]
