"""`embodied train RECIPE [key=value ...]`: train a policy and leave a run folder with curve, videos and report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, command_line, is_reasoning, relative, with_plan
from embodied.errors import EXIT_DONE


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
    parser.add_argument("recipe", help="a name from `embodied recipes`, or a .yaml file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change any key of the recipe")
    parser.add_argument("--dry-run", action="store_true", help="print the composed, checked recipe and stop")


def run(args: argparse.Namespace) -> int:
    """Compose, check, train, film, report."""
    from embodied.config.compose import compose_recipe, find_recipe
    from embodied.interaction.planning import check_plan, describe_plan
    from embodied.interaction.recipe import parse_recipe
    from embodied.runs.folder import create_run_folder

    name = find_recipe(args.recipe).stem
    values = compose_recipe(args.recipe, with_plan(args.overrides))
    if is_reasoning(values):
        from reasoning.commands.train import start

        return start(name, values, dry_run=args.dry_run)
    recipe = parse_recipe(name, values)
    check_plan(recipe)
    if args.dry_run:
        import yaml

        print(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        print("\n".join(f"# {line}" for line in describe_plan(recipe).splitlines()))
        return EXIT_DONE
    exact = Path(recipe.run.folder) if recipe.run.folder else None
    folder = create_run_folder(Path(recipe.run.root), name, exact)
    return carry_out(recipe, folder, command=command_line(), resume=False)


def carry_out(recipe: Any, folder: Any, *, command: str, resume: bool) -> int:
    """Train, then film and report; says at the end where everything is and what to do next."""
    from embodied.interaction.before_and_after import film_before_and_after
    from embodied.interaction.train import train
    from embodied.report import build_report
    from embodied.runs.checkpoint import CheckpointStore

    try:
        outcome = train(recipe, folder, command=command, resume=resume)
    except KeyboardInterrupt:
        if CheckpointStore(folder.checkpoints, keep=1).latest() is not None:
            print(f"stopped; go on with: embodied resume {relative(folder.path)}")
        else:
            print(f"stopped before the first checkpoint; start again with: {command}")
        raise
    film_before_and_after(outcome, recipe, print)
    report = build_report(folder.path)
    result = outcome.result
    print()
    print(f"{'Goal reached' if outcome.status == 'reached' else 'Stopped'}: {outcome.reason}.")
    for label, path in {
        "report": report,
        "video": result.get("videos", {}).get("both"),
        "checkpoint": result["checkpoint"],
        "metrics": folder.metrics,
        "trace": folder.trace,
    }.items():
        if path is not None:
            print(f"  {label:<11}{relative(path)}")
    print("next:")
    print(f"  embodied eval {relative(folder.path)} --episodes 256")
    print(f"  embodied record {relative(folder.path)}")
    return EXIT_DONE
