"""`embodied resume RUN`: go on with a run from its latest checkpoint, to the bit as if it had not stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb


def add_parser(subparsers: Any, example: str = "embodied resume runs/maniskill_pushcube_ppo_mlp/latest") -> None:
    """Declare the verb."""
    parser = add_verb(subparsers, "resume", "go on with a stopped run from its latest checkpoint", [example])
    parser.add_argument("run", type=Path, help="a run folder")


def run(args: argparse.Namespace) -> int:
    """Load the run's own recipe and plan, restore the checkpoint, train on."""
    from embodied.commands.workloads import go_on

    return go_on(args.run)
