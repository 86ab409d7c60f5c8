"""`embodied profile RECIPE`: what the recipe's stages cost on this machine, measured by short real runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, ConfigurationError

EXAMPLES = [
    "embodied profile gym_cartpole_ppo_mlp",
    "embodied profile maniskill_pushcube_ppo_mlp env.num_envs=128",
    "embodied profile math_grpo_tiny                             # a language model's stages",
    "embodied profile maniskill_pushcube_ppo_mlp --refresh       # measure again",
    "embodied profile maniskill_pushcube_ppo_mlp --output my_profile.json",
]


def add_parser(subparsers: Any, examples: list[str] = EXAMPLES) -> None:
    """Declare the verb."""
    parser = add_verb(subparsers, "profile", "measure what a recipe's stages cost on this machine", examples)
    parser.add_argument("recipe", help="a name from `embodied recipes`, or a .yaml file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change any key of the recipe")
    parser.add_argument("--refresh", action="store_true", help="measure also when a profile is kept")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the profile there, to be shared")


def run(args: argparse.Namespace) -> int:
    """Take the kept profile or measure, and print it."""
    from embodied.commands.workloads import recipe_workload
    from embodied.scheduler.planner import explain
    from embodied.training import planning

    if args.output is not None and not args.output.absolute().parent.is_dir():
        raise ConfigurationError(
            f"{args.output} cannot be written: the folder {args.output.absolute().parent} does not exist"
        )
    workload = recipe_workload(args.recipe, args.overrides)
    profile = None if args.refresh else planning.kept_profile(workload)
    if profile is None:
        profile = planning.refresh_profile(workload, print)
    else:
        print(f"kept since it was measured; --refresh measures again\nprofile: {planning.profile_path(workload)}")
    print(f"\n{workload.recipe.name} on {profile.hardware}")
    print(explain.table(explain.cost_rows(profile), explain.COST_HEADINGS))
    if args.output is not None:
        args.output.write_text(profile.to_json())
        print(f"profile    {relative(args.output)}")
    print("next:")
    print(f"  {workload.program} plan {args.recipe} --output plan.json")
    print(f"  {workload.program} train {args.recipe} plan=auto")
    return EXIT_DONE
