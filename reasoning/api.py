"""The library's face: train a language model from Python, on problems and with a reward of one's own.

import reasoning

problems = [(f"{a}+{b}=", str(a + b)) for a in range(20) for b in range(20)]
run = reasoning.train("math_grpo_tiny", problems, lambda response, problem: problem.answers[0] in response)
responses, accuracy = run.metric("eval/accuracy")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied.commands import report
from embodied.config.compose import compose_recipe, find_recipe
from embodied.errors import ConfigurationError, RefusedInput
from embodied.runs.checkpoint import CheckpointStore
from embodied.runs.folder import RunFolder, create_run_folder
from embodied.runs.metrics import read_metrics
from reasoning.problems.record import Problem, ask
from reasoning.training import given as given_record
from reasoning.training.placement import check_placement
from reasoning.training.recipe import load_run_recipe, parse_recipe
from reasoning.training.train import Outcome
from reasoning.training.train import train as train_recipe

Reward = Callable[[str, Problem], float]
Given = Sequence[Problem | tuple[str, str]]


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
        """Responses and values of one metric over the run, e.g. "eval/accuracy"; docs/metrics.md lists them."""
        records = read_metrics(self.folder / "metrics.jsonl")
        found = [(r["env_steps"], r["metrics"][name]) for r in records if name in r["metrics"]]
        responses, values = zip(*found, strict=True) if found else ((), ())
        return np.array(responses, dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def model(self) -> Path:
        """The trained model and its tokenizer, as transformers' `from_pretrained` takes them."""
        return Path(self.result["checkpoint"]) / "policy"


def train(
    recipe: str, problems: Given | None = None, reward: Reward | None = None, *, overrides: Sequence[str] = ()
) -> Run:
    """Train by a recipe, given by name or by file, with `key=value` overrides.

    Args:
        problems: to train on instead of the recipe's: `Problem`s or (question, answer) pairs. Some are held out for
            evaluation (`evaluation.size`, at most half) unless `evaluation.problems` names others.
        reward: instead of the recipe's first term: (response, problem) -> number; 1 or more counts as right. It runs in
            processes of its own, so that a slow or crashing one cannot stop the training.

    Raises ConfigurationError before anything starts if the recipe cannot be, and EmbodiedError on failure.
    """
    name = find_recipe(recipe).stem
    parsed = parse_recipe(name, compose_recipe(recipe, list(overrides)))
    check_placement(parsed)
    given = _problems(problems)
    exact = Path(parsed.run.folder) if parsed.run.folder else None
    folder = create_run_folder(Path(parsed.run.root), name, exact)
    given_record.write(folder.path, problems=given is not None, reward=reward is not None)
    command = " ".join(["reasoning train", recipe, *overrides])
    return _run(train_recipe(parsed, folder, command=command, problems=given, reward=reward))


def resume(folder: str | Path, problems: Given | None = None, reward: Reward | None = None) -> Run:
    """Go on with a run from its latest checkpoint, with the same problems and reward as it was started with."""
    run = RunFolder(Path(folder).resolve())
    parsed = load_run_recipe(run.path)
    if CheckpointStore(run.checkpoints, keep=1).latest() is None:
        raise RefusedInput(f"{folder} has no complete checkpoint to go on from")
    given_record.check(run.path, problems=problems is not None, reward=reward is not None)
    command = str(run.read_result().get("command", f"reasoning train {parsed.name}"))
    return _run(train_recipe(parsed, run, command=command, resume=True, problems=_problems(problems), reward=reward))


def _run(outcome: Outcome) -> Run:
    report.write(outcome.folder.path)
    return Run(outcome.folder.path, outcome.status, outcome.reason, outcome.result)


def _problems(given: Given | None) -> list[Problem] | None:
    """As records. Raises ConfigurationError for an entry of another kind, with its place."""
    if given is None:
        return None
    found = []
    for index, entry in enumerate(given):
        if isinstance(entry, Problem):
            found.append(entry)
        elif isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry):
            found.append(ask(entry[0], entry[1], origin=f"given:{index}"))
        else:
            raise ConfigurationError(
                f"problems[{index}] is {entry!r}; expected a Problem, or a pair (question, answer) of texts"
            )
    if len(found) < 2:
        raise ConfigurationError(f"{len(found)} problems are given; at least 2 are needed, of which one is held out")
    return found
