"""A recipe's plan: named placements, a plan file, or the planner's answer for a profile of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from embodied.errors import ConfigurationError, RefusedInput
from embodied.interaction import profiling
from embodied.interaction.cost_profile import build_profile
from embodied.interaction.flow import embodied_flow
from embodied.interaction.placement import check_env_workers, make_plan
from embodied.interaction.recipe import Recipe, check
from embodied.runs.folder import RunFolder
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner import cache, explain, picture
from embodied.scheduler.planner.choose import Comparison, compare, to_plan
from embodied.scheduler.planner.follow import Following
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.measured import measured_execution
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile, load_profile
from embodied.scheduler.planner.simulation import simulate

AUTO = "auto"


def check_plan(recipe: Recipe) -> None:
    """Refuse a placement or a plan file that cannot be, before anything is made or measured."""
    if recipe.cluster.plan == AUTO:
        _check_auto(recipe)
    else:
        find_plan(recipe, print)


def _check_auto(recipe: Recipe) -> None:
    if recipe.cluster.address is not None:
        raise ConfigurationError(
            f"cluster.plan=auto plans for this machine, not for the Ray cluster at {recipe.cluster.address}; plan for "
            "its size with `embodied plan`, and give the file: cluster.plan=FILE"
        )


def find_plan(recipe: Recipe, say: Callable[[str], None]) -> tuple[Plan, FlowProfile | None]:
    """The plan that `cluster` asks for, and the recipe's profile where one is known.

    `cluster.plan=auto` measures the recipe first if no profile of it on this machine is kept. say: told what happens.
    """
    wanted = recipe.cluster.plan
    if wanted is None:
        return make_plan(recipe, embodied_flow(recipe, Path())), None
    if wanted == AUTO:
        _check_auto(recipe)
        profile = kept_profile(recipe)
        if profile is None:
            say("no profile of this recipe on this machine is kept; measuring its stages ...")
            profile = refresh_profile(recipe, say)
        plan = chosen_plan(recipe, compare(profile))
    else:
        profile, plan = kept_profile(recipe), Plan.load(Path(wanted))
    planned(recipe, plan)
    return plan, profile


def describe_plan(recipe: Recipe) -> str:
    """What `find_plan` would come to, in words, without measuring anything."""
    if recipe.cluster.plan == AUTO and kept_profile(recipe) is None:
        return (
            "plan: found when the run starts, which first measures the stages (no profile of this recipe on this "
            f"machine is kept); do that now: embodied profile {recipe.name}"
        )
    plan, profile = find_plan(recipe, print)
    lines = [f"plan: {plan.launcher} launcher, {plan.why}"]
    for name, stage in plan.stages.items():
        processes = "" if stage.processes is None else f", simulator processes {stage.processes}"
        lines.append(f"  {name}: {', '.join(stage.devices)}; slots {stage.slots}{processes}")
    if profile is not None:
        problem = Problem(profile)
        try:
            seconds = simulate(problem, schedule_of(problem, plan)).seconds
            lines.append(f"predicted: {explain.spoken(seconds)} an iteration")
        except ConfigurationError as error:
            lines.append(f"not predicted: {error}")
    return "\n".join(lines)


def planned(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe with the numbers of slots and simulator processes that its plan says, checked again.

    Raises ConfigurationError where the plan does not suit the recipe, with what would."""
    plan.check(embodied_flow(recipe, Path()))
    if plan.launcher == "inline" and recipe.cluster.address is not None:
        raise ConfigurationError(
            "the plan's launcher is inline, which runs in this process; it cannot use cluster.address"
        )
    slots = {stage.slots for stage in (plan.stages["env"], plan.stages["policy"])}
    if len(slots) > 1:
        raise ConfigurationError(
            f"the plan gives env and policy different numbers of slots ({sorted(slots)}); they serve the same ones"
        )
    placed = plan.stages["env"]
    processes = recipe.env.processes if placed.processes is None else placed.processes
    found = dataclasses.replace(recipe, env=dataclasses.replace(recipe.env, slots=placed.slots, processes=processes))
    check(found)
    check_env_workers(found, len(placed.devices))
    return found


def kept_profile(recipe: Recipe) -> FlowProfile | None:
    """The profile of this recipe, hardware and code, if it was measured before."""
    return cache.read_cached(profiling.profile_path(recipe))


def refresh_profile(recipe: Recipe, say: Callable[[str], None]) -> FlowProfile:
    """Measure the recipe and keep its profile."""
    profile = build_profile(recipe, profiling.measure(recipe, say))
    path = profiling.profile_path(recipe)
    cache.write_cached(profile, path)
    say(f"profile: {path}")
    return profile


def chosen_plan(recipe: Recipe, comparison: Comparison) -> Plan:
    """The best plan with the reason why, on the device that the recipe names, if it names one."""
    plan = to_plan(comparison.problem, comparison.best, explain.why(comparison))
    device = recipe.cluster.device
    if not device.startswith("cuda:"):
        return plan
    stages = {
        name: dataclasses.replace(stage, devices=tuple(device if d == "cuda:0" else d for d in stage.devices))
        for name, stage in plan.stages.items()
    }
    return dataclasses.replace(plan, stages=stages)


def follow(
    recipe: Recipe, folder: RunFolder, plan: Plan, profile: FlowProfile | None, say: Callable[[str], None]
) -> Following | None:
    """Keep plan and profile in the run's folder; what follows the plan, if its time can be predicted.

    Acting that runs ahead of learning (`algorithm.max_staleness`) is not predicted, so such a run is not followed.
    say: told why a plan is carried out but not followed."""
    folder.plan.write_text(plan.to_json())
    if profile is None or recipe.algorithm.max_staleness > 0:
        return None
    try:
        following = Following(profile, plan)
    except ConfigurationError as error:
        say(f"the plan is carried out, but not followed: {error}")
        return None
    folder.profile.write_text(profile.to_json())
    return following


def load_plan(folder: RunFolder) -> tuple[Plan, FlowProfile | None]:
    """The plan that a run went by, and the profile it was followed with."""
    profile = load_profile(folder.profile) if folder.profile.is_file() else None
    return Plan.load(folder.plan), profile


def keep_profile(folder: RunFolder, following: Following) -> None:
    """Write the profile as measurements have changed it, for whoever resumes the run or looks at it."""
    folder.profile.write_text(following.profile.to_json())


def beside_prediction(folder: RunFolder, following: Following) -> dict[str, float]:
    """Draw the run's median iteration beside the predicted one; returns the seconds of both, for result.json. Nothing
    for a run that was too short to have one."""
    last = following.problem.units[-1].stages[-1]
    try:
        measured = measured_execution(folder.trace, following.predicted, last)
    except RefusedInput:
        return {}
    picture.draw({"predicted": following.predicted, "measured": measured}, folder.plan_picture)
    return {"predicted_s": following.predicted.seconds, "measured_s": measured.seconds}
