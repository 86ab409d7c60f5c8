"""`reasoning plan RECIPE`: where, when and in which pieces a recipe's stages will run, found from a cost profile.

The planner knows no workload, so this is `embodied plan` with examples of this side.
"""

from __future__ import annotations

from typing import Any

from embodied.commands import plan

run = plan.run


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    plan.add_parser(subparsers)
    subparsers.choices["plan"].epilog = (
        "examples:\n"
        "  reasoning plan math_grpo_tiny                              # from the profile of this machine\n"
        "  reasoning plan math_grpo_qwen2_5_7b cluster.gpus=64\n"
        "  reasoning plan math_ppo_qwen2_5_1_5b cluster.gpus=32 --compare\n"
        "  reasoning plan --profiles"
    )
