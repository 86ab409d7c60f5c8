"""`reasoning eval MODEL [DATA]`: how often a model is right, with intervals, and every response to read."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from embodied.commands.common import add_verb, relative
from embodied.errors import EXIT_DONE, CheckpointError, ConfigurationError, RefusedInput, suggest
from embodied.runs.files import require_writable, reserved_folder
from reasoning.commands.data import (
    COLUMNS,
    OF_FAMILIES,
    OF_FILES,
    add_data_arguments,
    problems_config,
    refuse_without_effect,
)

_PACKAGES = ("torch", "transformers", "math-verify", "reasoning-gym")


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "eval",
        "evaluate a model on problems",
        [
            "reasoning eval runs/math_grpo_tiny/latest --attempts 8 --temperature 1",
            "reasoning eval my_model family:arithmetic --size 200 --format template",
            "reasoning eval Qwen/Qwen2.5-1.5B-Instruct test.jsonl --attempts 8 --temperature 0.6 --top-p 0.95",
            "reasoning eval Qwen/Qwen2.5-1.5B-Instruct --protocol gsm8k",
            "reasoning eval my_model aime.parquet --protocol aime24 --attempts 8",
        ],
    )
    parser.add_argument("model", help="a model's folder, a hub id, or a run folder: its newest model")
    add_data_arguments(parser, data_required=False)
    parser.add_argument("--protocol", help="a named one: aime24, aime25, math500, gpqa_diamond, gsm8k")
    parser.add_argument("--reward", help="math, numeric, exact, multiple_choice, reasoning_gym or module:function")
    parser.add_argument("--attempts", type=int, help="tries at each problem (default 1, or the protocol's)")
    parser.add_argument("--temperature", type=float, help="draw at this temperature; without it, greedy")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--max-new-tokens", type=int, help="of a response (default 1024, or the protocol's)")
    parser.add_argument("--stop", nargs="+", metavar="TEXT", help="texts that end a response")
    parser.add_argument("--seed", type=int, help="of the draws")
    parser.add_argument("--format", choices=("chat", "template"), help="default: chat if the tokenizer has a template")
    parser.add_argument(
        "--template", help="text with {problem} in it, instead of a chat (default: {problem} and a line end)"
    )
    parser.add_argument("--system", help="a system message, for --format chat")
    parser.add_argument("--instruction", help="added below each question")
    parser.add_argument("--slots", type=int, default=32, help="responses generated at once (default 32)")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:0, ...")
    parser.add_argument("--processes", type=int, default=2, help="that grade (default 2)")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of results.json and index.html (default: evaluation, evaluation-2, ... beside the model)",
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate, write both files, print the table."""
    with contextlib.ExitStack() as held:
        return _run(args, held)


def _run(args: argparse.Namespace, held: contextlib.ExitStack) -> int:
    import torch

    from embodied.config import parse
    from embodied.scheduler.options import resolve_device
    from reasoning.evaluation.metrics import estimates, rates
    from reasoning.evaluation.page import write_results
    from reasoning.evaluation.run import EvaluationConfig, evaluate
    from reasoning.generation.native import NativeEngine
    from reasoning.models.loading import end_tokens, load_model, load_tokenizer, without_progress_bars
    from reasoning.problems import load_problems
    from reasoning.prompts import Prompter
    from reasoning.rewards.graders import check_problem
    from reasoning.rewards.reward import RewardConfig, RewardFunction, TermConfig, check_reward

    without_progress_bars()
    for name in ("slots", "processes", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RefusedInput(f"--{name} is {value}; it must be at least 1")
    protocol = _protocol(args.protocol)
    trained = _of_run(args)
    source = trained.model if trained else args.model
    if args.data is None and protocol is None and trained is None:
        raise RefusedInput("name the problems (a file, a folder, hub:OWNER/NAME or family:NAME), or a --protocol")
    defaults = protocol.evaluation if protocol else trained.evaluation if trained else EvaluationConfig()
    evaluation = parse(EvaluationConfig, _evaluation_values(args, dataclasses.asdict(defaults)))
    tokenizer = load_tokenizer(source)
    prompt = _prompt(args, protocol, tokenizer, trained.prompt if trained and not protocol else None)
    prompter = Prompter(tokenizer, prompt)
    if trained and args.data is None and protocol is None:
        refuse_without_effect(
            args, (*OF_FILES, *OF_FAMILIES), f"without problems of yours those held out from {args.model} are asked"
        )
        problems, data = list(trained.held_out)[: args.limit], {}
        said = f"{len(problems)} of {len(trained.held_out)} held-out problems of the run"
    else:
        data_options = _data(args, protocol)
        loaded = load_problems(data_options)
        problems, said, data = loaded.problems, loaded.summary(), dataclasses.asdict(data_options)
    kind = args.reward or (protocol.reward if protocol else "" if trained else "math")
    terms = (TermConfig(kind=kind),) if kind or trained is None else trained.terms
    written = {"terms": [dataclasses.asdict(term) for term in terms], "processes": args.processes, "ungraded": "worst"}
    options = parse(RewardConfig, written, at="reward")
    check_reward(options)
    for term in terms:
        for problem in problems:
            check_problem(term.kind, problem)
    device = resolve_device(args.device)
    dtype = torch.bfloat16 if args.dtype == "bfloat16" or (args.dtype == "auto" and device != "cpu") else torch.float32
    # another evaluation of the same model may be under way: its folder must not be taken too
    out = args.out or held.enter_context(reserved_folder(_home(Path(args.model)) / "evaluation"))
    require_writable(out, "--out")
    model = load_model(source, dtype=dtype, device=device)
    longest = max(len(prompter.tokens(problem)) for problem in problems)
    engine = NativeEngine(
        model,
        eos=end_tokens(model, tokenizer),
        tokenizer=tokenizer,
        slots=min(args.slots, len(problems) * evaluation.attempts),
        capacity=longest + evaluation.sampling.max_new_tokens,
    )
    with RewardFunction(options) as reward:
        print(said, file=sys.stderr)
        results = asyncio.run(evaluate(engine, prompter, problems, reward, evaluation, _progress))
    described = {
        "model": source,
        "protocol": args.protocol or "",
        "data": data or said,
        "prompt": dataclasses.asdict(prompter.options),
        "evaluation": dataclasses.asdict(evaluation),
        "reward": terms[0].kind,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "versions": {name: version(name) for name in _PACKAGES},
    }
    found, shares = estimates(results), rates(results)
    _, page = write_results(out, described, results, found, shares)
    _print_table(results, found, shares)
    print(f"every response: {relative(page)}")
    return EXIT_DONE


def _print_table(results: Any, found: Any, shares: dict[str, float]) -> None:
    for name, e in found.items():
        print(f"{name:10} {e.value:7.2%}  (95 % interval {e.low:.2%} to {e.high:.2%}, {e.problems} problems)")
    print(
        f"truncated {shares['truncated']:.1%}, no answer {shares['no_answer']:.1%}, ungraded {shares['ungraded']:.1%}"
    )
    if shares["ungraded"]:
        first = next(t for result in results for t in result.tries if t.detail)
        print(f"ungraded counts as wrong; the first: {first.outcome.value}, {first.detail}")
    print(f"tokens    {shares['tokens_mean']:.0f} on average, longest {shares['tokens_longest']:.0f}")


def _home(model: Path) -> Path:
    """Where results go unless said otherwise: the model's folder; of a run's checkpoint, whose files are accounted for,
    the run's; the current one for models that are in no folder of the user's."""
    store = next((parent for parent in model.resolve().parents if parent.name == "checkpoints"), None)
    if store is not None and (store.parent / "config.yaml").is_file():
        return store.parent
    return model if model.is_dir() else Path()


def _protocol(name: str | None) -> Any:
    from reasoning.evaluation.protocols import PROTOCOLS

    if name is None:
        return None
    if name not in PROTOCOLS:
        raise ConfigurationError(f"Unknown protocol {name!r}. " + suggest(name, PROTOCOLS, noun="protocols"))
    return PROTOCOLS[name]


@dataclasses.dataclass(frozen=True)
class _Trained:
    """What a training run evaluates, and how: the folder of its newest model, and its recipe's settings."""

    model: str
    held_out: tuple[Any, ...]
    prompt: Any
    terms: tuple[Any, ...]
    evaluation: Any


def _of_run(args: argparse.Namespace) -> _Trained | None:
    """The run that `model` is the folder of, if it is one."""
    folder = Path(args.model)
    if not (folder / "config.yaml").is_file():
        return None
    from embodied.runs.checkpoint import CheckpointStore, verify
    from embodied.training.given import check_given
    from reasoning.evaluation.run import EvaluationConfig
    from reasoning.training.problems import gather
    from reasoning.training.recipe import load_run_recipe

    recipe = load_run_recipe(folder)
    newest = CheckpointStore(folder / "checkpoints", keep=1).latest()
    if newest is None:
        raise RefusedInput(f"{folder} has no complete checkpoint to evaluate yet")
    try:
        verify(newest.folder, "policy/")
    except CheckpointError as error:
        raise RefusedInput(f"{error}; name another model, e.g. the policy folder of an earlier checkpoint") from None
    if args.data is None and args.protocol is None:
        check_given(folder, (), "reasoning")  # its held-out problems may be its own
    held_out = gather(recipe).held_out if args.data is None and args.protocol is None else ()
    options = recipe.evaluation
    evaluation = EvaluationConfig(attempts=options.attempts, sampling=options.sampling, seed=options.seed)
    return _Trained(str(newest.folder / "policy"), held_out, recipe.prompt, recipe.reward.terms, evaluation)


def _prompt(args: argparse.Namespace, protocol: Any, tokenizer: Any, trained: Any) -> Any:
    """How problems are rendered: as in training, by the protocol or by default, changed by what was typed."""
    from embodied.config import parse
    from reasoning.prompts import PromptConfig

    if args.template is not None and args.format == "chat":
        raise RefusedInput("--template is written instead of a chat; leave one of --template and --format chat out")
    if trained is not None:
        values = dataclasses.asdict(trained)
    else:
        chat = getattr(tokenizer, "chat_template", None)
        values = {"format": "chat" if chat else "template", "instruction": protocol.instruction if protocol else ""}
    wanted = args.format or ("template" if args.template is not None else None)
    typed = {"format": wanted, "template": args.template, "system": args.system, "instruction": args.instruction}
    return parse(PromptConfig, values | {name: value for name, value in typed.items() if value is not None})


def _evaluation_values(args: argparse.Namespace, values: dict[str, Any]) -> dict[str, Any]:
    """The protocol's settings, the run's or the defaults, changed by what was typed."""
    sampling = values["sampling"]
    if args.temperature is not None:
        sampling |= {"decode": "sample", "temperature": args.temperature}
    for key in ("top_p", "top_k", "max_new_tokens", "stop"):
        if getattr(args, key) is not None:
            sampling[key] = getattr(args, key)
    for key in ("attempts", "seed"):
        if getattr(args, key) is not None:
            values[key] = getattr(args, key)
    if sampling["decode"] == "greedy":
        for key in ("top_p", "top_k"):
            if getattr(args, key) is not None:
                raise RefusedInput(f"--{key.replace('_', '-')} is for drawing; give a --temperature too, e.g. 0.6")
    return values


def _data(args: argparse.Namespace, protocol: Any) -> Any:
    if protocol is None:
        return problems_config(args)
    from reasoning.problems import ProblemsConfig

    local = args.data is not None
    ignored = (*COLUMNS, *OF_FAMILIES) if local else (*OF_FILES, *OF_FAMILIES)
    refuse_without_effect(args, ignored, f"--protocol {args.protocol} says what is read")
    return ProblemsConfig(
        files=(args.data if local else protocol.data,),
        split=(args.split or "") if local else protocol.split,
        columns=protocol.columns,
        limit=args.limit,
    )


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{total} responses", end="\n" if done == total else "", file=sys.stderr, flush=True)
