"""Reads a run folder as it is: finished, still running, killed in the middle of a line, or with files missing.

Nothing is guessed: what could not be read is listed in `RunFolder.notes`, and the report shows those notes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import RefusedInput
from embodied.runs.folder import COMMAND

CONFIG, PLAN, METRICS, RESULT = "config.yaml", "plan.json", "metrics.jsonl", "result.json"
FIT = "sft.yaml"  # what a fit to demonstrations has in place of a configuration and a plan
STEPS = "environment steps"
_LOG_LINES = 40


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of metrics.jsonl. `seconds` and `env_steps` count from the start of the run."""

    iteration: int
    env_steps: int
    seconds: float
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """What a run left behind. Missing files are empty values here and sentences in `notes`."""

    path: Path
    config_text: str
    config: dict[str, Any]
    plan: dict[str, Any]
    rows: list[Row]
    result: dict[str, Any]
    log_tail: list[str]
    checkpoints: list[Path]
    videos: list[Path]
    notes: list[str]

    @property
    def recipe(self) -> str:
        """From the result or the configuration, else the folder's place: runs/<recipe>/<time>."""
        return str(self.result.get("recipe") or self.config.get("name") or self.path.resolve().parent.name)

    @property
    def workload(self) -> str:
        """embodied, reasoning, or `fit` to demonstrations."""
        if not (self.path / CONFIG).is_file() and (self.path / FIT).is_file():
            return "fit"
        return "reasoning" if self.config.get("workload") == "reasoning" else "embodied"

    @property
    def status(self) -> str:
        """reached, limit, interrupted, failed, `done` (a fit), or `open`: no result (still running, or killed)."""
        return str(self.result.get("status") or "open")

    @property
    def seconds(self) -> float | None:
        # a run that failed before it took the time says 0
        known = [_number(self.result.get("seconds")), _number(self.rows[-1].seconds if self.rows else None)]
        return max((seconds for seconds in known if seconds is not None), default=None)

    @property
    def env_steps(self) -> float | None:
        counted = self.result.get("env_steps", self.result.get("responses"))
        return _number(counted, max((row.env_steps for row in self.rows), default=None))

    @property
    def unit(self) -> str:
        """What a run counts its progress in."""
        return {"reasoning": "responses", "fit": "samples"}.get(self.workload, STEPS)

    @property
    def iterations(self) -> float | None:
        return _number(self.result.get("iterations"), max((row.iteration for row in self.rows), default=None))

    @property
    def seed(self) -> Any:
        return self.result.get("seed", self.config.get("seed"))

    @property
    def command(self) -> str | None:
        """That began the run, where it is known."""
        path = self.path / COMMAND
        recorded = _text(path, []) if path.is_file() else self.result.get("command")
        return (recorded.strip() or None) if isinstance(recorded, str) else None

    @property
    def trace(self) -> Path | None:
        path = self.path / "trace.json"
        return path if path.is_file() else None

    def resolve(self, recorded: object) -> Path | None:
        """The file that a path in result.json means: inside the run folder, else as it stands. None if absent."""
        if not isinstance(recorded, str) or not recorded:
            return None
        # the folder may have been moved or downloaded since: what lies inside it under the path's end comes first
        named = Path(recorded)
        ends = [Path(*named.parts[start:]) for start in range(int(named.is_absolute()), len(named.parts))]
        return next((path for path in [*(self.path / end for end in ends), named] if path.exists()), None)


def read_run(folder: Path | str) -> RunFolder:
    """Read `folder`. Raises RefusedInput if it holds neither configuration, metrics nor result."""
    path = Path(folder)
    if not path.is_dir():
        raise RefusedInput(f"Expected a run folder such as runs/<recipe>/<time>; {path} does not exist.")
    if not any((path / name).is_file() for name in (CONFIG, FIT, METRICS, RESULT)):
        inside = sorted(
            {found.parent for found in path.glob(f"*/{CONFIG}")} | {f.parent for f in path.glob(f"*/*/{CONFIG}")}
        )
        hint = f" Runs inside it: {', '.join(map(str, inside[-8:]))}." if inside else ""
        raise RefusedInput(f"{path} is no run folder: it has no {CONFIG}, {METRICS} or {RESULT}.{hint}")
    notes: list[str] = []
    is_fit = not (path / CONFIG).is_file() and (path / FIT).is_file()
    config_text = _text(path / (FIT if is_fit else CONFIG), notes)
    # a run that goes on has no result yet, which the page says in its first sentence
    goes_on = not (path / RESULT).exists() and (path / METRICS).is_file()
    return RunFolder(
        path=path,
        config_text=config_text,
        config=_yaml(config_text, notes),
        plan={} if is_fit else _json(path / PLAN, notes),
        rows=_rows(path / METRICS, notes),
        result={} if goes_on else _json(path / RESULT, notes),
        log_tail=_text(path / "log.txt", [])[-20_000:].splitlines()[-_LOG_LINES:],
        checkpoints=sorted(path.glob("checkpoints/step_*"), key=_step_of),
        videos=sorted((path / "videos").glob("**/*.mp4")),
        notes=notes,
    )


def _step_of(checkpoint: Path) -> int:
    digits = re.search(r"\d+", checkpoint.name)
    return int(digits.group()) if digits else -1


def _text(path: Path, notes: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
    except OSError as error:
        notes.append(f"{path.name} could not be read: {error.strerror}.")
    return ""


def _yaml(text: str, notes: list[str]) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        notes.append(f"{CONFIG} is not valid YAML: {str(error).splitlines()[0]}.")
        return {}
    return values if isinstance(values, dict) else {}


def _json(path: Path, notes: list[str]) -> dict[str, Any]:
    text = _text(path, notes)
    if not text:
        return {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        notes.append(f"{path.name} is not complete JSON (line {error.lineno}) and was left out.")
        return {}
    return values if isinstance(values, dict) else {}


def _rows(path: Path, notes: list[str]) -> list[Row]:
    """Every whole line; a broken last line is what a running or killed run leaves, a broken earlier one is a fault."""
    lines = [line for line in _text(path, notes).splitlines() if line.strip()]
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_row(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            where = "the last line" if number == len(lines) else f"line {number}"
            notes.append(f"{path.name}: {where} is incomplete and was left out.")
    return rows


def _row(values: dict[str, Any]) -> Row:
    metrics = {
        str(key): float(value)
        for key, value in values["metrics"].items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return Row(int(values["iteration"]), int(values["env_steps"]), float(values["seconds"]), metrics)


def _number(*candidates: Any) -> float | None:
    for value in candidates:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
    return None
