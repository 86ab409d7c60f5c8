"""`embodied demos ENV`: record demonstrations by scripted experts, for `embodied sft` to learn from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, env_overrides, relative, require_own_dataset
from embodied.errors import EXIT_DONE, RefusedInput, SimulatorError

_ENVIRONMENTS = 16
# options of a recording and their defaults
_RECORDING: dict[str, Any] = {
    "episodes": 50,
    "out": None,
    "noise": 0.0,
    "wander": 0,
    "pace": 1.0,
    "policy": "",
    "policy_steps": None,
    "keep": "successes",
    "seed": 0,
    "preview": 4,
}


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "demos",
        "record demonstrations by a scripted expert",
        [
            "embodied demos maniskill/PushCube-v1 -n 64 --noise 0.2 env.obs=rgb env.image_size=64",
            "embodied demos libero/libero_object -n 100 --out data/object env.image_size=128 env.mode=fast",
            "embodied demos maniskill/PushCube-v1 -n 64 --policy runs/fit --policy-steps 20 --out data/push_again",
            "embodied demos maniskill/PickCube-v1 -n 50 --lerobot data/pickcube_lerobot",
            "embodied demos data/by_policy --lerobot data/by_policy_lerobot",
        ],
    )
    parser.add_argument("env", help="environment id, or the folder of a dataset to copy (with --lerobot)")
    parser.add_argument("overrides", nargs="*", metavar="env.key=value", help="options of the environment")
    parser.add_argument(
        "-n", "--episodes", type=int, default=_RECORDING["episodes"], help="how many to keep (default 50)"
    )
    parser.add_argument(
        "--out", type=Path, help="dataset folder; the default is data/ENV; goes on with one begun there"
    )
    parser.add_argument(
        "--noise",
        type=float,
        default=_RECORDING["noise"],
        help="disturb the expert's motions; labels stay clean (e.g. 0.2; default 0)",
    )
    parser.add_argument(
        "--wander",
        type=int,
        default=_RECORDING["wander"],
        help="begin with up to so many steps in a drawn direction, so that a policy has to look (e.g. 6; default 0)",
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=_RECORDING["pace"],
        help="demonstrators of different skill: each attempt makes a drawn share, from this one to 1, of the expert's "
        "motions (e.g. 0.3 with --keep all; default 1)",
    )
    parser.add_argument(
        "--policy",
        default=_RECORDING["policy"],
        help="let this policy play the first steps of attempts; the expert labels them (DAgger)",
    )
    parser.add_argument(
        "--policy-steps", type=int, metavar="N", help="up to how many steps it plays (default: half an episode)"
    )
    parser.add_argument(
        "--keep", choices=("successes", "all"), default=_RECORDING["keep"], help="which attempts to keep"
    )
    parser.add_argument("--seed", type=int, default=_RECORDING["seed"], help="of worlds, noise and paces (default 0)")
    parser.add_argument(
        "--preview", type=int, default=_RECORDING["preview"], help="episodes in the preview video (default 4; 0: none)"
    )
    parser.add_argument("--lerobot", type=Path, metavar="FOLDER", help="also write a copy in LeRobot's format 3.0")
    parser.add_argument(
        "--lerobot-pictures", choices=("image", "video"), default="image", help="lossless images or small videos there"
    )


def run(args: argparse.Namespace) -> int:
    """Record, film a preview, export, and say what to do next."""
    from embodied.config import parse
    from embodied.datasets import open_dataset, require_same_origin
    from embodied.datasets.lerobot_export import Pictures, export_lerobot, require_free
    from embodied.interaction.demonstrate import (
        DemonstrationConfig,
        film_demonstrations,
        record,
        recording_origin,
    )
    from embodied.interaction.evaluate import find_policy, require_fit
    from embodied.interaction.experts import expert_config, expert_kind
    from embodied.runs.progress import RunProgress

    if Path(args.env).is_dir():
        return _copy(args)
    given = env_overrides(args.overrides)
    values = {"num_envs": min(args.episodes, _ENVIRONMENTS), **given, "id": args.env}
    config = expert_config(values)
    names = ("episodes", "noise", "wander", "pace", "policy", "policy_steps", "keep", "seed")
    options = parse(DemonstrationConfig, {name: getattr(args, name) for name in names})
    if options.policy:
        require_fit(find_policy(options.policy), config)
    folder = args.out or Path("data") / args.env.replace("/", "_").replace(":", "_")
    require_own_dataset(folder, args.env)
    if args.lerobot is not None:
        require_free(args.lerobot)  # not only after minutes of recording
    if args.preview < 0:
        raise RefusedInput(f"--preview is {args.preview}; expected 0 (no video) or how many episodes it shows")
    # how many environments play at once, and where, does not change what is recorded
    lasting = {k: v for k, v in given.items() if k not in ("num_envs", "processes", "start_seconds", "step_seconds")}
    env_options = {"id": args.env, **expert_kind(args.env).settings, **lasting}
    require_same_origin(folder, recording_origin(options, env_options))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedInput(f"the dataset folder {folder} cannot be written: {error.strerror}.") from None
    with RunProgress(folder / "log.txt", total=args.episodes, unit="episodes") as screen:
        screen.say(f"recording {args.episodes} episodes of {args.env} into {relative(folder)} ...")
        recorded = record(config, options, folder, screen, env_options)
        if recorded.unknown:
            screen.say(f"there is no expert for tasks {', '.join(map(str, recorded.unknown))}; they were left out")
        screen.say(f"{recorded.episodes} episodes of {recorded.attempts} attempts in {relative(folder)}")
        if args.preview > 0:
            try:
                screen.say(f"preview: {relative(film_demonstrations(config, folder, args.preview))}")
            except SimulatorError as error:
                screen.say(f"warning: no preview: {error} `embodied doctor` shows what is missing.")
    if args.lerobot is not None:
        export_lerobot(open_dataset(folder), args.lerobot, Pictures(args.lerobot_pictures))
        print(f"LeRobot copy: {relative(args.lerobot)}")
    policy = "openvla_oft/tiny" if config_has_pictures(folder) else "mlp"
    print("next:")
    print(f"  embodied sft {policy} {relative(folder)}")
    return EXIT_DONE


def _copy(args: argparse.Namespace) -> int:
    """Copy a dataset that is there, whoever recorded it, to LeRobot's format."""
    from embodied.datasets import open_dataset
    from embodied.datasets.lerobot_export import Pictures, export_lerobot

    if args.lerobot is None:
        raise RefusedInput(f"{args.env} is a folder; copy its dataset with --lerobot FOLDER, or name an environment")
    typed = [name for name, default in _RECORDING.items() if getattr(args, name) != default]
    options = [*args.overrides, *(f"--{name.replace('_', '-')}" for name in typed)]
    if options:
        raise RefusedInput(f"{args.env} is a folder, which is copied as it is; leave {', '.join(options)} out")
    export_lerobot(open_dataset(args.env), args.lerobot, Pictures(args.lerobot_pictures))
    print(f"LeRobot copy: {relative(args.lerobot)}")
    return EXIT_DONE


def config_has_pictures(folder: Path) -> bool:
    """Whether what was recorded can be seen."""
    from embodied.datasets import open_dataset

    return bool(open_dataset(folder).spec.cameras)
