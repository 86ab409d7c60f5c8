"""Whether a recipe, its model and its problems suit each other: what only files can tell, told before a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embodied.errors import ConfigurationError
from reasoning.generation.decoder import Shape
from reasoning.rewards.graders import check_problem
from reasoning.training.problems import ProblemSets
from reasoning.training.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def check_room(recipe: Recipe, model: PretrainedConfig, sets: ProblemSets) -> None:
    """Raise ConfigurationError when the engine does not serve this model, or its sequences are too short."""
    if recipe.rollout.engine.kind == "native":
        Shape.of(model)
    named = {"rollout": recipe.rollout.sampling, "evaluation": recipe.evaluation.sampling}
    where, sampling = max(named.items(), key=lambda entry: entry[1].max_new_tokens)
    limit = model.max_position_embeddings
    if sets.longest + sampling.max_new_tokens > limit:
        raise ConfigurationError(
            f"the longest prompt has {sets.longest} tokens and {where}.sampling.max_new_tokens is "
            f"{sampling.max_new_tokens}, but the model {recipe.model.source!r} was made for at most {limit} together; "
            "lower max_new_tokens, or drop long prompts with problems.max_prompt_tokens"
        )


def check_suited(recipe: Recipe, sets: ProblemSets, *, own_reward: bool) -> None:
    """Raise ConfigurationError for a problem that a term of the reward can only call wrong, or not grade at all.

    own_reward: a function from Python is in the place of the first term.
    """
    for term in recipe.reward.terms[own_reward:]:
        for problem in (*sets.training, *sets.held_out):
            check_problem(term.kind, problem)
