"""`embodied train RECIPE [key=value ...]`: train a policy and leave a run folder with curve, videos and report."""

from __future__ import annotations

import argparse
from typing import Any

from embodied.commands.common import add_verb


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "train",
        "train a policy by a recipe",
        [
            "embodied train gym_cartpole_ppo_mlp",
            "embodied train maniskill_pushcube_ppo_mlp seed=3",
            "embodied train maniskill_pickcube_ppo_mlp env.num_envs=128 goal.env_steps=2000000",
            "embodied train math_grpo_tiny                              # a language model, as `reasoning train`",
            "embodied train ./my_recipe.yaml learner.lr=1e-4",
            "embodied train maniskill_pushcube_ppo_mlp --dry-run",
            "embodied train maniskill_pushcube_ppo_mlp plan=auto        # measure the stages, then plan and follow",
            "embodied train maniskill_pushcube_ppo_mlp plan=plan.json   # of `embodied plan --output`, as edited",
        ],
    )
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Recipe, overrides and what else every command that trains takes."""
    parser.add_argument("recipe", help="a name from `embodied recipes`, or a .yaml file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change any key of the recipe")
    parser.add_argument("--dry-run", action="store_true", help="print the composed, checked recipe and stop")


def run(args: argparse.Namespace) -> int:
    """Compose, check, train, film, report."""
    from embodied.commands.workloads import recipe_workload, start

    return start(recipe_workload(args.recipe, args.overrides), dry_run=args.dry_run)
