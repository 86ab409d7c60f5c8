"""`embodied plan RECIPE`: where, when and in which pieces a recipe's stages will run, found from a cost profile.

Works on profile files alone; no hardware is touched.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, ConfigurationError, suggest


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "plan",
        "find and explain where and when a recipe's stages run",
        [
            "embodied plan paper/maniskill_openvla",
            "embodied plan paper/maniskill_openvla cluster.gpus=32 --compare --picture plan.svg",
            "embodied plan maniskill_ppo_openvla cluster.gpus=64 cluster.nodes=8 --profile my_profile.json",
            "embodied plan paper/grpo_qwen3_30b_a3b cluster.gpus=128 --output plan.json",
            "embodied plan --profiles                                   # the profiles that ship",
        ],
    )
    parser.add_argument("recipe", nargs="?", help="recipe, or the name of a profile that ships")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="cluster.gpus=N, cluster.nodes=N")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="cost profile (JSON); default: the one that ships")
    parser.add_argument("--profiles", action="store_true", help="list the profiles that ship and stop")
    parser.add_argument("--compare", action="store_true", help="also print the best shared, split and mixed plans")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the predicted execution (.svg, .png, .pdf)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the plan, to be edited and given back")


def run(args: argparse.Namespace) -> int:
    """Read the profile, search, explain."""
    from embodied.scheduler.planner import explain, picture
    from embodied.scheduler.planner.choose import Choice, compare, to_plan
    from embodied.scheduler.planner.profile import load_profile

    if args.profiles:
        for name, path in sorted(shipped_profiles().items()):
            profile = load_profile(path)
            print(f"{name:<28}{profile.recipe or profile.flow}, {profile.hardware}")
        return EXIT_DONE
    if args.recipe is None:
        raise ConfigurationError("name a recipe or a profile; `embodied plan --profiles` lists the profiles that ship")
    size = cluster_size(args.overrides)
    for target in filter(None, (args.picture, args.output)):
        if not target.absolute().parent.is_dir():
            raise ConfigurationError(
                f"{target} cannot be written: the folder {target.absolute().parent} does not exist"
            )
    if args.picture and args.picture.suffix not in picture.FORMATS:
        raise ConfigurationError(
            f"{args.picture} cannot be drawn: its name must end in one of {', '.join(picture.FORMATS)}"
        )
    profile = load_profile(args.profile or find_profile(args.recipe))
    comparison = compare(profile, profile.cluster.resized(*size))
    print(explain.report(comparison, alternatives=args.compare))
    if args.output:
        plan = to_plan(comparison.problem, comparison.best, explain.why(comparison))
        args.output.write_text(plan.to_json() + "\n")
        print(f"plan       {relative(args.output)}")
    if args.picture:
        drawn = {"predicted": comparison.best.execution}
        if args.compare:
            for style, choice in comparison.styles.items():
                if isinstance(choice, Choice) and choice.schedule != comparison.best.schedule:
                    drawn[f"best {style.value}, predicted"] = choice.execution
        picture.draw(drawn, args.picture)
        print(f"picture    {relative(args.picture)}")
    return EXIT_DONE


def shipped_profiles() -> dict[str, Path]:
    """The profile files that come with the project, by name."""
    import configs

    folder = Path(configs.__file__).parent / "profiles"
    return {str(path.relative_to(folder).with_suffix("")): path for path in folder.rglob("*.json")}


def find_profile(recipe: str) -> Path:
    """The profile of that name, or the only one made for that recipe. Raises ConfigurationError, listing them all."""
    from embodied.scheduler.planner.profile import load_profile

    shipped = shipped_profiles()
    if recipe in shipped:
        return shipped[recipe]
    made_for = [path for path in shipped.values() if load_profile(path).recipe == recipe]
    if len(made_for) == 1:
        return made_for[0]
    raise ConfigurationError(
        f"no profile for the recipe {recipe!r} ships; give one with --profile FILE. "
        + suggest(recipe, sorted(shipped), noun="profiles")
    )


def cluster_size(overrides: list[str]) -> tuple[int | None, int | None]:
    """(accelerators, nodes) from `cluster.gpus=N` and `cluster.nodes=N`; ConfigurationError for anything else."""
    found: dict[str, int] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in ("cluster.gpus", "cluster.nodes"):
            hint = suggest(key, ("cluster.gpus", "cluster.nodes"), noun="keys")
            raise ConfigurationError(f"override {text!r} does not change a plan made from a profile. {hint}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigurationError(f"{key} is {value!r}: it should be a whole number of at least 1, e.g. {key}=8")
        found[key] = int(value)
    return found.get("cluster.gpus"), found.get("cluster.nodes")
