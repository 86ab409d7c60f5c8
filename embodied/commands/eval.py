"""`embodied eval POLICY [ENV]`: success rate with its interval over episodes that are each played exactly once, and a
page with a film of every failure."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from embodied.commands.common import (
    add_verb,
    command_line,
    env_overrides,
    of_reasoning_run,
    relative,
    require_own_dataset,
)
from embodied.errors import EXIT_DONE, RefusedInput
from sim_assets.trained import CHECKPOINTS


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "eval",
        "evaluate a saved policy",
        [
            "embodied eval runs/maniskill_pushcube_ppo_mlp/latest",
            "embodied eval runs/maniskill_pushcube_ppo_mlp/latest --episodes 256 --decode sample --temperature 0.6",
            "embodied eval my_policy maniskill/PushCube-v1 env.num_envs=32",
            "embodied eval my_policy libero/libero_spatial --episodes 500 --films 100 --film all --every 5",
            "embodied eval runs/maniskill_pushcube_ppo_mlp/latest --dataset data/pushcube_by_policy",
            "embodied eval my_policy libero/libero_goal eval.perturb=[camera,light] eval.severity=[1,3,5]",
            "embodied eval my_policy maniskill/PutOnPlate-v1 eval.splits=all --episodes 256",
        ],
    )
    parser.add_argument("policy", help="a run folder, one of its checkpoints, or a saved policy")
    parser.add_argument(
        "rest", nargs="*", metavar="ENV key=value", help="the environment's id, env.* and eval.* options"
    )
    parser.add_argument("--episodes", type=int, help="how many; the default is the run's own, or 64")
    parser.add_argument("--seed", type=int, help="of the episodes' worlds; the default is the run's own, or 0")
    parser.add_argument("--decode", choices=("greedy", "sample"), help="how actions are taken")
    parser.add_argument("--temperature", type=float, help="of --decode sample; the default is the run's own, or 1")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, ...")
    parser.add_argument(
        "--out",
        type=Path,
        help="results file; by default results.json, results-2.json, ... in the run's or policy's folder",
    )
    parser.add_argument("--films", type=int, default=16, help="how many episodes to film at most (default 16; 0: none)")
    parser.add_argument("--film", choices=("failures", "successes", "all"), default="failures", help="which (failures)")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="film every K-th of them (default 1)")
    parser.add_argument("--fps", type=int, default=20, help="of the films, frames a second (default 20)")
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="also record the episodes as a dataset in DIR")
    parser.add_argument("--keep", choices=("successes", "all"), default="successes", help="which of them (successes)")


def run(args: argparse.Namespace) -> int:
    """Evaluate, write results.json and its page, print the rate."""
    with contextlib.ExitStack() as held:
        return _run(args, held)


def _run(args: argparse.Namespace, held: contextlib.ExitStack) -> int:
    from embodied.datasets.writer import require_same_origin
    from embodied.interaction.assignments import left_out
    from embodied.interaction.evaluate import (
        evaluate_policy,
        find_policy,
        find_run,
        require_fit,
        results_record,
        write_results,
    )
    from embodied.interaction.outcome_films import film_outcomes
    from embodied.interaction.robustness import conditions, take_robustness
    from embodied.report import build_evaluation_page
    from embodied.runs.files import reserved
    from embodied.runs.versions import versions

    if args.films < 0 or args.fps < 1 or args.every < 1:
        raise RefusedInput(
            f"--films is {args.films}, --fps {args.fps}, --every {args.every}; expected at least 0, 1 and 1"
        )
    if of_reasoning_run(Path(args.policy)):
        raise RefusedInput(f"{args.policy} is a run of a language model; evaluate it: reasoning eval {args.policy}")
    policy = find_policy(args.policy)
    asked = take_robustness(args)
    env, options, device = target(args)
    usual, others = conditions(env, asked)
    env = usual.env
    known = require_fit(policy, env)
    if args.dataset is not None:
        require_own_dataset(args.dataset, env.id)
        _require_outcomes(args, known)
        require_same_origin(args.dataset, _origin(args, policy, env, options))
    # another evaluation of the same policy may be under way: its name must not be taken too
    out = writable(args.out or held.enter_context(reserved(_home(find_run(args.policy), policy) / "results.json")))
    result, spec = evaluate_policy(policy, env, options, device=device)
    record = results_record(result, spec, policy=policy, env=env, options=options, versions=versions(), device=device)
    page = out.with_suffix(".html")
    write_results(record, out)  # the numbers first: films take their time
    if spec.has_success:
        films = out.with_name(f"{out.stem}_films")
        chosen = {"of": args.film, "every": args.every, "most": args.films}
        record["films"] = film_outcomes(result, policy, env, options, films, **chosen, fps=args.fps, device=device)
        write_results(record, out)
    build_evaluation_page(record, page, command=command_line())
    if uneven := left_out(options.episodes, spec):
        print(f"embodied eval: note: {uneven}", file=sys.stderr)
    if spec.tasks > 1 and spec.has_success:
        print(_task_table(record["tasks"]))
    metrics = result.metrics(spec.has_success)
    if spec.has_success:
        low, high = metrics["eval/success_once_low"], metrics["eval/success_once_high"]
        print(f"success  {metrics['eval/success_once']:.1%}  (95 % interval {low:.1%} to {high:.1%})")
        print(f"at end   {metrics['eval/success_at_end']:.1%}")
    print(f"return   {metrics['eval/return']:.3f}")
    print(f"length   {metrics['eval/length']:.1f} steps")
    print(f"{len(result.episodes)} episodes of {env.id}, {options.sampling.decode}; all of them in {relative(out)}")
    filmed = record["films"]["episodes"]
    print(f"page     {relative(page)}" + (f"  ({len(filmed)} films of {args.film})" if filmed else ""))
    if others:
        record["robustness"] = _robustness(policy, (usual, result), others, options, device)
        write_results(record, out)
        build_evaluation_page(record, page, command=command_line())
    if args.dataset is not None:
        _require_outcomes(args, spec)
        print(_record(args, policy, env, options, device))
    return EXIT_DONE


def _require_outcomes(args: argparse.Namespace, spec: Any | None) -> None:
    """Refuse to keep successes alone of an environment that tells none; spec: None where that is not known yet."""
    if spec is not None and args.keep == "successes" and not spec.has_success:
        raise RefusedInput(
            f"--keep successes would keep nothing: {spec.id} does not say what a success is. Use --keep all."
        )


def _home(run: Path | None, policy: Path) -> Path:
    """Where results go unless said otherwise: never inside a checkpoint, whose files are accounted for, nor into this
    package, where policies lie that ship."""
    if run is not None:
        return run
    return Path("runs") / "evaluations" / policy.name if policy.resolve().parent == CHECKPOINTS.resolve() else policy


def _robustness(
    policy: Path, usual: tuple[Any, Any], others: list[Any], options: Any, device: str
) -> list[dict[str, Any]]:
    """Play the other conditions and print the table."""
    from embodied.interaction.robustness import as_text, evaluate_conditions, table_of

    played = []
    for number, (condition, result) in enumerate(evaluate_conditions(policy, others, options, device=device), start=1):
        played.append((condition, result))
        name = condition.name if condition.severity is None else f"{condition.name} {condition.severity}"
        print(f"[{number}/{len(others)}] {name}: {result.success_once:.1%}", flush=True)
    rows = table_of(usual, played)
    print(as_text(rows))
    return rows


def _origin(args: argparse.Namespace, policy: Path, env: Any, options: Any) -> dict[str, Any]:
    """What decides what is recorded; how many environments play, and where, does not."""
    from embodied.interaction.evaluate import weight_hashes
    from embodied.interaction.rollout_recorder import changed_options

    usual = type(env)(id=env.id)
    alike = {name: getattr(usual, name) for name in ("num_envs", "processes", "slots")}
    return {
        "policy": weight_hashes(policy),
        "env": changed_options(dataclasses.replace(env, **alike)),
        "protocol": dataclasses.asdict(options),
        "keep": args.keep,
    }


def _record(args: argparse.Namespace, policy: Path, env: Any, options: Any, device: str) -> str:
    """Record the episodes as a dataset; returns what came of it."""
    from embodied.interaction.playback import playback_env
    from embodied.interaction.recording import record_episodes
    from policies import registry

    origin = _origin(args, policy, env, options)
    with playback_env(env, env.num_envs, pictures=False) as played:
        kept = record_episodes(
            registry.load(policy), played, options, args.dataset, keep=args.keep, origin=origin, device=device
        )
    return f"dataset  {relative(args.dataset)}  ({kept} episodes kept)"


def _task_table(tasks: list[dict[str, Any]]) -> str:
    """A line a task: successes, episodes, rate and interval."""
    rows = []
    for task in tasks:
        low, high = task["interval"]
        rate = f"{task['successes']}/{task['episodes']}  {task['successes'] / task['episodes']:6.1%}"
        rows.append(f"{task['task']:4d}  {rate}  ({low:.0%} to {high:.0%})  {task['instruction']}".rstrip())
    return "\n".join(rows)


def target(args: argparse.Namespace) -> tuple[Any, Any, str]:
    """The environment, the protocol and the device that the arguments mean; the run's own unless said otherwise."""
    from embodied.config import parse
    from embodied.interaction.evaluate import find_run
    from embodied.interaction.recipe import EvaluationConfig, load_run_recipe, resolve_device
    from envs.registry import config_class
    from envs.slots import check_sizes

    names = [word for word in args.rest if "=" not in word]
    if len(names) > 1:
        raise RefusedInput(f"one environment at a time, and options as key=value: got {', '.join(names)}")
    if args.episodes is not None and args.episodes < 1:
        raise RefusedInput(f"--episodes is {args.episodes}; it must be at least 1")
    if getattr(args, "seed", None) is not None and args.seed < 0:
        raise RefusedInput(f"--seed is {args.seed}; it must be at least 0")
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
    values = values | env_overrides(overrides)
    env = parse(config_class(values["id"]), values, at="env")
    check_sizes(env)
    changes: dict[str, Any] = {k: getattr(args, k) for k in ("episodes", "seed") if getattr(args, k, None) is not None}
    changes["sampling"] = _sampling(options.sampling, getattr(args, "decode", None), getattr(args, "temperature", None))
    return env, dataclasses.replace(options, **changes), resolve_device(args.device)


def _sampling(own: Any, decode: str | None, temperature: float | None) -> Any:
    """How actions are taken: `own` where nothing else was asked for."""
    sampling = own if decode is None else dataclasses.replace(own, decode=decode)
    if temperature is None:
        return sampling
    if sampling.decode == "greedy":
        raise RefusedInput(f"--temperature is {temperature:g}, but greedy actions are not drawn; add --decode sample")
    if not 0 < temperature < math.inf:
        raise RefusedInput(f"--temperature is {temperature:g}; expected a number above 0")
    return dataclasses.replace(sampling, temperature=temperature)


def _holds_results(path: Path) -> bool:
    try:
        return "protocol" in json.loads(path.read_text())
    except (ValueError, TypeError):
        return False


def writable(path: Path) -> Path:
    """The path, if a file can be written there. Raises RefusedInput, before anything is played."""
    try:
        if path.is_dir():
            raise RefusedInput(f"--out {path} is a folder; name a file, e.g. {path / 'results.json'}")
        if path.suffix == ".html":  # of the page, which lies beside it
            raise RefusedInput(f"--out {path} is to hold the numbers; name a file, e.g. {path.with_suffix('.json')}")
        if path.is_file() and path.stat().st_size and not _holds_results(path):
            raise RefusedInput(f"--out {path} is a file that no evaluation wrote, and would be lost; name another")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a"):
            pass
        if new:
            path.unlink()  # what is refused or fails later leaves no empty results behind
    except OSError as error:
        raise RefusedInput(f"{path} cannot be written: {error.strerror or error}; choose another with --out") from None
    return path
