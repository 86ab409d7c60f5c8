"""Accuracy of several attempts per problem, and how sure one can be of it.

pass@k: the chance that at least one of k attempts is right, by the unbiased estimator of Chen et al., "Evaluating large
language models trained on code" (2021). avg@n is the mean over all n attempts, which is pass@1. maj@k: the chance that
the most frequent answer of k attempts is right. Intervals are Wilson's with the problems as trials: attempts at one
problem are not independent, and a problem's score between 0 and 1 varies at most as much as a coin of the same mean.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence

from embodied.runs.metrics import wilson_interval
from reasoning.generation.api import Finish
from reasoning.problems.record import Problem
from reasoning.rewards.equality import canonical
from reasoning.rewards.extraction import Found
from reasoning.rewards.pool import Outcome


@dataclasses.dataclass(frozen=True)
class Try:
    """One attempt, judged. answer: what was taken for it. detail: why it could not be graded."""

    response: str
    tokens: int
    finish: Finish
    right: bool
    answer: str
    how: Found
    outcome: Outcome
    reward: float | None
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class ProblemResult:
    """A problem with all its tries, in the order of their numbers."""

    problem: Problem
    tries: tuple[Try, ...]

    @property
    def right(self) -> int:
        """How many tries are right."""
        return sum(t.right for t in self.tries)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over problems with its 95 % interval. problems: how many. samples: tries it rests on."""

    value: float
    low: float
    high: float
    problems: int
    samples: int


def pass_at_k(tries: int, right: int, k: int) -> float:
    """Unbiased chance that at least one of k tries is right, from `right` of `tries`."""
    if not 1 <= k <= tries:
        raise ValueError(f"pass@{k} needs k between 1 and the number of tries, {tries}")
    return 1.0 - math.comb(tries - right, k) / math.comb(tries, k)


def majority(tries: Sequence[Try]) -> float:
    """1 if the most frequent answer is right, 0 if not; with a tie, the share of right ones among the most frequent.

    Equal numbers in other writing count as one answer; tries without an answer do not vote.
    """
    votes: collections.Counter[str] = collections.Counter()
    right: dict[str, bool] = {}
    for attempt in tries:
        if attempt.how is not Found.NOTHING and attempt.outcome is Outcome.GRADED:
            spelling = canonical(attempt.answer)
            votes[spelling] += 1
            right[spelling] = right.get(spelling, False) or attempt.right
    if not votes:
        return 0.0
    most = max(votes.values())
    leaders = [spelling for spelling, count in votes.items() if count == most]
    return sum(right[spelling] for spelling in leaders) / len(leaders)


def majority_at_k(tries: Sequence[Try], k: int) -> float:
    """Mean of `majority` over the disjoint blocks of k tries; what does not fill a block is left out."""
    blocks = [tries[start : start + k] for start in range(0, len(tries) - k + 1, k)]
    return sum(majority(block) for block in blocks) / len(blocks)


def ks(tries: int) -> list[int]:
    """1, 2, 4, ... and the number of tries itself."""
    return sorted({*(2**i for i in range(tries.bit_length()) if 2**i <= tries), tries})


def estimates(results: Sequence[ProblemResult]) -> dict[str, Estimate]:
    """avg@n, pass@k and maj@k for the powers of two up to the number of tries, which every problem must share.

    Raises ValueError when problems have different numbers of tries.
    """
    counts = {len(result.tries) for result in results}
    if len(counts) != 1:
        raise ValueError(f"every problem needs the same number of tries; there are {sorted(counts)}")
    n = counts.pop()
    scores: dict[str, list[float]] = {f"avg@{n}": [r.right / n for r in results]}
    for k in ks(n):
        scores[f"pass@{k}"] = [pass_at_k(n, r.right, k) for r in results]
    for k in ks(n)[1:]:
        scores[f"maj@{k}"] = [majority_at_k(r.tries, k) for r in results]
    return {name: _estimate(values, n) for name, values in scores.items()}


def _estimate(values: list[float], tries: int) -> Estimate:
    value = sum(values) / len(values)
    # a float count of successes is meant: the formula needs only their sum
    low, high = wilson_interval(sum(values), len(values))  # type: ignore[arg-type]
    return Estimate(value, low, high, len(values), len(values) * tries)


def rates(results: Sequence[ProblemResult]) -> dict[str, float]:
    """Fractions of tries that were cut off, gave no answer, or could not be graded; and response lengths in tokens."""
    tries = list(_tries(results))
    lengths = sorted(t.tokens for t in tries)
    right = [t.tokens for t in tries if t.right]
    return {
        "truncated": sum(t.finish is Finish.LENGTH for t in tries) / len(tries),
        "no_answer": sum(t.outcome is Outcome.GRADED and t.how is Found.NOTHING for t in tries) / len(tries),
        "ungraded": sum(t.outcome is not Outcome.GRADED for t in tries) / len(tries),
        "boxed": sum(t.how is Found.BOXED for t in tries) / len(tries),
        "tokens_mean": sum(lengths) / len(lengths),
        "tokens_median": float(lengths[len(lengths) // 2]),
        "tokens_longest": float(lengths[-1]),
        "tokens_mean_of_right": sum(right) / len(right) if right else 0.0,
    }


def _tries(results: Sequence[ProblemResult]) -> Iterator[Try]:
    for result in results:
        yield from result.tries
