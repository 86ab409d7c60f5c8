"""Asking a model every problem several times, and grading while it still answers.

Each try has its own seed, so the result does not depend on how many responses are generated at once. Evaluation has its
own sampling settings, independent of training's.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from embodied.config import config
from embodied.random import derive_seed
from reasoning.evaluation.metrics import ProblemResult, Try
from reasoning.generation.api import Engine, Finish, Request, Response, Sampling
from reasoning.problems.record import Problem
from reasoning.prompts import Prompter
from reasoning.rewards.reward import Attempt, Reward, RewardFunction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@config
class EvaluationConfig:
    """attempts: tries at each problem. sampling: how they are drawn. seed: of the draws."""

    attempts: int = 1
    sampling: Sampling = Sampling(decode="greedy", max_new_tokens=1024)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it must be at least 1")
        if self.sampling.decode == "greedy" and self.attempts > 1:
            raise ValueError(f"{self.attempts} attempts with decode=greedy are all the same; use decode=sample")


async def evaluate(
    engine: Engine,
    prompter: Prompter,
    problems: Sequence[Problem],
    reward: RewardFunction,
    options: EvaluationConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProblemResult]:
    """Results in the order of the problems. progress: is told how many of how many responses have come."""
    n = options.attempts
    requests = [
        Request(
            index * n + attempt,
            tokens,
            options.sampling,
            derive_seed(options.seed, "evaluation", problem.key, attempt),
        )
        for index, (problem, tokens) in enumerate((p, prompter.tokens(p)) for p in problems)
        for attempt in range(n)
    ]
    tries: dict[int, dict[int, Try]] = collections.defaultdict(dict)
    grading: list[asyncio.Task[None]] = []

    async def grade(response: Response) -> None:
        index, attempt = divmod(response.request.id, n)
        text = response_text(response, prompter.tokenizer)
        given = Attempt(problems[index], text, len(response.tokens), response.truncated)
        (verdict,) = await reward.score_async([given])
        tries[index][attempt] = make_try(text, len(response.tokens), response.finish, verdict)

    async for response in engine.generate(requests):
        grading.append(asyncio.create_task(grade(response)))
        progress(len(grading), len(requests))
    await asyncio.gather(*grading)
    return [
        ProblemResult(problem, tuple(tries[index][attempt] for attempt in range(n)))
        for index, problem in enumerate(problems)
    ]


def response_text(response: Response, tokenizer: PreTrainedTokenizerBase) -> str:
    """What the model wrote, without special tokens."""
    return str(tokenizer.decode(response.tokens.tolist(), skip_special_tokens=True))


def make_try(text: str, tokens: int, finish: Finish, reward: Reward) -> Try:
    """The record of one response and what was made of it."""
    return Try(
        response=text,
        tokens=tokens,
        finish=finish,
        right=reward.right,
        answer=reward.answer,
        how=reward.how,
        outcome=reward.outcome,
        reward=None if math.isnan(reward.value) else reward.value,
        detail=reward.problem,
    )
