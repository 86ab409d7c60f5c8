"""`reasoning data check DATA`: what is in a data set, and what is wrong with it, before a run finds out."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
from typing import Any

import yaml

from embodied.commands.common import add_verb
from embodied.errors import EXIT_DONE, EXIT_REFUSED, RefusedInput

COLUMNS = ("prompt", "answer", "answer_form", "wrong_choices")
OF_FILES = ("split", *COLUMNS)
OF_FAMILIES = ("size", "family_options", "data_seed")
FAMILY_SIZE = 1000
_SHOWN = 10


def add_parser(subparsers: Any) -> None:
    """Declare the verb."""
    parser = add_verb(
        subparsers,
        "data",
        "look through a set of problems",
        [
            "reasoning data check train.jsonl --prompt problem --answer answer",
            "reasoning data check gsm8k/ --split train --prompt question --answer answer --answer-form after_hashes",
            "reasoning data check family:arithmetic --size 1000",
            "reasoning data check train.parquet --model Qwen/Qwen2.5-1.5B-Instruct --max-prompt-tokens 1024",
        ],
    )
    parser.add_argument("action", choices=("check",), help="check: summarise, and list what is wrong")
    add_data_arguments(parser)
    parser.add_argument("--model", help="a model's folder or hub id, whose tokens are counted; else words are")
    parser.add_argument("--max-prompt-tokens", type=int, help="count prompts that are longer")


def add_data_arguments(
    parser: argparse.ArgumentParser, *, data_required: bool = True, family_size: int = FAMILY_SIZE
) -> None:
    """Which problems, and where their columns are."""
    described = "a JSONL, Parquet or CSV file, a folder of them, hub:OWNER/NAME, or family:NAME"
    parser.add_argument("data", nargs=None if data_required else "?", help=described)
    parser.add_argument("--split", help="of a folder: only files with this word in their name")
    parser.add_argument("--prompt", help="the column with the question (default: prompt)")
    parser.add_argument("--answer", help="the column with the answer or answers (default: answer)")
    parser.add_argument(
        "--answer-form", choices=("plain", "boxed", "after_hashes"), help="how it is written (default: plain)"
    )
    parser.add_argument("--wrong-choices", nargs="+", metavar="COLUMN", help="of multiple-choice questions")
    parser.add_argument("--size", type=int, help=f"problems of a family (default {family_size})")
    described = "options of a family, e.g. terms=[3,3] largest=20"
    parser.add_argument("--family-options", nargs="+", metavar="KEY=VALUE", help=described)
    parser.add_argument("--data-seed", type=int, help="which problems of a family (default 0)")
    parser.add_argument("--limit", type=int, help="only the first so many")


def refuse_without_effect(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise RefusedInput if any of the options on problems `names` was typed; `why` it would be ignored."""
    typed = [name for name in names if getattr(args, name) is not None]
    if typed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise RefusedInput(f"{options} would have no effect: {why}")


def problems_config(args: argparse.Namespace, *, family_size: int = FAMILY_SIZE, **changes: Any) -> Any:
    """The ProblemsConfig that the arguments mean. family_size: of a family, where `--size` was not typed."""
    from embodied.config import parse
    from reasoning.problems import ProblemsConfig

    def typed(**names: str) -> dict[str, Any]:
        return {key: getattr(args, name) for key, name in names.items() if getattr(args, name) is not None}

    values: dict[str, Any] = {"limit": args.limit}
    if args.data.startswith("family:"):
        refuse_without_effect(args, OF_FILES, f"{args.data} is a family, whose problems are made and in no columns")
        values |= {"family": args.data.removeprefix("family:"), "size": family_size}
        values |= typed(size="size", seed="data_seed")
        values["family_options"] = dict(map(_key_value, args.family_options or ()))
    else:
        refuse_without_effect(args, OF_FAMILIES, f"they are for data family:NAME, and {args.data} is none")
        values |= {"files": [args.data], "columns": typed(**{name: name for name in COLUMNS}), **typed(split="split")}
    return parse(ProblemsConfig, values | changes)


def _key_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise RefusedInput(f"the option {text!r} is not of the form key=value, e.g. largest=20")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise RefusedInput(f"the value of the option {text!r} cannot be read, e.g. terms=[3,3] largest=20") from None


def run(args: argparse.Namespace) -> int:
    """Print the summary; exit code 2 when rows cannot be used."""
    from reasoning.problems import load_problems

    if args.max_prompt_tokens is not None and args.max_prompt_tokens < 1:
        raise RefusedInput(f"--max-prompt-tokens is {args.max_prompt_tokens}; it must be at least 1")
    options = problems_config(args, bad_rows="skip")
    if args.model:
        from reasoning.models.loading import load_tokenizer

        tokenizer, unit = load_tokenizer(args.model), "tokens"
        loaded = load_problems(options, lambda problem: len(tokenizer.encode(problem.text)))
    else:
        unit = "words"
        loaded = load_problems(options, lambda problem: len(problem.text.split()))
    print(loaded.summary())
    print(f"prompts      {spread(loaded.lengths)} {unit}")
    limit = args.max_prompt_tokens
    if limit is not None:
        print(f"             {sum(length > limit for length in loaded.lengths)} longer than {limit} {unit}")
    solutions = sum(problem.solution is not None for problem in loaded.problems)
    if solutions:
        print(f"solutions    {solutions} problems have one")
    _print_answers(loaded)
    _print_faults(loaded)
    return EXIT_REFUSED if loaded.bad else EXIT_DONE


def spread(values: list[int]) -> str:
    """Shortest, median, 95th percentile and longest."""
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.0, 0.5, 0.95, 1.0)]
    return "shortest {}, median {}, 95 % up to {}, longest {}".format(*at)


def _print_answers(loaded: Any) -> None:
    from reasoning.rewards.equality import clean, is_readable, read_number

    kinds: collections.Counter[str] = collections.Counter()
    unreadable = []
    for problem in loaded.problems:
        if "entry" in problem.metadata:
            kinds["with a scorer of their own"] += 1
        elif read_number(clean(problem.answers[0])) is not None:
            kinds["numbers"] += 1
        elif is_readable(problem.answers[0]):
            kinds["expressions"] += 1
        else:
            kinds["text, compared letter by letter"] += 1
            unreadable.append(problem)
    print("answers      " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    several = sum(len(problem.answers) > 1 for problem in loaded.problems)
    if several:
        print(f"             {several} problems accept several answers")
    for problem in unreadable[:_SHOWN]:
        print(f"             no mathematics: {problem.origin}: {problem.answers[0][:80]!r}")


def _print_faults(loaded: Any) -> None:
    if loaded.duplicates:
        print(f"duplicates   {len(loaded.duplicates)}, e.g. {loaded.duplicates[0].origin}")
    for first, second in loaded.contradictions[:_SHOWN]:
        print(f"contradiction: {first} and {second} ask the same and expect different answers")
    for row in loaded.bad[:_SHOWN]:
        print(f"unusable     {row}")
    if len(loaded.bad) > _SHOWN:
        print(f"             and {len(loaded.bad) - _SHOWN} more")
