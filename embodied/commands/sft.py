"""`embodied sft POLICY DATA [DATA ...] [key=value ...]`: fit a policy to recorded demonstrations."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, command_line, relative
from embodied.errors import EXIT_DONE, RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "sft",
        "fit a policy to recorded demonstrations",
        [
            "embodied sft openvla_oft/tiny data/maniskill_PushCube-v1",
            "embodied sft openvla_oft/tiny data/libero_object learner.epochs=40 policy.chunk=8 seed=1",
            "embodied sft openvla_oft/tiny data/push data/push_noisy labels.spread=0.05",
            "embodied sft openvla/7b data/lerobot_set policy.checkpoint=openvla/openvla-7b policy.lora.rank=32",
            "embodied sft mlp data/pickcube_state policy.chunk=4",
            "embodied sft --resume runs/sft_openvla_oft_tiny/latest",
        ],
    )
    parser.add_argument("policy", nargs="?", help="a policy's name, e.g. openvla_oft/tiny, or a .yaml recipe")
    parser.add_argument(
        "given",
        nargs="*",
        metavar="DATA | key=value",
        help="dataset folders, read as one: ours, or LeRobot's of version 2 or 3; and changes to any key of the recipe",
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a stopped run, to the bit")
    parser.add_argument("--dry-run", action="store_true", help="print the composed, checked recipe and stop")


def run(args: argparse.Namespace) -> int:
    """Compose, check, fit; say where the policy is and how to evaluate it."""
    import yaml

    from embodied.interaction.imitation import demonstrations, fit
    from embodied.interaction.imitation_recipe import compose_sft, load_sft_recipe
    from embodied.runs.folder import RunFolder, create_run_folder

    if args.resume is not None:
        if args.policy is not None:
            raise RefusedInput("--resume goes on with a run as it was configured; leave out the policy and the data.")
        recipe = load_sft_recipe(args.resume.resolve())
    else:
        overrides = [word for word in args.given if _is_override(word)]
        data = [word for word in args.given if not _is_override(word)]
        if args.policy is None or not data:
            raise RefusedInput("name a policy and a dataset folder, e.g. embodied sft openvla_oft/tiny data/my_set")
        recipe = compose_sft(args.policy, data, overrides)
    if args.dry_run:
        print(yaml.safe_dump(recipe.as_dict(), sort_keys=False), end="")
        return EXIT_DONE
    if args.resume is not None:
        folder = RunFolder(args.resume.resolve())
    else:
        demonstrations(recipe)  # refused before anything is written
        exact = Path(recipe.run.folder).expanduser() if recipe.run.folder else None
        folder = create_run_folder(
            Path(recipe.run.root).expanduser(), recipe.name, exact, go_on="embodied sft --resume"
        )
    try:
        fitted = fit(recipe, folder, command=command_line(), resume=args.resume is not None)
    except KeyboardInterrupt:
        print(f"stopped; go on with: embodied sft --resume {relative(folder.path)}")
        raise
    print(f"\nFitted: {fitted.reason}.")
    print(f"  policy     {relative(fitted.policy)}")
    print(f"  metrics    {relative(folder.metrics)}")
    if fitted.env:
        words = [f"env.{key}={_word(value)}" for key, value in fitted.env.items() if key != "id"]
        print("next:")
        print(f"  embodied eval {relative(fitted.policy)} {fitted.env['id']} {shlex.join(words)}".rstrip())
    return EXIT_DONE


def _is_override(word: str) -> bool:
    """Whether a word changes a key; a folder with an equals sign in its name is still a folder if it exists."""
    return "=" in word and not Path(word).expanduser().is_dir()


def _word(value: Any) -> str:
    """A value as YAML reads it on the command line."""
    import yaml

    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
