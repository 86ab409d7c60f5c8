"""The embodied flow's placements, by name or by plan, checked against what a recipe can be divided into."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embodied.errors import ConfigurationError
from embodied.interaction.flow import embodied_flow
from embodied.interaction.recipe import Recipe, check
from embodied.scheduler.flow import Flow
from embodied.scheduler.plan import Plan
from embodied.training.placement import named_plan
from embodied.training.planning import check_suits


def make_plan(recipe: Recipe, flow: Flow) -> Plan:
    """The plan that the recipe's `cluster` names: policies have the devices that act. Raises ConfigurationError when it
    cannot be."""
    plan = named_plan(flow, recipe.cluster, recipe.device(), acting="policy", slots=recipe.env.slots)
    _check_workers(recipe, plan)
    return plan


def planned(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe with the numbers of slots and simulator processes that its plan says, checked again.

    Raises ConfigurationError where the plan does not suit the recipe, with what would."""
    check_suits(plan, embodied_flow(recipe, Path()), recipe.cluster)
    slots = {stage.slots for stage in (plan.stages["env"], plan.stages["policy"])}
    if len(slots) > 1:
        raise ConfigurationError(
            f"the plan gives env and policy different numbers of slots ({sorted(slots)}); they serve the same ones"
        )
    placed = plan.stages["env"]
    processes = recipe.env.processes if placed.processes is None else placed.processes
    found = dataclasses.replace(recipe, env=dataclasses.replace(recipe.env, slots=placed.slots, processes=processes))
    check(found)
    _check_workers(found, plan)
    return found


def _check_workers(recipe: Recipe, plan: Plan) -> None:
    """Every environment worker needs a whole group in each of its slots, every learner one to learn from. Raises
    ConfigurationError."""
    size = recipe.algorithm.group_size
    learners, groups = len(plan.stages["learner"].devices), recipe.env.num_envs // size
    unit = recipe.env.slots * size
    if learners > groups:
        raise ConfigurationError(
            f"{learners} learner workers share the {groups} group(s) of a rollout (env.num_envs={recipe.env.num_envs} "
            f"/ algorithm.group_size={size}): at most {groups} can have one. "
            f"Use cluster.workers.learner={groups} or env.num_envs={-(-learners // recipe.env.slots) * unit}."
        )
    workers = len(plan.stages["env"].devices)
    most = recipe.env.num_envs // unit
    if workers > most:
        raise ConfigurationError(
            f"{workers} environment workers share env.num_envs={recipe.env.num_envs} environments in units of "
            f"{unit} (env.slots x algorithm.group_size): at most {most} can have one. "
            f"Use cluster.workers.env={most} or env.num_envs={workers * unit}."
        )
