"""`reasoning profile RECIPE`: what the recipe's stages cost on this machine, measured by short real runs."""

from __future__ import annotations

from typing import Any

from embodied.commands import profile

run = profile.run


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    profile.add_parser(
        subparsers,
        [
            "reasoning profile math_grpo_tiny",
            "reasoning profile math_grpo_tiny rollout.slots=128",
            "reasoning profile math_ppo_tiny --refresh                   # measure again",
        ],
    )
