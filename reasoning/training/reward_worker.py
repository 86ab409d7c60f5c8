"""The reward worker: grades every group while others are still being generated, and hands it on."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import torch

from embodied.scheduler import Input, Output, Worker, WorkerContext
from embodied.scheduler.tasks import together
from reasoning.evaluation.metrics import Try
from reasoning.evaluation.run import make_try
from reasoning.generation.api import Finish
from reasoning.models.loading import open_tokenizer
from reasoning.problems.record import Problem
from reasoning.rewards.reward import Attempt, Reward, RewardConfig, RewardFunction, reward_metrics, warn_constant_reward
from reasoning.training.algorithm import AlgorithmConfig, has_signal
from reasoning.training.messages import Graded, Group, Judged, Round


@dataclasses.dataclass(frozen=True)
class RewardWorkerOptions:
    """model: whose tokenizer it is. reward: how responses are graded. function: a user's own instead of the first term.
    problems, held_out: what was asked. algorithm: what is learnt from; where it asks again for uniform groups (dynamic
    sampling), groups are held back until they are called for."""

    model: str
    reward: RewardConfig
    function: Callable[..., Any] | None
    problems: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    algorithm: AlgorithmConfig

    @property
    def hold(self) -> bool:
        """Keep groups back."""
        return self.algorithm.uniform_groups == "resample"


class RewardWorker(Worker):
    """Owns the grading processes."""

    groups = Input(Group)
    graded = Output(Group)

    def __init__(self, context: WorkerContext, options: RewardWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: RewardWorkerOptions = options
        self._held: dict[int, Group] = {}

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Start the grading processes."""
        with self.timed("start graders"):
            self._tokenizer = open_tokenizer(self.options.model)
            # it waits for its processes, and a worker must not keep the others from starting
            self._reward = await asyncio.to_thread(RewardFunction, self.options.reward, self.options.function)

    async def close(self) -> None:
        """End them."""
        if hasattr(self, "_reward"):
            await asyncio.to_thread(self._reward.close)

    async def grade(self, round: Round) -> Graded:
        """Grade a round of training answers and hand each group on, or hold it back."""
        rewards: list[Reward] = []
        attempts: list[Attempt] = []
        informative: dict[int, bool] = {}

        async def handle(group: Group) -> None:
            given, found = await self._score(group, self.options.problems)
            attempts.extend(given)
            rewards.extend(found)
            group = dataclasses.replace(group, scores=torch.tensor([reward.value for reward in found]))
            informative[group.number] = has_signal(group, self.options.algorithm)
            if self.options.hold:
                self._held[group.number] = group
            else:
                await self.graded.put(group, key=group.number, weight=group.weight)

        await together([self._as_they_come(handle)])
        if not self.options.hold:
            await self.graded.end()
        warning = warn_constant_reward(rewards, attempts)
        return Graded(
            len(rewards),
            reward_metrics(rewards) if rewards else {},
            tuple(attempt.tokens for attempt in attempts),
            informative if self.options.hold else {},
            _warnings(warning, rewards),
        )

    async def hand_on(self, numbers: tuple[int, ...]) -> None:
        """Hand on those of the held groups, and forget the others."""
        for place, number in enumerate(numbers):
            if number in self._held:
                group = self._held[number]
                # by its place, so that those who learn get equally many
                await self.graded.put(group, key=place, weight=group.weight)
        self._held.clear()
        await self.graded.end()

    async def judge(self, round: Round) -> list[Judged]:
        """Grade the answers of an evaluation."""
        judged: list[Judged] = []

        async def handle(group: Group) -> None:
            attempts, rewards = await self._score(group, self.options.held_out)
            judged.append(Judged(group.problem, tuple(map(_try, attempts, rewards, group.truncated.tolist()))))

        await together([self._as_they_come(handle)])
        return sorted(judged, key=lambda one: one.problem)

    async def _as_they_come(self, handle: Callable[[Group], Coroutine[Any, Any, None]]) -> None:
        """Handle every group of the round, each while others are still awaited."""
        async with asyncio.TaskGroup() as tasks:
            async for _, group in self.groups:
                tasks.create_task(handle(group))

    async def _score(self, group: Group, problems: tuple[Problem, ...]) -> tuple[list[Attempt], list[Reward]]:
        attempts = []
        for tokens, length, truncated in zip(
            group.tokens, group.lengths.tolist(), group.truncated.tolist(), strict=True
        ):
            text = str(self._tokenizer.decode(tokens[:length].tolist(), skip_special_tokens=True))
            attempts.append(Attempt(problems[group.problem], text, length, truncated))
        return attempts, await self._reward.score_async(attempts)


def _try(attempt: Attempt, reward: Reward, truncated: bool) -> Try:
    finish = Finish.LENGTH if truncated else Finish.EOS
    return make_try(attempt.response, attempt.tokens, finish, reward)


def _warnings(constant: str | None, rewards: list[Reward]) -> tuple[str, ...]:
    ungraded = collections.Counter(str(reward.outcome.value) for reward in rewards if reward.problem)
    found = [constant] if constant else []
    if ungraded:
        said = ", ".join(f"{count} {kind}" for kind, count in ungraded.most_common())
        first = next(reward.problem for reward in rewards if reward.problem)
        found.append(f"Not graded: {said} of {len(rewards)} responses; the first: {first}")
    return tuple(found)
