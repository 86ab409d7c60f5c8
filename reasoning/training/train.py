"""Training a language model by a recipe: the shared run loop with the reasoning workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from embodied.runs.folder import RunFolder
from embodied.training import loop
from embodied.training.workload import Outcome
from reasoning.problems.record import Problem
from reasoning.training.recipe import Recipe
from reasoning.training.workload import ReasoningWorkload


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    command: str,
    resume: bool = False,
    problems: Sequence[Problem] | None = None,
    reward: Callable[..., Any] | None = None,
) -> Outcome:
    """Train `recipe` in `folder`; see `embodied.training.loop.train`.

    problems, reward: to train on and to reward with instead of the recipe's; a resumed run must be given them again.
    """
    return loop.train(ReasoningWorkload(recipe, problems, reward), folder, command=command, resume=resume)
