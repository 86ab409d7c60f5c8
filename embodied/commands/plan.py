"""`embodied plan RECIPE`: where, when and in which pieces a recipe's stages will run, found from a cost profile.

Works on profiles alone; no hardware is touched. For a run's folder: what was predicted beside what was measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, ConfigurationError, suggest

if TYPE_CHECKING:
    from embodied.scheduler.planner.profile import FlowProfile
    from embodied.scheduler.planner.simulation import Execution

SIZES = ("cluster.gpus", "cluster.nodes")


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "plan",
        "find and explain where and when a recipe's stages run",
        [
            "embodied plan gym_cartpole_ppo_mlp                         # from the profile of this machine",
            "embodied plan paper/maniskill_openvla cluster.gpus=32 --compare --picture plan.svg",
            "embodied plan maniskill_ppo_openvla cluster.gpus=64 cluster.nodes=8 --profile my_profile.json",
            "embodied plan paper/grpo_qwen3_30b_a3b cluster.gpus=128 --output plan.json",
            "embodied plan gym_cartpole_ppo_mlp plan=plan.json          # what an edited plan will take",
            "embodied plan runs/gym_cartpole_ppo_mlp/latest --picture measured.svg",
            "embodied plan --profiles                                   # the profiles that ship",
        ],
    )
    parser.add_argument("recipe", nargs="?", help="recipe, the name of a profile that ships, or a run's folder")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="cluster.gpus=N, cluster.nodes=N, keys of the recipe"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="cost profile (JSON); default: the one measured here, or shipped"
    )
    parser.add_argument("--profiles", action="store_true", help="list the profiles that ship and stop")
    parser.add_argument("--compare", action="store_true", help="also print the best shared, split and mixed plans")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the execution, predicted and measured (.svg, .png, .pdf)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the plan, to be edited and given back")


def run(args: argparse.Namespace) -> int:
    """Read the profile, search, explain."""
    from embodied.scheduler.planner import picture
    from embodied.scheduler.planner.profile import load_profile

    if args.profiles:
        for name, path in sorted(shipped_profiles().items()):
            profile = load_profile(path)
            print(f"{name:<28}{profile.recipe or profile.flow}, {profile.hardware}")
        return EXIT_DONE
    if args.recipe is None:
        raise ConfigurationError("name a recipe or a profile; `embodied plan --profiles` lists the profiles that ship")
    for target in filter(None, (args.picture, args.output)):
        if not target.absolute().parent.is_dir():
            raise ConfigurationError(
                f"{target} cannot be written: the folder {target.absolute().parent} does not exist"
            )
    if args.picture and args.picture.suffix not in picture.FORMATS:
        raise ConfigurationError(
            f"{args.picture} cannot be drawn: its name must end in one of {', '.join(picture.FORMATS)}"
        )
    folder = Path(args.recipe)
    if (folder / "plan.json").is_file():
        _refuse(args.overrides)
        if args.output or args.compare or args.profile:
            raise ConfigurationError(
                f"{folder} is a run, whose plan is compared with what was measured; leave --output, --compare and "
                "--profile out"
            )
        drawn = after_a_run(folder)
    else:
        gpus, nodes, given, rest = divided(args.overrides)
        if args.profile:
            _refuse(rest)
            profile = load_profile(args.profile)
        else:
            profile = find_profile(args.recipe, rest)
        if given is not None and (args.output or args.compare):
            raise ConfigurationError(
                f"plan={given} is predicted as it is; leave --output and --compare out, which are of a search"
            )
        drawn = find_plan(profile, gpus, nodes, args) if given is None else predict_plan(profile, gpus, nodes, given)
    if args.picture:
        picture.draw(drawn, args.picture)
        print(f"picture    {relative(args.picture)}")
    return EXIT_DONE


def find_plan(
    profile: FlowProfile, gpus: int | None, nodes: int | None, args: argparse.Namespace
) -> dict[str, Execution]:
    """Search and explain; returns what is to be drawn."""
    from embodied.scheduler.planner import explain
    from embodied.scheduler.planner.choose import Choice, compare, to_plan

    comparison = compare(profile, profile.cluster.resized(gpus, nodes))
    print(explain.report(comparison, alternatives=args.compare))
    if args.output:
        plan = to_plan(comparison.problem, comparison.best, explain.why(comparison))
        args.output.write_text(plan.to_json() + "\n")
        print(f"plan       {relative(args.output)}")
    drawn = {"predicted": comparison.best.execution}
    if args.compare:
        for style, choice in comparison.styles.items():
            if isinstance(choice, Choice) and choice.schedule != comparison.best.schedule:
                drawn[f"best {style.value}, predicted"] = choice.execution
    return drawn


def predict_plan(profile: FlowProfile, gpus: int | None, nodes: int | None, given: Path) -> dict[str, Execution]:
    """What a plan of a file will take, beside the best one."""
    from embodied.scheduler.plan import Plan
    from embodied.scheduler.planner import explain
    from embodied.scheduler.planner.bounds import estimate
    from embodied.scheduler.planner.choose import Choice, compare
    from embodied.scheduler.planner.from_plan import schedule_of
    from embodied.scheduler.planner.simulation import simulate

    plan = Plan.load(given)
    comparison = compare(profile, profile.cluster.resized(gpus, nodes))
    problem, best = comparison.problem, comparison.best
    schedule = schedule_of(problem, plan)
    choice = Choice(schedule, estimate(problem, schedule).latency, simulate(problem, schedule))
    print(explain.given_report(problem, choice, best, str(given)))
    return {f"plan of {given.name}, predicted": choice.execution, "best, predicted": best.execution}


def after_a_run(folder: Path) -> dict[str, Execution]:
    """Predicted and measured iteration of a run that followed a plan. Raises ConfigurationError for another run."""
    from embodied.runs.folder import RunFolder
    from embodied.scheduler.plan import Plan
    from embodied.scheduler.planner import explain
    from embodied.scheduler.planner.from_plan import schedule_of
    from embodied.scheduler.planner.measured import measured_execution
    from embodied.scheduler.planner.problem import Problem
    from embodied.scheduler.planner.profile import load_profile
    from embodied.scheduler.planner.simulation import simulate

    paths = RunFolder(folder)
    for path in (paths.profile, paths.trace):
        if not path.is_file():
            raise ConfigurationError(
                f"{folder} has no {path.name}: only a run with plan=auto, or with a plan of a recipe that was "
                "profiled, can be compared, once it has ended"
            )
    problem = Problem(load_profile(paths.profile))
    predicted = simulate(problem, schedule_of(problem, Plan.load(paths.plan)))
    measured = measured_execution(paths.trace, predicted, problem.units[-1].stages[-1])
    print(
        f"iteration  {explain.spoken(predicted.seconds)} predicted, {explain.spoken(measured.seconds)} measured "
        f"({predicted.seconds / measured.seconds - 1:+.0%} off)"
    )
    return {"predicted": predicted, "measured": measured}


def shipped_profiles() -> dict[str, Path]:
    """The profile files that come with the project, by name."""
    import configs

    folder = Path(configs.__file__).parent / "profiles"
    return {str(path.relative_to(folder).with_suffix("")): path for path in folder.rglob("*.json")}


def find_profile(recipe: str, overrides: list[str]) -> FlowProfile:
    """The profile that ships under that name, the one measured on this machine for that recipe with these overrides, or
    the only one that ships for it. Raises ConfigurationError, listing them all."""
    from embodied.scheduler.planner.profile import load_profile

    shipped = shipped_profiles()
    if recipe in shipped:
        _refuse(overrides)
        return load_profile(shipped[recipe])
    kept, known = _kept_profile(recipe, overrides)
    if kept is not None:
        return kept
    made_for = [profile for profile in map(load_profile, shipped.values()) if profile.recipe == recipe]
    if len(made_for) == 1:
        _refuse(overrides)
        return made_for[0]
    measure = f"measure it here: {known} profile {recipe}; or " if known else ""
    raise ConfigurationError(
        f"no profile for the recipe {recipe!r} is there; {measure}give one with --profile FILE. "
        + suggest(recipe, sorted(shipped), noun="profiles")
    )


def _kept_profile(name: str, overrides: list[str]) -> tuple[FlowProfile | None, str | None]:
    """The profile measured on this machine, if there is one, and the command that measures, if the name is a recipe."""
    from embodied.commands.workloads import recipe_workload
    from embodied.config.compose import find_recipe
    from embodied.training.planning import kept_profile

    try:
        find_recipe(name)
    except ConfigurationError:
        return None, None  # the name of a profile's recipe need not be one that ships
    workload = recipe_workload(name, overrides)
    return kept_profile(workload), workload.program


def divided(overrides: list[str]) -> tuple[int | None, int | None, Path | None, list[str]]:
    """(accelerators, nodes, plan file, the rest) from `cluster.gpus=N`, `cluster.nodes=N` and `plan=FILE`."""
    found: dict[str, int] = {}
    given: Path | None = None
    rest = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key in ("plan", "cluster.plan"):
            given = Path(value)
        elif key in SIZES:
            if not value.isdecimal() or int(value) < 1:
                raise ConfigurationError(f"{key} is {value!r}: it should be a whole number of at least 1, e.g. {key}=8")
            found[key] = int(value)
        else:
            rest.append(text)
    return found.get("cluster.gpus"), found.get("cluster.nodes"), given, rest


def _refuse(overrides: list[str]) -> None:
    """A profile that ships is as it is."""
    for text in overrides:
        hint = suggest(text.partition("=")[0], SIZES, noun="keys")
        raise ConfigurationError(f"override {text!r} does not change a plan made from a profile. {hint}")
