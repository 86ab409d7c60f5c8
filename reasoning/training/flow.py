"""The reasoning flow: prompts -> generate -> reward -> (reference) -> (critic) -> learner, and weights back again.

A group goes on as soon as it is whole, while others are still being generated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from embodied.scheduler import ACCELERATOR, CPU, Flow, Route
from reasoning.training.critic_worker import CriticWorker, CriticWorkerOptions
from reasoning.training.generate_worker import GenerateWorker, GenerateWorkerOptions
from reasoning.training.learner_worker import LearnerWorker, LearnerWorkerOptions
from reasoning.training.problems import ProblemSets
from reasoning.training.prompt_worker import PromptWorker, PromptWorkerOptions
from reasoning.training.recipe import Recipe
from reasoning.training.reference_worker import ReferenceWorker, ReferenceWorkerOptions
from reasoning.training.reward_worker import RewardWorker, RewardWorkerOptions

# groups that may wait for a stage: a whole rollout, where stages take turns on one device
_CAPACITY = 1 << 20


def reasoning_flow(
    recipe: Recipe, sets: ProblemSets, device: str, alarms: Path, function: Callable[..., Any] | None = None
) -> Flow:
    """Training. device: where generation happens, which decides its precision. function: the user's own reward."""
    flow = Flow("reasoning")
    algorithm, rollout, evaluation = recipe.algorithm, recipe.rollout, recipe.evaluation
    model, dtype = recipe.model.source, recipe.dtype(device)
    prompts = flow.stage(
        "prompts",
        PromptWorker,
        PromptWorkerOptions(
            model,
            recipe.prompt,
            sets.training,
            sets.held_out,
            algorithm.group_size,
            evaluation.attempts,
            evaluation.seed,
        ),
        scales_with="prompts",
        needs=CPU,
    )
    generate = flow.stage(
        "generate",
        GenerateWorker,
        GenerateWorkerOptions(
            model, rollout.engine, dtype, rollout.slots, rollout.sampling, evaluation.sampling, algorithm.max_staleness
        ),
        scales_with="responses",
        needs=ACCELERATOR,
    )
    reward = flow.stage(
        "reward",
        RewardWorker,
        RewardWorkerOptions(model, recipe.reward, function, sets.training, sets.held_out, algorithm),
        scales_with="responses",
        needs=CPU,
    )
    flow.edge(prompts.questions, generate.questions, capacity=_CAPACITY)
    # whoever has least to grade; a reward does not depend on who gives it
    flow.edge(generate.groups, reward.groups, capacity=_CAPACITY, route=Route.READY)
    # by its number, not by when it was graded: the ranks of a trained model add up the same groups in every run
    last, route = reward.graded, Route.KEY
    if algorithm.needs_reference:
        source = recipe.model.reference or model
        options = ReferenceWorkerOptions(source, recipe.learner, recipe.layout, rollout.sampling)
        reference = flow.stage("reference", ReferenceWorker, options, scales_with="responses", needs=ACCELERATOR)
        flow.edge(last, reference.groups, capacity=_CAPACITY, route=route)
        last = reference.referenced
    if algorithm.needs_values:
        source = recipe.critic.source or model
        critic_options = CriticWorkerOptions(source, recipe.critic, algorithm, recipe.layout, alarms)
        critic = flow.stage("critic", CriticWorker, critic_options, scales_with="responses", needs=ACCELERATOR)
        flow.edge(last, critic.groups, capacity=_CAPACITY, route=route)
        last = critic.valued
    exact = dtype == "float32"
    learner_options = LearnerWorkerOptions(
        model, algorithm, recipe.learner, recipe.layout, rollout.sampling, exact, alarms
    )
    learner = flow.stage("learner", LearnerWorker, learner_options, scales_with="responses", needs=ACCELERATOR)
    flow.edge(last, learner.groups, capacity=_CAPACITY, route=route)
    flow.weights(learner, generate)
    return flow
