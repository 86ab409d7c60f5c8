"""The reward of a response: a sum of terms, with an account of what each term said and of what could not be graded."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from embodied.config import config, parse
from embodied.errors import ConfigurationError
from reasoning.problems.record import Problem
from reasoning.rewards import shaping
from reasoning.rewards.extraction import Found
from reasoning.rewards.graders import check_grader, wrap_function
from reasoning.rewards.pool import GraderSpec, GradingPool, Outcome, Verdict


@config
class TermConfig:
    """kind: math, numeric, exact, multiple_choice, reasoning_gym, format, overlong, or `package.module:function`.
    best: what a score of 1 is worth. worst: what a score of 0 is worth; scores between and beyond go on linearly.
    options: of this kind.
    """

    kind: str
    best: float = 1.0
    worst: float = 0.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@config
class RewardConfig:
    """terms: added up; the first decides what counts as right (a score of 1).
    ungraded: what becomes of a response that could not be graded (timeout, crash, error): `exclude` takes it out of
    training, `worst` gives it the term's worst value.
    processes: that grade. deadline_seconds: for one answer, at most an hour. memory_gib: of one grading process.
    """

    terms: tuple[TermConfig, ...] = (TermConfig(kind="math"),)
    ungraded: Literal["exclude", "worst"] = "exclude"
    processes: int = 2
    deadline_seconds: float = 5.0
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("terms is empty; a reward needs at least one")
        if self.terms[0].kind in ("format", "overlong"):
            raise ValueError(f"the first term is {self.terms[0].kind!r}; it must be one that looks at the answer")
        for index, term in enumerate(self.terms):
            # the first of several says what is right even where it adds nothing
            if term.best == term.worst and (index or len(self.terms) == 1):
                raise ValueError(f"best and worst of the term {term.kind} are both {term.best}; it would say nothing")
        for name, most in (("processes", 4096), ("deadline_seconds", 3600.0), ("memory_gib", 2.0**20)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and at most {most:g}")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A response to be rewarded. tokens: its length, the end of sequence included. truncated: it hit the limit."""

    problem: Problem
    response: str
    tokens: int
    truncated: bool


@dataclasses.dataclass(frozen=True)
class Reward:
    """value: the sum; NaN where `excluded`. right: whether the answer is. terms: each term's share, by kind.
    answer: what was taken for the answer, found where `how` says. problem: why it could not be graded, "" if it was.
    """

    value: float
    right: bool
    excluded: bool
    terms: dict[str, float]
    answer: str
    how: Found
    outcome: Outcome
    problem: str = ""


def check_reward(options: RewardConfig, function: Callable[..., Any] | None = None, *, at: str = "reward") -> None:
    """Raise ConfigurationError for a term that cannot be built, naming it; a user's function is not imported.

    function: the user's own, instead of the first term.
    """
    for index, term in enumerate(options.terms):
        where = f"{at}.terms[{index}].options"
        if index == 0 and function is not None:
            if not callable(function):
                raise ConfigurationError(f"the reward is {function!r}; expected a function of (response, problem)")
        elif term.kind == "overlong":
            _overlong(term, where)
        else:
            check_grader(term.kind, term.options, at=where)


def try_functions(options: RewardConfig, function: Callable[..., Any] | None = None) -> None:
    """See whether users' functions can be used: one given as an object here, and those named by import path in a
    grading process, where importing them may take long or go wrong.

    Raises ConfigurationError when one cannot.
    """
    if function is not None:
        wrap_function(function, {})
        GraderSpec("function", {}, function).packed()
    named = [GraderSpec(t.kind, t.options) for t in options.terms[function is not None :] if ":" in t.kind]
    if named:
        GradingPool(named, processes=1, memory_gib=options.memory_gib).close()


class RewardFunction:
    """Rewards attempts in grading processes; safe to use from any thread, and from coroutines.

    Args:
        options: the terms and how they are graded.
        function: a user's own function (response, problem) -> number, used as the first term instead of the configured
            one.

    Raises ConfigurationError for a term that cannot be built.
    """

    def __init__(self, options: RewardConfig, function: Callable[..., Any] | None = None) -> None:
        check_reward(options, function)  # before a process is started
        self.options = options
        self._names = _names(options, function)
        self._forms: dict[int, Callable[[Attempt], float]] = {}
        self._graders: list[int] = []
        specs = []
        for index, term in enumerate(options.terms):
            at = f"reward.terms[{index}].options"
            if index == 0 and function is not None:
                specs.append(GraderSpec("function", {}, function))
                self._graders.append(index)
            elif term.kind == "overlong":  # it needs more than the response, and no time
                self._forms[index] = _overlong(term, at)
            else:
                specs.append(GraderSpec(term.kind, term.options))
                self._graders.append(index)
        self._pool = GradingPool(
            specs,
            processes=options.processes,
            deadline_seconds=options.deadline_seconds,
            memory_gib=options.memory_gib,
        )

    def score(self, attempts: Sequence[Attempt]) -> list[Reward]:
        """Rewards in the order of the attempts; waits for the grading processes."""
        return self._combine(attempts, self._submit(attempts).result())

    async def score_async(self, attempts: Sequence[Attempt]) -> list[Reward]:
        """The same without blocking the event loop."""
        return self._combine(attempts, await asyncio.wrap_future(self._submit(attempts)))

    def counts(self) -> dict[str, int]:
        """Answers graded, timed out, crashed, failed since the start, and processes replaced."""
        return self._pool.counts()

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()

    def __enter__(self) -> RewardFunction:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _submit(self, attempts: Sequence[Attempt]) -> Future[list[Verdict]]:
        items = [(g, a.response, a.problem) for g in range(len(self._graders)) for a in attempts]
        return self._pool.submit(items)

    def _combine(self, attempts: Sequence[Attempt], verdicts: list[Verdict]) -> list[Reward]:
        count = len(attempts)
        by_term = {term: verdicts[i * count : (i + 1) * count] for i, term in enumerate(self._graders)}
        return [self._one(attempt, {t: v[i] for t, v in by_term.items()}) for i, attempt in enumerate(attempts)]

    def _one(self, attempt: Attempt, verdicts: dict[int, Verdict]) -> Reward:
        shares: dict[str, float] = {}
        for index, term in enumerate(self.options.terms):
            if index in self._forms:
                score = self._forms[index](attempt)
            else:
                grade = verdicts[index].grade
                score = 0.0 if grade is None else grade.score
            shares[self._names[index]] = term.worst + score * (term.best - term.worst)
        ungraded = next((v for v in verdicts.values() if v.grade is None), None)
        excluded = ungraded is not None and self.options.ungraded == "exclude"
        first = verdicts[0].grade
        return Reward(
            value=math.nan if excluded else sum(shares.values()),
            right=first is not None and first.score >= 1.0,
            excluded=excluded,
            terms=shares,
            answer=first.answer if first else "",
            how=first.how if first else Found.NOTHING,
            outcome=ungraded.outcome if ungraded else Outcome.GRADED,
            problem=ungraded.detail if ungraded else "",
        )


def _names(options: RewardConfig, function: Callable[..., Any] | None) -> list[str]:
    """A name per term: its kind, numbered where a kind occurs again."""
    names: list[str] = []
    for index, term in enumerate(options.terms):
        name = getattr(function, "__name__", "function") if index == 0 and function is not None else term.kind
        names.append(name if name not in names else f"{name}_{index}")
    return names


def _overlong(term: TermConfig, at: str) -> Callable[[Attempt], float]:
    options = parse(shaping.OverlongConfig, term.options, at=at)
    return lambda attempt: shaping.overlong_score(options, attempt.tokens, truncated=attempt.truncated)


def reward_metrics(rewards: Sequence[Reward]) -> dict[str, float]:
    """Fractions and means over a batch; the mean value is over what was not excluded, if anything."""
    count = max(1, len(rewards))
    kept = [r.value for r in rewards if not r.excluded]
    metrics = {
        **({"reward/mean": sum(kept) / len(kept)} if kept else {}),  # of nothing there is no mean, and 0 would be a lie
        "reward/right": sum(r.right for r in rewards) / count,
        "reward/excluded": sum(r.excluded for r in rewards) / count,
        "reward/no_answer": sum(r.outcome is Outcome.GRADED and r.how is Found.NOTHING for r in rewards) / count,
    }
    for outcome in (Outcome.TIMEOUT, Outcome.CRASH, Outcome.ERROR):
        metrics[f"reward/{outcome.value}"] = sum(r.outcome is outcome for r in rewards) / count
    for name in rewards[0].terms if rewards else {}:
        metrics[f"reward/term_{name.replace(':', '.')}"] = sum(r.terms[name] for r in rewards) / count
    return metrics


def warn_constant_reward(rewards: Sequence[Reward], attempts: Sequence[Attempt]) -> str | None:
    """A warning with the likely reason when no response of a batch is better than another: nothing can be learned."""
    values = {r.value for r in rewards if not r.excluded}
    if len(rewards) < 2 or len(values) > 1:
        return None
    if not values:
        kinds = collections.Counter(r.outcome.value for r in rewards)
        said = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        return f"None of {len(rewards)} responses could be graded ({said}); the first: {rewards[0].problem}"
    reasons = {
        "were cut off at the length limit": sum(a.truncated for a in attempts),
        "gave no answer": sum(r.how is Found.NOTHING and r.outcome is Outcome.GRADED for r in rewards),
        "could not be graded": sum(r.outcome is not Outcome.GRADED for r in rewards),
        "answered wrongly": sum(r.how is not Found.NOTHING and not r.right for r in rewards),
        "answered rightly": sum(r.right for r in rewards),
    }
    said = ", ".join(f"{n} {reason}" for reason, n in reasons.items() if n)
    return (
        f"All {len(rewards)} rewards are {next(iter(values)):g}, so nothing can be learned from this batch: {said}. "
        f"The first answer was {rewards[0].answer!r}, expected {attempts[0].problem.answers[0]!r}."
    )
