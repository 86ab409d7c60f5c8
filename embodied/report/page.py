"""`build_report`: one run folder to one `report.html` beside its files, with everything but the videos inside it."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
import io
import itertools
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from embodied import __version__
from embodied.errors import RefusedInput
from embodied.report import words
from embodied.report.charts import INTERVAL, Chart, Line, line_chart
from embodied.report.metrics import (
    RETURN,
    SIGNS,
    SUCCESS,
    Series,
    StageTime,
    find_sign,
    first_series,
    goal,
    has_success,
    keys_of,
    least,
    most,
    operation_times,
    phase_times,
    series,
)
from embodied.report.reader import RunFolder, read_run
from embodied.training.given import read_given
from envs.video import read_frames

REPORT = "report.html"
_MOST_RECORDINGS = 12
_WHEN = {
    "before": "before training",
    "after": "after training",
    "latest": "in the latest evaluation",
    "best": "at its best",
}
_NULL = {"granularity": "whole round", "processes": "as the stage's options say"}  # what null means in a plan


@dataclasses.dataclass(frozen=True)
class Video:
    """A video on the page: `source` relative to the page and empty if it is missing, `poster` a data URI."""

    title: str
    source: str
    poster: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Health:
    title: str
    key: str
    meaning: str
    now: str
    concern: str | None
    chart: Chart | None


def build_report(run_folder: Path | str) -> Path:
    """Write `report.html` into the run folder and return its path.

    Works on any run folder, also of a run that still goes on or was killed; the page says what is missing. Raises
    RefusedInput if the folder is none of a run or cannot be written.
    """
    run = read_run(run_folder)
    out = run.path / REPORT
    page = environment().get_template("report.html.j2").render(**_content(run))
    write_page(out, page)
    return out


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, with everything escaped and an unknown name refused."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("embodied.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": words.count,
        "duration": words.duration,
        "percent": words.percent,
        "number": words.number,
    }
    made.globals |= {"version": __version__, "now": lambda: dt.datetime.now().strftime("%Y-%m-%d %H:%M")}
    return made


def write_page(out: Path, page: str) -> None:
    """Write atomically: a browser that reloads while a run rewrites its report never sees half a page."""
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, out)
    except OSError as error:
        raise RefusedInput(f"The report cannot be written to {out}: {error.strerror}.") from error


def success_chart(run: RunFolder) -> Chart | None:
    """Evaluation with its interval, and training success, over environment steps; None where success means nothing."""
    if not has_success(run):
        return None
    evaluated = first_series(run.rows, "eval", SUCCESS)
    trained = first_series(run.rows, "train", SUCCESS) or series(run.rows, "reward/right")
    lines = [Line("Training", trained, "train")] if trained else []
    if evaluated:
        label = f"Evaluation{INTERVAL}" if evaluated.low else "Evaluation"
        lines.append(Line(label, evaluated, "eval", dots=True))
    return (
        line_chart(
            success_title([run]),
            lines,
            y_range=(0.0, 1.0),
            y_format=words.percent,
            goal=_goal(run, SUCCESS),
            unit=run.unit,
        )
        if lines
        else None
    )


def return_chart(run: RunFolder) -> Chart | None:
    """Return of evaluation and of training over environment steps."""
    evaluated, trained = first_series(run.rows, "eval", RETURN), first_series(run.rows, "train", RETURN)
    lines = [Line("Training", trained, "train")] if trained else []
    lines += [Line("Evaluation", evaluated, "eval", dots=True)] if evaluated else []
    return line_chart("Return", lines, goal=_goal(run, RETURN), unit=run.unit) if lines else None


def success_title(runs: Sequence[RunFolder]) -> str:
    """What a chart of the runs' success is called."""
    return "Accuracy" if {words.success_noun(run) for run in runs} == {"Accuracy"} else "Success rate"


def _fit_chart(run: RunFolder, title: str, name: str, y_format: Callable[[float], str]) -> Chart | None:
    """A measure of a fit on what it learns from and on what it does not."""
    fitted, held_out = series(run.rows, f"sft/{name}"), series(run.rows, f"held_out/{name}")
    lines = [Line("Training", fitted, "train")] if fitted else []
    lines += [Line("Held-out episodes", held_out, "eval", dots=True)] if held_out else []
    return line_chart(title, lines, y_format=y_format, unit=run.unit) if lines else None


def _curves(run: RunFolder) -> list[Chart]:
    if run.workload == "fit":
        charts = [
            _fit_chart(run, "Loss", "loss", words.number),
            _fit_chart(run, "Accuracy of actions", "accuracy", words.percent),
        ]
    else:
        charts = [success_chart(run), return_chart(run)]
    return [chart for chart in charts if chart]


def _goal(run: RunFolder, names: tuple[str, ...]) -> float | None:
    asked = goal(run)
    return asked[1] if asked and asked[0] in names else None


def shown_path(path: Path) -> str:
    """The path as one would type it here: relative if it lies below the working directory."""
    absolute, here = path.resolve(), Path.cwd().resolve()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _content(run: RunFolder) -> dict[str, Any]:
    phases, operations = phase_times(run), operation_times(run)
    before, after, others = _videos(run)
    return {
        "run": run,
        "title": f"{run.recipe} · {run.path.resolve().name}",
        "status": run.status,
        "status_word": words.STATUS_WORDS.get(run.status, run.status),
        "subject": words.subject(run),
        "doing": "Fitting" if run.workload == "fit" else "Training",
        "verdict": words.verdict(run),
        "change": words.change(run),
        "reason": words.as_sentence(str(run.result.get("reason") or "")),
        "tiles": _tiles(run),
        "curves": _curves(run),
        "before": before,
        "after": after,
        "recordings": others,
        "phases": phases,
        "operations": operations,
        "bottleneck": _bottleneck(phases, operations),
        "health": _health(run),
        "metrics": _all_metrics(run),
        "plan": _plan(run),
        "commands": _commands(run),
        "evaluations": _evaluations(run),
        "versions": run.result.get("versions") if isinstance(run.result.get("versions"), dict) else {},
        "log": run.log_tail if run.status in ("failed", "open") else [],
    }


def _tiles(run: RunFolder) -> list[tuple[str, str, str]]:
    """(label, value, remark) of the numbers in front."""
    tiles = []
    found = words.outcomes(run)
    shown = [(label, found.get(when)) for when, label in _WHEN.items()]
    names = SUCCESS if has_success(run) else RETURN
    if words.measured(found.get("best"), names) == words.measured(found.get("after"), names):
        shown.pop()
    for label, results in shown:
        if names is SUCCESS and (rate := words.measured(results, SUCCESS)) is not None:
            remark = ""
            low, high = words.measured(results, SUCCESS, "_low"), words.measured(results, SUCCESS, "_high")
            if low is not None and high is not None:
                remark = f"95% interval {words.percent(low)} – {words.percent(high)}"
            tiles.append((f"{words.success_noun(run)} {label}", words.percent(rate), remark))
        elif (value := words.measured(results, RETURN)) is not None:
            tiles.append((f"Return {label}", words.number(value), ""))
    if held_out := series(run.rows, "held_out/loss"):
        tiles.append(("Held-out loss", words.number(held_out.values[-1]), f"lowest {words.number(least(held_out))}"))
    tiles.append((run.unit.capitalize(), words.count(run.env_steps), _rate(run)))
    remark = f"{run.iterations:.0f} iteration{'s' if run.iterations != 1 else ''}" if run.iterations is not None else ""
    tiles.append(("Time", words.duration(run.seconds), remark))
    if run.seed is not None:
        tiles.append(("Seed", str(run.seed), ""))
    return tiles


def _rate(run: RunFolder) -> str:
    if not run.seconds or not run.env_steps:
        return ""
    return f"{words.count(run.env_steps / run.seconds)} a second over the whole run"


def _bottleneck(phases: list[StageTime], operations: list[StageTime]) -> str:
    named = [phase for phase in phases if phase.name != "other"]
    if not named:
        return ""
    first = named[0]
    text = f"The bottleneck is {first.name}: {words.percent(first.share)} of the time, {words.duration(first.seconds)}."
    if first.share < 1:
        text += f" If it took no time at all, the run would be {1 / (1 - first.share):.2g} times as fast."
    if operations:
        busiest = operations[0]
        text += f" The busiest operation is {busiest.name}, {words.duration(busiest.seconds)}."
    return text


def _health(run: RunFolder) -> list[Health]:
    panels = []
    for sign in SIGNS:
        found = find_sign(run.rows, sign)
        chart = line_chart(sign.title, [Line(sign.title, found, "train")], unit=run.unit) if found else None
        if found is None:
            continue
        broken = [value for value in found.values if value != value or abs(value) == float("inf")]
        if chart is None or broken:
            concern = f"{len(broken)} of {len(found.values)} records are not finite numbers."
        else:
            concern = sign.concern(found.values)
        panels.append(Health(sign.title, found.key, sign.meaning, words.number(found.values[-1]), concern, chart))
    return panels


def _all_metrics(run: RunFolder) -> list[tuple[str, str, str, str, str]]:
    """(key, first, last, least, most) of every metric."""
    table = []
    for key in sorted(keys_of(run.rows)):
        found: Series | None = series(run.rows, key)
        if found is not None:
            numbers = (found.values[0], found.values[-1], least(found), most(found))
            table.append((key, *map(words.number, numbers)))
    return table


def _plan(run: RunFolder) -> dict[str, Any]:
    """The plan as a table of stages, a reason, and whatever else it says."""
    stages = run.plan.get("stages")
    table = {n: s for n, s in stages.items() if isinstance(s, dict)} if isinstance(stages, dict) else {}
    columns = list(dict.fromkeys(key for stage in table.values() for key in stage))
    rest = {key: value for key, value in run.plan.items() if key not in ("stages", "why")}
    cells = {name: [_cell(column, stage.get(column)) for column in columns] for name, stage in table.items()}
    return {"columns": columns, "stages": cells, "why": str(run.plan.get("why") or ""), "rest": rest}


def _cell(column: str, value: Any) -> str:
    if value is None:
        return _NULL.get(column, "–")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _commands(run: RunFolder) -> list[tuple[str, str]]:
    """(what for, command line), for this run in this place."""
    seed = f" seed={run.seed}" if run.seed is not None else ""
    program = "reasoning" if run.workload == "reasoning" else "embodied"
    train = run.command or f"{program} train {shlex.quote(run.recipe)}{seed}"
    folder = shlex.quote(shown_path(run.path))
    given = sorted(read_given(run.path))
    if given:
        own = " and ".join(given)
        again = f"reasoning.resume({shown_path(run.path)!r}, ...)  # from Python, with the same {own}"
        return [("Reproduce", f"from Python, with its own {own}: {train}"), ("Resume", again)]
    if run.workload == "fit":
        return _commands_of_fit(run, folder)
    commands = [("Reproduce", train)]
    if run.status == "open":
        commands.append(("Refresh this page", f"embodied report {folder}"))
    if run.checkpoints and run.workload == "reasoning":
        commands.append(("Evaluate", f"reasoning eval {folder}"))
        commands.append(("Resume", f"reasoning resume {folder}"))
    elif run.checkpoints:
        commands.append(("Evaluate", f"embodied eval {folder}"))
        commands.append(("Film", f"embodied record {folder}"))
        commands.append(("Resume", f"embodied resume {folder}"))
    return commands


def _commands_of_fit(run: RunFolder, folder: str) -> list[tuple[str, str]]:
    commands = [("Reproduce", run.command)] if run.command else []
    if run.status == "open":
        commands.append(("Refresh this page", f"embodied report {folder}"))
    if (run.path / "policy").is_dir():
        policy = shlex.quote(shown_path(run.path / "policy"))
        commands.append(("Evaluate on ENV", f"embodied eval {policy} ENV"))
    if run.checkpoints and run.status != "done":
        commands.append(("Resume", f"embodied sft --resume {folder}"))
    return commands


def _evaluations(run: RunFolder) -> list[str]:
    """Pages of evaluations of this run's policies in its folder."""
    pages = [*run.path.glob("results*.html"), *run.path.glob("evaluation*/index.html")]
    return [str(page.relative_to(run.path)) for page in sorted(pages, key=lambda page: (len(str(page)), str(page)))]


def _videos(run: RunFolder) -> tuple[Video | None, Video | None, list[Video]]:
    recorded = run.result.get("videos") if isinstance(run.result.get("videos"), dict) else {}
    chosen: dict[str, Path | None] = {}
    notes = {}
    for when in ("before", "after"):
        path = run.resolve(recorded.get(when))
        if path is None and recorded.get(when):
            notes[when] = f"{recorded[when]} is missing."
        chosen[when] = path or next((v for v in run.videos if v.stem.startswith(when)), None)
    pair = [
        video_on_page(run.path, chosen[when], f"{when.capitalize()} training")
        if chosen[when]
        else (Video(f"{when.capitalize()} training", "", "", notes[when]) if when in notes else None)
        for when in ("before", "after")
    ]
    together = run.resolve(recorded.get("both"))  # the pair in one file, which the page shows as two
    used = {path.resolve() for path in [*chosen.values(), together] if path}
    others = [video for video in run.videos if video.resolve() not in used]
    newest = others[-_MOST_RECORDINGS:]
    shown = [video_on_page(run.path, video, str(video.relative_to(run.path / "videos"))) for video in newest]
    return pair[0], pair[1], shown


def video_on_page(folder: Path, path: Path, title: str) -> Video:
    """The video at `path` for a page in `folder`; a note in its place where it cannot be played."""
    source = os.path.relpath(path.resolve(), folder.resolve()).replace(os.sep, "/")
    try:
        # half a second in: the scene is set, and a long video need not be decoded
        frame = list(itertools.islice(read_frames(path), 10))[-1]
    except (RefusedInput, IndexError) as error:
        return Video(title, "", "", f"{path.name} cannot be played: {error}")
    picture = io.BytesIO()
    Image.fromarray(frame).save(picture, "JPEG", quality=80)
    return Video(title, source, "data:image/jpeg;base64," + base64.b64encode(picture.getvalue()).decode())
