"""`reasoning sft MODEL DATA`: fit a model to worked solutions."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, RefusedInput
from embodied.runs.files import require_writable
from reasoning.commands.data import (
    OF_FAMILIES,
    OF_FILES,
    add_data_arguments,
    problems_config,
    refuse_without_effect,
)

_FAMILY_SIZE = 20_000


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "sft",
        "fit a model to worked solutions",
        [
            "reasoning sft tiny family:arithmetic --until 0.25 --out runs/tiny",
            "reasoning sft my_model train.jsonl --prompt question --answer answer --solution answer "
            "--answer-form after_hashes --held-out test.jsonl --out runs/fitted",
        ],
    )
    parser.add_argument("model", help="a model's folder, a hub id, or `tiny`: a fresh one of 1.3 million parameters")
    add_data_arguments(parser, family_size=_FAMILY_SIZE)
    parser.add_argument("--solution", help="the column with the worked solution")
    parser.add_argument("--held-out", help="problems to test on; of a family, others of the same one are taken")
    parser.add_argument("--held-out-size", type=int, default=200, help="how many of them (default 200)")
    parser.add_argument("--steps", type=int, default=1000, help="at most so many (default 1000)")
    parser.add_argument("--batch", type=int, default=64, help="problems of one step (default 64)")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (default 0.003, for tiny)")
    parser.add_argument("--until", type=float, help="stop once this share of the held-out problems is solved")
    parser.add_argument("--evaluate-every", type=int, default=50, help="steps between tests (default 50)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of a response in tests (default 128)")
    parser.add_argument("--row-tokens", type=int, default=128, help="of a packed row (default 128)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the problems")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:0, ... (default cpu)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the fitted model")


def run(args: argparse.Namespace) -> int:
    """Fit, save the model with its tokenizer and sft.json, print the curve as it grows."""
    import torch

    from embodied.config import parse
    from embodied.scheduler.options import resolve_device
    from reasoning.models.loading import open_model, open_tokenizer, without_progress_bars
    from reasoning.problems import load_problems
    from reasoning.prompts import PromptConfig, Prompter
    from reasoning.rewards.reward import RewardConfig, RewardFunction
    from reasoning.sft import SFTConfig, fit, require_solutions

    without_progress_bars()
    if args.out.is_dir() and any(args.out.iterdir()):
        raise RefusedInput(f"--out {args.out} is not empty; name a new folder")
    if args.held_out_size < 1:
        raise RefusedInput(f"--held-out-size is {args.held_out_size}; it must be at least 1")
    device = resolve_device(args.device)
    names = ("steps", "batch", "lr", "until", "evaluate_every", "max_new_tokens", "row_tokens", "precision", "seed")
    options = parse(SFTConfig, {name: getattr(args, name) for name in names})
    training, held_out = _problems(args, load_problems)
    tokenizer = open_tokenizer(args.model)
    model = open_model(args.model, seed=args.seed, dtype=torch.float32, device=device)
    chat = "chat" if getattr(tokenizer, "chat_template", None) else "template"
    prompter = Prompter(tokenizer, PromptConfig(format=chat))
    require_solutions(training)
    require_writable(args.out, "--out")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters, {len(training)} problems")
    with RewardFunction(RewardConfig(processes=1)) as reward:
        history = fit(model, prompter, training, held_out, reward, options, _say)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    record = {"options": dataclasses.asdict(options), "history": [dataclasses.asdict(p) for p in history]}
    (args.out / "sft.json").write_text(json.dumps(record, indent=1))
    last = history[-1]
    tested = next((p.solved for p in reversed(history) if p.solved is not None), None)
    solved = "" if tested is None else f", {tested:.1%} of {len(held_out)} held-out problems solved"
    print(f"{last.step} steps in {last.seconds:.0f} s, loss {last.loss:.3f}{solved}: {relative(args.out)}")
    return EXIT_DONE


def _problems(args: argparse.Namespace, load: Any) -> tuple[list[Any], list[Any]]:
    """Problems to fit to, and others to test on."""
    options = problems_config(args, family_size=_FAMILY_SIZE)
    if options.family is not None:
        refuse_without_effect(args, ("solution",), f"{args.data} is a family, which has solutions of its own or none")
    if args.solution is not None:
        options = dataclasses.replace(options, columns=dataclasses.replace(options.columns, solution=args.solution))
    training = load(options).problems
    if args.held_out is not None:
        # options on problems of one kind are those to fit to, where the held-out ones are of the other
        others_own = OF_FILES if args.held_out.startswith("family:") else OF_FAMILIES
        kept = {name: None if name in others_own else value for name, value in vars(args).items()}
        other = argparse.Namespace(**{**kept, "data": args.held_out, "limit": args.held_out_size})
        held_out = load(problems_config(other)).problems
    elif options.family is not None:
        # more than are wanted, since some may be among the training problems
        other = dataclasses.replace(options, seed=options.seed + 1, size=4 * args.held_out_size)
        held_out = load(other).problems
    elif args.until is not None:
        raise RefusedInput("--until tests on held-out problems; name them with --held-out FILE")
    else:
        return training, []
    known = {problem.key for problem in training}
    others = [problem for problem in held_out if problem.key not in known][: args.held_out_size]
    if args.until is not None and not others:
        raise RefusedInput(
            f"--until tests on held-out problems, but all {len(held_out)} that were found are among those to fit to; "
            "name others with --held-out FILE"
        )
    return training, others


def _say(progress: Any) -> None:
    if progress.solved is not None:
        line = (
            f"step {progress.step:5}  loss {progress.loss:.3f}  solved {progress.solved:.1%}  {progress.seconds:.0f} s"
        )
        print(line, flush=True)
