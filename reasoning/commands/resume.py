"""`reasoning resume RUN`: go on with a run from its latest checkpoint, to the bit as if it had not stopped."""

from __future__ import annotations

from typing import Any

from embodied.commands import resume

run = resume.run


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    resume.add_parser(subparsers, "reasoning resume runs/math_grpo_tiny/latest")
