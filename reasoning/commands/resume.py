"""`reasoning resume RUN`: go on with a run from its latest checkpoint, to the bit as if it had not stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb
from embodied.errors import RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "resume",
        "go on with a stopped run from its latest checkpoint",
        ["reasoning resume runs/math_grpo_tiny/latest"],
    )
    parser.add_argument("run", type=Path, help="a run folder")


def run(args: argparse.Namespace) -> int:
    """Load the run's own recipe and plan, restore the checkpoint, train on."""
    from embodied.runs.checkpoint import CheckpointStore
    from embodied.runs.folder import RunFolder
    from reasoning.commands.train import carry_out
    from reasoning.training.given import check
    from reasoning.training.recipe import load_run_recipe

    folder = RunFolder(args.run.resolve())
    recipe = load_run_recipe(folder.path)
    check(folder.path)
    if CheckpointStore(folder.checkpoints, keep=1).latest() is None:
        raise RefusedInput(
            f"{args.run} has no complete checkpoint to go on from; start again: reasoning train {recipe.name}"
        )
    if not folder.plan.is_file():
        raise RefusedInput(f"{args.run} has no plan.json; without it the run cannot go on as it was")
    try:
        command = folder.read_result().get("command")
    except json.JSONDecodeError:
        command = None  # result.json only tells how the run ended before
    return carry_out(recipe, folder, command=command or f"reasoning train {recipe.name}", resume=True)
