"""The library's face: train a language model from Python, on problems and with a reward of one's own.

import reasoning

problems = [(f"{a}+{b}=", str(a + b)) for a in range(20) for b in range(20)]
run = reasoning.train("math_grpo_tiny", problems, lambda response, problem: problem.answers[0] in response)
responses, accuracy = run.metric("eval/accuracy")
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from embodied.commands import report
from embodied.config.compose import compose_recipe, find_recipe
from embodied.errors import ConfigurationError
from embodied.runs.folder import RunFolder
from embodied.training import loop
from embodied.training.finished import FinishedRun
from embodied.training.loop import new_folder, started_with
from reasoning.problems.record import Problem, ask
from reasoning.training.recipe import load_run_recipe, parse_recipe
from reasoning.training.workload import ReasoningWorkload

Reward = Callable[[str, Problem], float]
Given = Sequence[Problem | tuple[str, str]]


class Run(FinishedRun):
    """A finished run of a language model."""

    @property
    def model(self) -> Path:
        """The trained model and its tokenizer, as transformers' `from_pretrained` takes them."""
        return self.checkpoint / "policy"


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
    parsed = parse_recipe(find_recipe(recipe).stem, compose_recipe(recipe, overrides))
    workload = ReasoningWorkload(parsed, _problems(problems), reward)
    return _run(workload, new_folder(workload), shlex.join(["reasoning", "train", recipe, *overrides]), resume=False)


def resume(folder: str | Path, problems: Given | None = None, reward: Reward | None = None) -> Run:
    """Go on with a run from its latest checkpoint, with the same problems and reward as it was started with."""
    run = RunFolder(Path(folder).resolve())
    workload = ReasoningWorkload(load_run_recipe(run.path), _problems(problems), reward)
    return _run(workload, run, started_with(workload, run), resume=True)


def _run(workload: ReasoningWorkload, folder: RunFolder, command: str, *, resume: bool) -> Run:
    outcome = loop.train(workload, folder, command=command, resume=resume)
    report.write(folder.path)
    return Run(folder.path, outcome.status, outcome.reason, outcome.result)


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
        if not found[-1].text.strip() or not all(answer.strip() for answer in found[-1].answers):
            raise ConfigurationError(f"problems[{index}] is {entry!r}; neither question nor answer may be empty")
    if len(found) < 2:
        raise ConfigurationError(f"{len(found)} problems are given; at least 2 are needed, of which one is held out")
    return found
