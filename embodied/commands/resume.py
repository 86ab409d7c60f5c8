"""`embodied resume RUN`: go on with a run from its latest checkpoint, to the bit as if it had not stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, of_reasoning_run
from embodied.errors import RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "resume",
        "go on with a stopped run from its latest checkpoint",
        ["embodied resume runs/maniskill_pushcube_ppo_mlp/latest"],
    )
    parser.add_argument("run", type=Path, help="a run folder")


def run(args: argparse.Namespace) -> int:
    """Load the run's own recipe and plan, restore the checkpoint, train on."""
    from embodied.commands.train import carry_out
    from embodied.interaction.recipe import load_run_recipe
    from embodied.runs.checkpoint import CheckpointStore
    from embodied.runs.folder import RunFolder

    if of_reasoning_run(args.run):
        from reasoning.commands import resume

        return resume.run(args)
    folder = RunFolder(args.run.resolve())
    recipe = load_run_recipe(folder.path)
    if CheckpointStore(folder.checkpoints, keep=1).latest() is None:
        raise RefusedInput(
            f"{args.run} has no complete checkpoint to go on from; start again: embodied train {recipe.name}"
        )
    if not folder.plan.is_file():
        raise RefusedInput(f"{args.run} has no plan.json; without it the run cannot go on as it was")
    try:
        command = folder.read_result().get("command")
    except json.JSONDecodeError:
        command = None  # result.json only tells how the run ended before
    return carry_out(recipe, folder, command=command or f"embodied train {recipe.name}", resume=True)
