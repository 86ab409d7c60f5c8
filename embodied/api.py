"""The library's face: train, evaluate and load policies from Python.

import embodied

run = embodied.train("gym_cartpole_ppo_mlp", ["seed=3"])
steps, returns = run.metric("eval/return")
policy = embodied.load_policy(run.folder)
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.config import parse
from embodied.config.compose import compose_recipe, find_recipe
from embodied.interaction.evaluate import evaluate_policy, find_policy
from embodied.interaction.recipe import EvaluationConfig, resolve_device
from embodied.interaction.workload import parse_workload
from embodied.report import build_report
from embodied.training import loop
from embodied.training.finished import FinishedRun
from embodied.training.loop import new_folder
from envs.registry import config_class
from policies import registry

if TYPE_CHECKING:
    from embodied.interaction.evaluation import EvaluationResult
    from policies.api import Policy


class Run(FinishedRun):
    """A finished run of a policy."""

    @property
    def videos(self) -> dict[str, Path]:
        """The videos there are: before, after, both."""
        return {name: Path(path) for name, path in self.result.get("videos", {}).items()}


def train(recipe: str, overrides: Sequence[str] = ()) -> Run:
    """Train by a recipe, given by name or by file, with `key=value` overrides; films and reports as the command does.

    Raises ConfigurationError before anything starts if the recipe cannot be, and EmbodiedError on failure.
    """
    workload = parse_workload(find_recipe(recipe).stem, compose_recipe(recipe, overrides))
    folder = new_folder(workload)
    outcome = loop.train(workload, folder, command=shlex.join(["embodied", "train", recipe, *overrides]))
    workload.finish(outcome, print)
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
