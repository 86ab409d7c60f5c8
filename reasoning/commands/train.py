"""`reasoning train RECIPE [key=value ...]`: train a language model and leave a run folder with curve and report."""

from __future__ import annotations

import argparse
from typing import Any

from embodied.commands.common import add_verb
from embodied.commands.train import add_arguments


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "train",
        "train a language model by a recipe",
        [
            "reasoning train math_grpo_tiny",
            "reasoning train math_grpo_tiny seed=3 algorithm.advantage=rloo",
            "reasoning train math_ppo_tiny learner.lr=1e-4 goal.minutes=10",
            "reasoning train math_grpo_qwen2_5_1_5b problems.files=[train.jsonl] --dry-run",
            "reasoning train math_grpo_tiny plan=auto                    # measure the stages, then plan and follow",
            "reasoning train ./my_recipe.yaml reward.terms='[{kind: my_package.rewards:score}]'",
        ],
    )
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compose, check, train, report."""
    from embodied.commands.workloads import recipe_workload, start

    return start(recipe_workload(args.recipe, args.overrides, only="reasoning"), dry_run=args.dry_run)
