"""`build_comparison`: several runs on one page: outcome table, curves on one axis, seeds as mean and range, and what
differs between their configurations."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied.errors import RefusedInput
from embodied.report import words
from embodied.report.charts import Chart, Line, line_chart
from embodied.report.curve import common_grid
from embodied.report.metrics import RETURN, SUCCESS, Series, first_series, goal, has_success, phase_times
from embodied.report.page import REPORT, environment, success_title, write_page
from embodied.report.reader import STEPS, RunFolder, read_run

COLOURS = 6
_DASHES = ("", " dashed", " dotted")  # tell apart what shares a colour
_LONG = 25  # rows of a table that is folded


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run's row in the table; `link` is its own report, relative to the page, if it has one."""

    label: str
    colour: str
    link: str
    status: str
    status_word: str
    cells: list[str]


def build_comparison(run_folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Compare runs on one page at `out` (default: comparison.html in the folder that holds them all); return its path.

    Raises RefusedInput for fewer than two runs, or a folder that is none of a run.
    """
    if len(run_folders) < 2:
        raise RefusedInput(f"A comparison needs at least two runs; got {len(run_folders)}.")
    runs = [read_run(folder) for folder in run_folders]
    parents = [str(run.path.resolve().parent) for run in runs]
    out = Path(out) if out else Path(os.path.commonpath(parents)) / "comparison.html"
    labels = _labels(runs)
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    units = {run.unit for run in runs}
    counted = "Progress" if len(units) > 1 else "Steps" if units == {STEPS} else unit_of(runs).capitalize()
    page = environment().get_template("compare.html.j2")
    write_page(
        out,
        page.render(
            title=f"{len(runs)} runs of {recipes[0]}" if len(recipes) == 1 else f"{len(runs)} runs compared",
            lead=_lead(runs),
            entries=[
                _entry(run, label, index, out) for index, (run, label) in enumerate(zip(runs, labels, strict=True))
            ],
            columns=[
                "Before",
                "Latest" if any(run.status == "open" for run in runs) else "After",
                counted,
                "Time",
                f"{counted} a second",
                "Seed",
                "Bottleneck",
            ],
            success=_overlaid(runs, labels, SUCCESS, success_title(runs), (0.0, 1.0)),
            returns=_overlaid(runs, labels, RETURN, "Return", None) if _one_return(runs) else None,
            seeds=_seeds(runs),
            differences=_differences(runs),
            long=_LONG,
            labels=labels,
            notes=[f"{label}: {note}" for run, label in zip(runs, labels, strict=True) for note in run.notes],
        ),
    )
    return out


def _labels(runs: list[RunFolder]) -> list[str]:
    """The shortest of recipe, seed and time that tells the runs apart."""
    recipes, seeds = [run.recipe for run in runs], [f"seed {run.seed}" for run in runs]
    if len(set(recipes)) == len(runs):
        return recipes
    prefix = ["" if len(set(recipes)) == 1 else f"{recipe} · " for recipe in recipes]
    for tails in (seeds, [run.path.resolve().name for run in runs]):
        labels = [p + tail for p, tail in zip(prefix, tails, strict=True)]
        if len(set(labels)) == len(runs):
            return labels
    return [str(run.path) for run in runs]


def _lead(runs: list[RunFolder]) -> str:
    reached = sum(run.status == "reached" for run in runs)
    aimed = sum(run.status == "reached" or goal(run) is not None for run in runs)
    text = f"{reached} of {aimed} reached their goal." if aimed else "None of them had a goal."
    if 0 < aimed < len(runs):
        text += f" {len(runs) - aimed} had none."
    finals = [words.measured(words.outcomes(run).get("after"), SUCCESS) for run in runs if has_success(run)]
    rates = [rate for rate in finals if rate is not None]
    if len(rates) == len(runs):
        mean = sum(rates) / len(rates)
        text += f" {success_title(runs).split()[0]} after training: {words.percent(mean)} on average"
        text += (
            f", from {words.percent(min(rates))} to {words.percent(max(rates))}." if min(rates) < max(rates) else "."
        )
    return text


def _entry(run: RunFolder, label: str, index: int, out: Path) -> Entry:
    report = run.path / REPORT
    stages = [stage for stage in phase_times(run) if stage.name != "other"]
    found = words.outcomes(run)
    speed = run.env_steps / run.seconds if run.seconds and run.env_steps is not None else None
    return Entry(
        label=label,
        colour=_colour(index),
        link=os.path.relpath(report.resolve(), out.resolve().parent) if report.is_file() else "",
        status=run.status,
        status_word=words.STATUS_WORDS.get(run.status, run.status),
        cells=[
            _score(run, found.get("before")),
            _score(run, found.get("latest") or found.get("after")),
            words.count(run.env_steps),
            words.duration(run.seconds),
            words.count(speed),
            "–" if run.seed is None else str(run.seed),
            f"{stages[0].name}, {words.percent(stages[0].share)}" if stages else "–",
        ],
    )


def _colour(index: int) -> str:
    return f"{index % COLOURS}{_DASHES[index // COLOURS % len(_DASHES)]}"


def _score(run: RunFolder, results: dict[str, Any] | None) -> str:
    if has_success(run) and (rate := words.measured(results, SUCCESS)) is not None:
        return words.percent(rate)
    value = words.measured(results, RETURN)
    return "–" if value is None else f"return {words.number(value)}"


def _one_return(runs: list[RunFolder]) -> bool:
    """Whether the runs' returns are of one environment; those of several have nothing in common."""
    return len({words.environment_id(run) for run in runs if _best_series(run, RETURN)}) == 1


def _best_series(run: RunFolder, names: tuple[str, ...]) -> Series | None:
    return first_series(run.rows, "eval", names) or first_series(run.rows, "train", names)


def _overlaid(
    runs: list[RunFolder], labels: list[str], names: tuple[str, ...], title: str, y_range: tuple[float, float] | None
) -> Chart | None:
    """Every run's evaluations on one axis, without intervals, which would hide each other."""
    lines = [
        Line(label, dataclasses.replace(found, low=None, high=None), _colour(index))
        for index, (run, label) in enumerate(zip(runs, labels, strict=True))
        if (names is not SUCCESS or has_success(run)) and (found := _best_series(run, names))
    ]
    y_format = words.percent if y_range else words.number
    return line_chart(title, lines, y_range=y_range, y_format=y_format, unit=unit_of(runs)) if lines else None


def _seeds(runs: list[RunFolder]) -> Chart | None:
    """Mean and range over runs that differ in nothing but their seed; None if there are no two such runs."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        same = {key: str(value) for key, value in _flatten(run.config).items() if not _is_own(run, key, value)}
        groups.setdefault(json.dumps([run.recipe, same], sort_keys=True), []).append(run)
    lines = []
    for members in groups.values():
        evaluated = [
            (run, line) for run in members if has_success(run) and (line := first_series(run.rows, "eval", SUCCESS))
        ]
        if len(evaluated) < 2:
            continue
        steps, values = common_grid(*zip(*evaluated, strict=True))
        recipe = members[0].recipe
        summary = Series(recipe, list(steps), list(values.mean(0)), list(values.min(0)), list(values.max(0)))
        seeds = ", ".join(str(run.seed) for run, _ in evaluated)
        lines.append(Line(f"{recipe}: mean and range of seeds {seeds}", summary, _colour(len(lines))))
    if not lines:
        return None
    return line_chart("Success over seeds", lines, y_range=(0.0, 1.0), y_format=words.percent, unit=unit_of(runs))


def unit_of(runs: Sequence[RunFolder]) -> str:
    """What the runs count; several units are all named."""
    return " or ".join(dict.fromkeys(run.unit for run in runs))


def _differences(runs: list[RunFolder]) -> list[tuple[str, list[str]]]:
    """(dotted key, value in each run) of every configuration key on which the runs differ, their folders left out."""
    flat = [
        {key: value for key, value in _flatten(run.config).items() if key == "seed" or not _is_own(run, key, value)}
        for run in runs
    ]
    keys = sorted({key for values in flat for key in values})
    table = [(key, [_written(values[key]) if key in values else "–" for values in flat]) for key in keys]
    return [(key, cells) for key, cells in table if len(set(cells)) > 1]


def _written(value: Any) -> str:
    """As in the configuration's file."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_own(run: RunFolder, key: str, value: Any) -> bool:
    """Whether a configuration entry is the run's own by nature: its seed, its folder, or a path into that."""
    if key in ("seed", "run.folder"):
        return True
    return isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(run.path.resolve())


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
