"""`embodied eval POLICY [ENV]`: success rate with its interval over episodes that are each played exactly once."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, of_reasoning_run, relative
from embodied.errors import EXIT_DONE, RefusedInput


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "eval",
        "evaluate a saved policy",
        [
            "embodied eval runs/maniskill_pushcube_ppo_mlp/latest",
            "embodied eval runs/maniskill_pushcube_ppo_mlp/latest --episodes 256 --decode sample",
            "embodied eval my_policy maniskill/PushCube-v1 env.num_envs=32",
        ],
    )
    parser.add_argument("policy", help="a run folder, one of its checkpoints, or a saved policy")
    parser.add_argument("rest", nargs="*", metavar="ENV key=value", help="the environment's id, and env.* options")
    parser.add_argument("--episodes", type=int, help="how many; the default is the run's own, or 64")
    parser.add_argument("--seed", type=int, help="of the episodes' worlds; the default is the run's own, or 0")
    parser.add_argument("--decode", choices=("greedy", "sample"), help="how actions are taken")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, ...")
    parser.add_argument("--out", type=Path, help="results file; by default in the run folder, or beside the policy")


def run(args: argparse.Namespace) -> int:
    """Evaluate, write results.json, print the rate."""
    from embodied.interaction.evaluate import evaluate_policy, find_policy, find_run, results_record, write_results
    from embodied.runs.versions import versions

    if of_reasoning_run(Path(args.policy)):
        raise RefusedInput(f"{args.policy} is a run of a language model; evaluate it: reasoning eval {args.policy}")
    policy = find_policy(args.policy)
    env, options, device = target(args)
    # never inside a checkpoint, whose files are accounted for
    out = writable(args.out or (find_run(args.policy) or policy) / "results.json")
    result, spec = evaluate_policy(policy, env, options, device=device)
    record = results_record(result, spec, policy=policy, env=env, options=options, versions=versions())
    write_results(record, out)
    metrics = result.metrics(spec.has_success)
    if spec.has_success:
        low, high = metrics["eval/success_once_low"], metrics["eval/success_once_high"]
        print(f"success  {metrics['eval/success_once']:.1%}  (95 % interval {low:.1%} to {high:.1%})")
        print(f"at end   {metrics['eval/success_at_end']:.1%}")
    print(f"return   {metrics['eval/return']:.3f}")
    print(f"length   {metrics['eval/length']:.1f} steps")
    print(f"{len(result.episodes)} episodes of {env.id}, {options.sampling.decode}; all of them in {relative(out)}")
    return EXIT_DONE


def target(args: argparse.Namespace) -> tuple[Any, Any, str]:
    """The environment, the protocol and the device that the arguments mean; the run's own unless said otherwise."""
    from embodied.config import parse
    from embodied.interaction.evaluate import find_run
    from embodied.interaction.recipe import EvaluationConfig, load_run_recipe, resolve_device
    from envs.registry import config_class

    names = [word for word in args.rest if "=" not in word]
    if len(names) > 1:
        raise RefusedInput(f"one environment at a time: got {', '.join(names)}")
    if args.episodes is not None and args.episodes < 1:
        raise RefusedInput(f"--episodes is {args.episodes}; it must be at least 1")
    env_id = names[0] if names else None
    overrides = [word for word in args.rest if "=" in word]
    run_folder = find_run(args.policy)
    if run_folder is not None:
        recipe = load_run_recipe(run_folder)
        values, options = dataclasses.asdict(recipe.env), recipe.evaluation
        if env_id is not None and env_id != recipe.env.id:
            values = {"id": env_id, "num_envs": recipe.env.num_envs}
    elif env_id is not None:
        values, options = {"id": env_id}, EvaluationConfig()
    else:
        raise RefusedInput(
            f"{args.policy} is a policy outside a run: name the environment too, e.g. maniskill/PushCube-v1"
        )
    values = values | _env_overrides(overrides)
    env = parse(config_class(values["id"]), values, at="env")
    changes: dict[str, Any] = {k: getattr(args, k) for k in ("episodes", "seed") if getattr(args, k, None) is not None}
    if getattr(args, "decode", None):
        changes["sampling"] = dataclasses.replace(options.sampling, decode=args.decode)
    return env, dataclasses.replace(options, **changes), resolve_device(args.device)


def _env_overrides(overrides: list[str]) -> dict[str, Any]:
    import yaml

    values = {}
    for override in overrides:
        key, text = override.split("=", 1)
        if not key.startswith("env."):
            raise RefusedInput(f"{override!r}: only env.* options can be changed here, e.g. env.num_envs=32")
        try:
            values[key.removeprefix("env.")] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise RefusedInput(f"{override!r}: {text!r} is not a value that YAML can read") from None
    return values


def writable(path: Path) -> Path:
    """The path, if a file can be written there. Raises RefusedInput, before anything is played."""
    try:
        if path.is_dir():
            raise RefusedInput(f"--out {path} is a folder; name a file, e.g. {path / 'results.json'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise RefusedInput(f"{path} cannot be written: {error.strerror or error}; choose another with --out") from None
    return path
