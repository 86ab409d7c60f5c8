"""A recipe's plan: named placements, a plan file, or the planner's answer for a profile of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from embodied.errors import ConfigurationError, RefusedInput
from embodied.runs.folder import RunFolder
from embodied.scheduler.flow import Flow
from embodied.scheduler.options import ClusterConfig
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner import cache, explain, picture
from embodied.scheduler.planner.choose import Comparison, compare, on_device, to_plan
from embodied.scheduler.planner.follow import Following
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.measured import measured_execution
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile, load_profile
from embodied.scheduler.planner.simulation import simulate
from embodied.training.workload import Workload

AUTO = "auto"


def check_plan(workload: Workload) -> None:
    """Refuse a placement or a plan file that cannot be, before anything is made or measured."""
    if workload.recipe.cluster.plan == AUTO:
        _check_auto(workload)
    else:
        find_plan(workload, print)


def _check_auto(workload: Workload) -> None:
    address = workload.recipe.cluster.address
    if address is not None:
        raise ConfigurationError(
            f"cluster.plan=auto plans for this machine, not for the Ray cluster at {address}; plan for "
            "its size with `embodied plan`, and give the file: cluster.plan=FILE"
        )


def find_plan(workload: Workload, say: Callable[[str], None]) -> tuple[Plan, FlowProfile | None]:
    """The plan that `cluster` asks for, and the recipe's profile where one is known.

    `cluster.plan=auto` measures the recipe first if no profile of it on this machine is kept. say: told what happens.
    """
    wanted = workload.recipe.cluster.plan
    if wanted is None:
        return workload.placed(), None
    if wanted == AUTO:
        _check_auto(workload)
        profile = kept_profile(workload)
        if profile is None:
            say("no profile of this recipe on this machine is kept; measuring its stages ...")
            profile = refresh_profile(workload, say)
        plan = chosen_plan(compare(profile), workload.recipe.cluster.device)
    else:
        profile, plan = kept_profile(workload), Plan.load(Path(wanted))
        launcher = workload.recipe.cluster.launcher
        if launcher not in ("auto", plan.launcher):
            raise ConfigurationError(
                f"the launcher of the plan {wanted} is {plan.launcher}, and cluster.launcher={launcher}; leave "
                "cluster.launcher out, or change it in the file"
            )
    workload.flow(plan)
    return plan, profile


def check_suits(plan: Plan, flow: Flow, cluster: ClusterConfig) -> None:
    """Raise ConfigurationError where a plan is not for this flow, or not for this cluster."""
    plan.check(flow)
    if plan.launcher == "inline" and cluster.address is not None:
        raise ConfigurationError(
            "the plan's launcher is inline, which runs in this process; it cannot use cluster.address"
        )


def describe_plan(workload: Workload) -> str:
    """What `find_plan` would come to, in words, without measuring anything."""
    recipe = workload.recipe
    if recipe.cluster.plan == AUTO and kept_profile(workload) is None:
        return (
            "plan: found when the run starts, which first measures the stages (no profile of this recipe on this "
            f"machine is kept); do that now: {workload.program} profile {recipe.name}"
        )
    plan, profile = find_plan(workload, print)
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


def profile_path(workload: Workload) -> Path:
    """Where the profile of this recipe on this machine is kept."""
    return cache.cached_profile_path(workload.recipe.name, workload.costs(), workload.packages)


def kept_profile(workload: Workload) -> FlowProfile | None:
    """The profile of this recipe, hardware and code, if it was measured before."""
    return cache.read_cached(profile_path(workload))


def refresh_profile(workload: Workload, say: Callable[[str], None]) -> FlowProfile:
    """Measure the recipe and keep its profile."""
    profile = dataclasses.replace(
        workload.measure(say),
        recipe=workload.recipe.name,
        hardware=cache.hardware(),
        code=cache.code_version(workload.packages),
        source="measured by short real runs of the recipe",
    )
    path = profile_path(workload)
    cache.write_cached(profile, path)
    say(f"profile: {path}")
    return profile


def chosen_plan(comparison: Comparison, device: str) -> Plan:
    """The best plan with the reason why, on the device that `cluster.device` names, if it names one."""
    return on_device(to_plan(comparison.problem, comparison.best, explain.why(comparison)), device)


def follow(
    workload: Workload, folder: RunFolder, plan: Plan, profile: FlowProfile | None, say: Callable[[str], None]
) -> Following | None:
    """Keep plan and profile in the run's folder; what follows the plan, if its time can be predicted.

    Acting that runs ahead of learning is not predicted, so such a run is not followed.
    say: told why a plan is carried out but not followed."""
    folder.write_plan(plan.to_json())
    if profile is None or workload.ahead > 0:
        return None
    try:
        following = Following(profile, plan, device=workload.recipe.cluster.device)
    except ConfigurationError as error:
        say(f"the plan is carried out, but not followed: {error}")
        return None
    keep_profile(folder, following)
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
