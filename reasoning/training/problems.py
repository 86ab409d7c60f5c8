"""The problems of a run: those to train on, and others, held out, to evaluate on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from embodied.errors import AssetError
from embodied.random import derive_seed
from reasoning.models.loading import open_tokenizer
from reasoning.problems import load_problems
from reasoning.problems.record import Message, Problem
from reasoning.prompts import Prompter
from reasoning.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class ProblemSets:
    """training, held_out: no question is in both. summary: what was loaded and left out, in words. longest: tokens of
    the longest prompt."""

    training: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    summary: str
    longest: int = 0


def gather(recipe: Recipe, given: Sequence[Problem] | None = None) -> ProblemSets:
    """Load what the recipe names, or take `given` for training.

    Raises AssetError when files are missing, rows cannot be used or nothing is left, ConfigurationError for a wrong
    column or a prompt format that the model's tokenizer does not have.
    """
    prompter = Prompter(open_tokenizer(recipe.model.source), recipe.prompt)

    lengths: dict[tuple[Message, ...], int] = {}

    def count(problem: Problem) -> int:
        if problem.messages not in lengths:
            lengths[problem.messages] = len(prompter.tokens(problem))
        return lengths[problem.messages]

    options, evaluation = recipe.problems, recipe.evaluation
    if given is not None:
        training, said = list({problem.key: problem for problem in given}.values()), f"{len(given)} problems given"
    else:
        loaded = load_problems(options, count)
        training, said = loaded.problems, loaded.summary()
    if evaluation.problems is not None:
        others = load_problems(evaluation.problems, count).problems
        held_out = others[: evaluation.size]
    elif given is None and options.family is not None:
        # more than are wanted, since some may be among the training problems
        other = dataclasses.replace(options, seed=options.seed + 1, size=4 * evaluation.size, limit=None)
        known = {problem.key for problem in training}
        held_out = [p for p in load_problems(other, count).problems if p.key not in known][: evaluation.size]
    else:
        shuffled = random.Random(derive_seed(evaluation.seed, "held out")).sample(training, len(training))
        held_out = shuffled[: min(evaluation.size, len(training) // 2)]
    known = {problem.key for problem in held_out}
    training = [problem for problem in training if problem.key not in known]
    if not training or not held_out:
        raise AssetError(
            f"{len(training)} problems are left to train on and {len(held_out)} to evaluate on; each needs at least one"
        )
    longest = max(map(count, [*training, *held_out]))
    return ProblemSets(tuple(training), tuple(held_out), f"{said}; {len(held_out)} held out", longest)
