"""`embodied record POLICY [ENV]`: film a saved policy."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, RefusedInput
from embodied.runs.files import require_writable


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "record",
        "film a saved policy",
        [
            "embodied record runs/maniskill_pushcube_ppo_mlp/latest",
            "embodied record runs/maniskill_pushcube_ppo_mlp/latest --episodes 9 --out videos",
            "embodied record runs/maniskill_pushcube_ppo_mlp/latest --episodes 20 --separate",
        ],
    )
    parser.add_argument("policy", help="a run folder, one of its checkpoints, or a saved policy")
    parser.add_argument("rest", nargs="*", metavar="ENV key=value", help="the environment's id, and env.* options")
    parser.add_argument("--episodes", type=int, default=4, help="how many, tiled into one video (default 4)")
    parser.add_argument("--separate", action="store_true", help="a file an episode, named by its outcome")
    parser.add_argument("--seed", type=int, help="of the episodes' worlds; the default is the run's own, or 0")
    parser.add_argument("--decode", choices=("greedy", "sample"), help="how actions are taken")
    parser.add_argument("--fps", type=int, default=20, help="frames a second (default 20)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, ...")
    parser.add_argument("--out", type=Path, help="folder of the video; the default is the run's videos/, or videos/")


def run(args: argparse.Namespace) -> int:
    """Film and say where the video is."""
    from embodied.commands.eval import target
    from embodied.interaction.evaluate import find_policy, find_run, require_fit
    from embodied.interaction.recording import film, film_episodes, recording_env
    from envs.video.codec import require_encoder
    from policies import registry

    if args.episodes < 1 or args.fps < 1:
        raise RefusedInput(f"--episodes is {args.episodes}, --fps {args.fps}; both must be at least 1")
    folder = find_policy(args.policy)
    env_config, options, device = target(args)
    require_fit(folder, env_config)
    policy = registry.load(folder)
    run_folder = find_run(args.policy)
    out = args.out or (run_folder / "videos" if run_folder else Path("videos"))
    require_writable(out, "--out")
    require_encoder()
    at_once = min(args.episodes, env_config.num_envs) if args.separate else args.episodes
    with recording_env(env_config, at_once) as env:
        registry.check_interface(policy, registry.interface_of(env.spec))
        options = dataclasses.replace(options, episodes=args.episodes)
        if args.separate:
            films = film_episodes(policy, env, options, range(args.episodes), out, fps=args.fps, device=device)
            successes, path = sum(one.success for one in films.values()), out
        else:
            recording = film(policy, env, options, out, "recorded", fps=args.fps, device=device)
            successes, path = recording.successes, recording.path
    outcome = f", {successes} of {args.episodes} successful" if env.spec.has_success else ""
    print(f"filmed {args.episodes} episodes of {env_config.id}{outcome}: {relative(path)}")
    return EXIT_DONE
