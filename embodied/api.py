"""The library's face: train, evaluate and load policies from Python.

import embodied

run = embodied.train("gym_cartpole_ppo_mlp", ["seed=3"])
steps, returns = run.metric("eval/return")
policy = embodied.load_policy(run.folder)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied.config import parse
from embodied.config.compose import compose_recipe, find_recipe
from embodied.interaction.before_and_after import film_before_and_after
from embodied.interaction.evaluate import evaluate_policy, find_policy
from embodied.interaction.recipe import EvaluationConfig, parse_recipe, resolve_device
from embodied.interaction.train import train as train_recipe
from embodied.report import build_report
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics
from envs.registry import config_class
from policies import registry

if TYPE_CHECKING:
    from embodied.interaction.evaluation import EvaluationResult
    from policies.api import Policy


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    folder: its run folder. status: "reached" (its goal) or "limit". reason: in words. result: contents of result.json.
    """

    folder: Path
    status: str
    reason: str
    result: dict[str, Any]

    def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Environment steps and values of one metric over the run, e.g. "eval/return"; docs/metrics.md lists them."""
        records = read_metrics(self.folder / "metrics.jsonl")
        found = [(r["env_steps"], r["metrics"][name]) for r in records if name in r["metrics"]]
        steps, values = zip(*found, strict=True) if found else ((), ())
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return Path(self.result["checkpoint"])

    @property
    def videos(self) -> dict[str, Path]:
        """The videos there are: before, after, both."""
        return {name: Path(path) for name, path in self.result.get("videos", {}).items()}


def train(recipe: str, overrides: Sequence[str] = ()) -> Run:
    """Train by a recipe, given by name or by file, with `key=value` overrides; films and reports as the command does.

    Raises ConfigurationError before anything starts if the recipe cannot be, and EmbodiedError on failure.
    """
    name = find_recipe(recipe).stem
    parsed = parse_recipe(name, compose_recipe(recipe, list(overrides)))
    exact = Path(parsed.run.folder) if parsed.run.folder else None
    folder = create_run_folder(Path(parsed.run.root), name, exact)
    outcome = train_recipe(parsed, folder, command=" ".join(["embodied train", recipe, *overrides]))
    film_before_and_after(outcome, parsed, print)
    build_report(folder.path)
    return Run(folder.path, outcome.status, outcome.reason, outcome.result)


def evaluate(
    policy: str | Path, env: str, *, episodes: int = 64, seed: int = 0, device: str = "auto", **options: Any
) -> EvaluationResult:
    """Play `episodes` of the environment `env` with a saved policy, each once; `options` are the environment's keys."""
    config = parse(config_class(env), {"id": env, **options}, at="env")
    protocol = EvaluationConfig(episodes=episodes, seed=seed)
    return evaluate_policy(find_policy(policy), config, protocol, device=resolve_device(device))[0]


def load_policy(path: str | Path) -> Policy:
    """The policy in a saved policy's folder, a checkpoint or a run folder (its latest checkpoint)."""
    return registry.load(find_policy(path))
