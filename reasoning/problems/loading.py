"""From a configuration to the list of problems, with an account of everything that was left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from embodied.errors import AssetError
from reasoning.problems.config import ProblemsConfig
from reasoning.problems.families import generate_problems
from reasoning.problems.files import BadRow, find_files, read_problems
from reasoning.problems.record import Problem

_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Loaded:
    """problems: what is left. bad: rows that could not be used. duplicates: later copies of a question, dropped.
    contradictions: questions that occur with different answers, by origin. too_long: dropped for their length.
    lengths: tokens of the prompts that are left, when they were counted, else empty.
    """

    problems: list[Problem]
    bad: list[BadRow]
    duplicates: list[Problem]
    contradictions: list[tuple[str, str]]
    too_long: list[Problem]
    lengths: list[int]

    def summary(self) -> str:
        """One line."""
        left_out = {
            "unusable rows": len(self.bad),
            "duplicates": len(self.duplicates),
            "too long": len(self.too_long),
        }
        said = ", ".join(f"{count} {what}" for what, count in left_out.items() if count)
        return f"{len(self.problems)} problems" + (f" ({said} left out)" if said else "")


def load_problems(options: ProblemsConfig, prompt_tokens: Callable[[Problem], int] | None = None) -> Loaded:
    """Read or generate problems, drop duplicates and long ones.

    prompt_tokens: how long a problem's prompt is; needed when `max_prompt_tokens` is set.

    Raises AssetError when a file is missing, a row cannot be used (unless they are skipped), or nothing is left;
    ConfigurationError for a wrong column, family or option.
    """
    problems, bad = _gather(options)
    if bad and options.bad_rows == "refuse":
        raise AssetError(
            f"{len(bad)} rows cannot be used:\n{_listed(bad)}\n"
            "Mend them, or leave them out with problems.bad_rows=skip."
        )
    duplicates: list[Problem] = []
    contradictions: list[tuple[str, str]] = []
    first: dict[str, Problem] = {}
    for problem in problems:
        known = first.setdefault(problem.key, problem)
        if known is not problem:
            duplicates.append(problem)
            if set(known.answers) != set(problem.answers):
                contradictions.append((known.origin, problem.origin))
    if options.duplicates == "drop":
        problems, dropped = list(first.values()), duplicates
    else:
        dropped = []
    problems = problems[: options.limit]
    lengths = [prompt_tokens(problem) for problem in problems] if prompt_tokens is not None else []
    too_long: list[Problem] = []
    if options.max_prompt_tokens is not None:
        if prompt_tokens is None:
            raise ValueError("max_prompt_tokens needs prompt_tokens to count with")
        limit = options.max_prompt_tokens
        too_long = [p for p, length in zip(problems, lengths, strict=True) if length > limit]
        problems = [p for p, length in zip(problems, lengths, strict=True) if length <= limit]
        lengths = [length for length in lengths if length <= limit]
    if not problems:
        reason = "all prompts are longer than max_prompt_tokens" if too_long else "there are no rows"
        if bad:
            reason = f"{len(bad)} rows cannot be used:\n{_listed(bad)}"
        raise AssetError(f"no problems are left: {reason}")
    return Loaded(problems, bad, dropped, contradictions, too_long, lengths)


def _listed(bad: list[BadRow]) -> str:
    shown = "\n".join(f"  {row}" for row in bad[:_SHOWN])
    return shown + (f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")


def _gather(options: ProblemsConfig) -> tuple[list[Problem], list[BadRow]]:
    if options.family is not None:
        return generate_problems(options.family, options.size, options.seed, options.family_options), []
    problems: list[Problem] = []
    bad: list[BadRow] = []
    for source in options.files:
        for path in find_files(source, options.split):
            for row in read_problems(path, options.columns):
                if isinstance(row, BadRow):
                    bad.append(row)
                else:
                    problems.append(row)
    return problems, bad
