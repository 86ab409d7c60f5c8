"""`reasoning train RECIPE [key=value ...]`: train a language model and leave a run folder with curve and report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, command_line, relative
from embodied.errors import EXIT_DONE, ConfigurationError


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
            "reasoning train ./my_recipe.yaml reward.terms='[{kind: my_package.rewards:score}]'",
        ],
    )
    parser.add_argument("recipe", help="a name from `embodied recipes`, or a .yaml file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change any key of the recipe")
    parser.add_argument("--dry-run", action="store_true", help="print the composed, checked recipe and stop")


def run(args: argparse.Namespace) -> int:
    """Compose, check, train, report."""
    from embodied.config.compose import compose_recipe, find_recipe
    from reasoning.training.recipe import WORKLOAD

    name = find_recipe(args.recipe).stem
    values = compose_recipe(args.recipe, args.overrides)
    if values.get("workload") != WORKLOAD:
        raise ConfigurationError(f"{name} is a recipe for robot policies; train it with: embodied train {name}")
    return start(name, values, dry_run=args.dry_run)


def start(name: str, values: dict[str, Any], *, dry_run: bool) -> int:
    """Check a composed recipe and carry it out, or print it."""
    import yaml

    from embodied.runs.folder import create_run_folder
    from reasoning.training.placement import check_placement
    from reasoning.training.recipe import parse_recipe

    recipe = parse_recipe(name, values)
    check_placement(recipe)
    if dry_run:
        print(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        return EXIT_DONE
    exact = Path(recipe.run.folder) if recipe.run.folder else None
    folder = create_run_folder(Path(recipe.run.root), name, exact)
    return carry_out(recipe, folder, command=command_line(), resume=False)


def carry_out(recipe: Any, folder: Any, *, command: str, resume: bool) -> int:
    """Train, then report; says at the end where everything is and what to do next."""
    from embodied.commands import report
    from embodied.runs.checkpoint import CheckpointStore
    from reasoning.training.train import train

    try:
        outcome = train(recipe, folder, command=command, resume=resume)
    except KeyboardInterrupt:
        if CheckpointStore(folder.checkpoints, keep=1).latest() is not None:
            print(f"stopped; go on with: reasoning resume {relative(folder.path)}")
        else:
            print(f"stopped before the first checkpoint; start again with: {command}")
        raise
    result = outcome.result
    before, after = result["before"]["eval/accuracy"], result["after"]["eval/accuracy"]
    print()
    print(f"{'Goal reached' if outcome.status == 'reached' else 'Stopped'}: {outcome.reason}.")
    print(f"Right answers to {result['after']['eval/problems']:.0f} held-out problems: {before:.1%} -> {after:.1%}.")
    for label, path in {
        "report": report.write(folder.path),
        "responses": folder.path / "evaluation" / "index.html",
        "model": Path(result["checkpoint"]) / "policy",
        "metrics": folder.metrics,
        "trace": folder.trace,
    }.items():
        print(f"  {label:<11}{relative(path)}")
    print("next:")
    print(f"  reasoning eval {relative(folder.path)}")
    print(f"  reasoning train {recipe.name} model.source={relative(Path(result['checkpoint']) / 'policy')}")
    return EXIT_DONE
