"""`success_curve_png`: the success curve as a picture, for documents; several runs are seeds of one experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embodied.errors import RefusedInput
from embodied.report.metrics import RETURN, SUCCESS, Series, first_series, has_success
from embodied.report.reader import RunFolder, read_run
from embodied.report.words import count

_BLUE = "#1f5fe0"


def success_curve_png(run_folders: Path | str | Sequence[Path | str], out: Path | str, *, title: str = "") -> Path:
    """Draw evaluated success (or return, where there is no success) over environment steps to `out`; return `out`.

    One run: with the 95 % interval of each evaluation. Several: each run faintly, their mean, and the range between the
    lowest and the highest (see `common_grid`). Raises RefusedInput if a run has no evaluation.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    folders = [run_folders] if isinstance(run_folders, (str, Path)) else list(run_folders)
    runs = [read_run(folder) for folder in folders]
    is_success = all(has_success(run) and first_series(run.rows, "eval", SUCCESS) for run in runs)
    lines = [_evaluations(run, SUCCESS if is_success else RETURN) for run in runs]
    with rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.4), dpi=160, layout="constrained")
        axes = figure.subplots()
        if len(lines) == 1:
            line = lines[0]
            axes.plot(line.steps, line.values, color=_BLUE, linewidth=2, marker="o", markersize=4)
            if line.low is not None and line.high is not None:
                axes.fill_between(line.steps, line.low, line.high, color=_BLUE, alpha=0.15, linewidth=0)
        else:
            steps, values = common_grid(runs, lines)
            for line in lines:
                axes.plot(line.steps, line.values, color=_BLUE, alpha=0.3, linewidth=1)
            axes.fill_between(steps, values.min(0), values.max(0), color=_BLUE, alpha=0.13, linewidth=0)
            axes.plot(steps, values.mean(0), color=_BLUE, linewidth=2.2, label=f"mean of {len(lines)} runs")
            axes.legend(frameon=False, loc="lower right")
        if is_success:
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
        axes.set_xlabel(runs[0].unit)
        axes.set_ylabel("success rate" if is_success else "return")
        axes.set_title(title or runs[0].recipe, loc="left", fontsize=11)
        axes.grid(axis="y", alpha=0.25)
        figure.savefig(out)
    return Path(out)


def common_grid(runs: Sequence[RunFolder], lines: Sequence[Series], points: int = 101) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and the values [runs, N] of each run's line there, linear between records.

    A run that stopped because it reached its goal keeps its last value; any other ends the grid where it ends, since
    nobody knows how it would have gone on.
    """
    first, furthest = max(line.steps[0] for line in lines), max(line.steps[-1] for line in lines)
    ends = [line.steps[-1] for run, line in zip(runs, lines, strict=True) if run.status != "reached"]
    steps = np.linspace(first, max(first, min([furthest, *ends])), points)
    return steps, np.stack([np.interp(steps, line.steps, line.values) for line in lines])


def _evaluations(run: RunFolder, names: tuple[str, ...]) -> Series:
    found = first_series(run.rows, "eval", names)
    if found is None or not any(math.isfinite(value) for value in found.values):
        raise RefusedInput(
            f"{run.path} has no evaluation to draw: none of eval/{', eval/'.join(names)} is in its metrics.jsonl."
        )
    return found
