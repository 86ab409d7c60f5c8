"""What recipes of every workload have in common: sections, parsing, checks, and coming back from a run's folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from embodied.config import config, parse
from embodied.config.compose import NOTES
from embodied.errors import ConfigurationError, suggest
from embodied.runs.options import CheckpointConfig, LoggerConfig, RunConfig
from embodied.scheduler.options import ClusterConfig

SHARED_SECTIONS: dict[str, type] = {
    "checkpoint": CheckpointConfig,
    "cluster": ClusterConfig,
    "logger": LoggerConfig,
    "run": RunConfig,
}


@config
class TrainingGoal:
    """When training is over. at_least: what `in_a_row` evaluations have to reach; null trains to a limit. minutes: of
    wall time. Every workload adds a limit on what it counts."""

    at_least: float | None = None
    in_a_row: int = 1
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.in_a_row < 1:
            raise ValueError(f"in_a_row is {self.in_a_row}; it must be at least 1")
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"minutes is {self.minutes}; it must be above 0, or null for no limit")

    @property
    def limit(self) -> int:
        """Of what the run counts."""
        raise NotImplementedError

    @property
    def measure(self) -> str:
        """The metric of evaluations that `at_least` is about."""
        raise NotImplementedError

    @property
    def wish(self) -> str:
        """A clause that says what has been reached."""
        raise NotImplementedError


class _Evaluation(Protocol):
    every: int


class Recipe(Protocol):
    """One run, completely described, as far as every run is alike."""

    name: str
    seed: int
    evaluation: _Evaluation
    goal: TrainingGoal
    checkpoint: CheckpointConfig
    cluster: ClusterConfig
    logger: LoggerConfig
    run: RunConfig

    def device(self) -> str:
        """The torch device that `cluster.device` means here."""

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, complete with defaults."""


def parse_sections(
    values: Mapping[str, Any], sections: Mapping[str, type | Callable[[dict[str, Any]], type]], *extra: str
) -> dict[str, Any]:
    """The typed parts of a recipe from plain nested values, as composed: `description`, `seed` and every section.

    sections: by name, the record, or a function from the given values to it. extra: further keys that may be there.
    Raises ConfigurationError listing every fault found.
    """
    values = {"description": "", "seed": 0, **{k: v for k, v in values.items() if k not in ("name", *NOTES)}}
    known = ["description", "seed", *extra, *sections]
    faults = [f"Unknown configuration key {k!r}. " + suggest(k, known, noun="keys") for k in values if k not in known]
    seed = values["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        faults.append(f"Configuration key 'seed' is {seed!r}: it should be a whole number of at least 0.")
    parts: dict[str, Any] = {"description": str(values["description"]), "seed": seed}
    for section, record in sections.items():
        given = values.get(section)
        given = {} if given is None else given
        if not isinstance(given, dict):
            faults.append(f"Configuration key {section!r} is {given!r}: it should be a group of keys.")
            continue
        try:
            parts[section] = parse(record if isinstance(record, type) else record(given), given, at=section)
        except ConfigurationError as error:
            faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
    return parts


def refuse(recipe: Recipe, faults: list[str]) -> None:
    """Raise ConfigurationError with a workload's `faults` and those that recipes of any workload can have."""
    if recipe.goal.at_least is not None and recipe.evaluation.every == 0:
        faults = [
            *faults,
            "goal.at_least is looked up in evaluations, but evaluation.every=0 makes none; set it to 1 or more",
        ]
    try:
        recipe.device()
    except ConfigurationError as error:
        faults = [*faults, str(error)]
    if faults:
        raise ConfigurationError("\n".join(faults))


def _meant(folder: Path) -> str:
    """What may have been meant by a folder that is no run."""
    if (folder / "sft.yaml").is_file():
        return f"; it is a fit: embodied sft --resume {shlex.quote(str(folder))}"
    inside = sorted(path.parent.name for path in folder.glob("*/config.yaml"))
    return f"; runs inside it: {', '.join(inside[-8:])}" if inside else ""


def read_run_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """(name, values) of the recipe of an existing run. Raises ConfigurationError when there is none."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigurationError(f"{folder} is not a run folder: there is no config.yaml in it{_meant(folder)}")
    try:
        values = yaml.safe_load(path.read_text())
        return str(values["name"]), values
    except (OSError, yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is not the configuration of a run: {type(error).__name__}: {error}") from None
