"""The embodied flow: environment and policy ask and answer in a cycle; the learner waits for whole trajectories."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from embodied.interaction.env_worker import EnvWorker, EnvWorkerOptions
from embodied.interaction.learner_worker import LearnerWorker, LearnerWorkerOptions
from embodied.interaction.policy_worker import PolicyWorker, PolicyWorkerOptions
from embodied.interaction.recipe import Recipe
from embodied.interaction.rollout_recorder import RecorderPlan, changed_options
from embodied.runs.files import anchored
from embodied.scheduler import ACCELERATOR, CPU, Flow, Route
from embodied.scheduler.flow import MANY

# sections that decide, with the policy's name and what it acts in, what a policy that learns will do
_LEARNING = ("policy", "algorithm", "learner", "rollout")


def embodied_flow(recipe: Recipe, alarms: Path, videos: Path | None = None) -> Flow:
    """Training: env <-> policy -> learner, and weights from the learner back to the policy.

    alarms: folder where the batch behind an alarm is saved. videos: folder of what `recipe.record` wants to be filmed
    on the way; None records nothing.
    """
    flow = Flow("embodied")
    group_size = recipe.algorithm.group_size
    env_options = EnvWorkerOptions(
        recipe.env,
        group_size=group_size,
        fresh=recipe.rollout.start == "fresh",
        record=None if videos is None else _recorder_plan(recipe, videos),
    )
    policy_options = PolicyWorkerOptions(recipe.policy, recipe.rollout.forward_rows)
    learner_options = LearnerWorkerOptions(recipe.policy, recipe.algorithm, recipe.learner, alarms)
    env = flow.stage("env", EnvWorker, env_options, scales_with="environments", needs=CPU)
    policy = flow.stage("policy", PolicyWorker, policy_options, scales_with="observations", needs=ACCELERATOR)
    learner = flow.stage("learner", LearnerWorker, learner_options, scales_with="samples", needs=ACCELERATOR)
    flow.edge(env.questions, policy.questions, route=Route.READY)  # a decision does not depend on who decides
    flow.edge(policy.decisions, env.decisions, route=Route.OWNER)
    # a rollout in the smallest pieces must fit: nobody reads it before it is complete
    flow.edge(env.trajectories, learner.trajectories, route=Route.SPLIT, capacity=max(MANY, recipe.env.num_envs))
    flow.weights(learner, policy, apart=recipe.algorithm.max_staleness > 0)
    return flow


def _recorder_plan(recipe: Recipe, videos: Path) -> RecorderPlan | None:
    options = recipe.record
    if not options.every and options.dataset is None:
        return None
    return RecorderPlan(options, videos, recording_origin(recipe))


def recording_origin(recipe: Recipe) -> dict[str, Any]:
    """What decides the episodes that `record.dataset` takes."""
    values = anchored(recipe.as_dict(), ("policy.checkpoint",))  # a run that is resumed knows the whole path
    learning = json.dumps([values[section] for section in _LEARNING], sort_keys=True)
    return {
        "recipe": recipe.name,
        "policy": recipe.policy.name,
        "seed": recipe.seed,
        "env": changed_options(recipe.env),
        "keep": recipe.record.keep,
        f"sha256 of {', '.join(_LEARNING)}": hashlib.sha256(learning.encode()).hexdigest(),
    }
