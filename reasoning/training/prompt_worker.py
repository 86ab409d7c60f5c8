"""The prompt worker: asks problems, in an order that is a pure function of the seed and the position."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from embodied.random import derive_seed
from embodied.scheduler import Output, Worker, WorkerContext
from reasoning.models.loading import open_tokenizer
from reasoning.problems.order import ProblemOrder
from reasoning.problems.record import Problem
from reasoning.prompts import PromptConfig, Prompter
from reasoning.training.messages import Asked, Question, Round


@dataclasses.dataclass(frozen=True)
class PromptWorkerOptions:
    """model: whose tokenizer it is. prompt: how problems are rendered. problems: to train on. held_out: to evaluate on.
    group_size, attempts: answers to each, in training and in evaluation. evaluation_seed: of the latter's draws."""

    model: str
    prompt: PromptConfig
    problems: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    group_size: int
    attempts: int
    evaluation_seed: int


class PromptWorker(Worker):
    """Owns the problems."""

    questions = Output(Question)

    def __init__(self, context: WorkerContext, options: PromptWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: PromptWorkerOptions = options

    async def setup(self, announced: Mapping[str, Any]) -> Asked:
        """Render all prompts once, to know how long they are."""
        options = self.options
        with self.timed("render prompts"):
            prompter = Prompter(open_tokenizer(options.model), options.prompt)
            self._prompts = [prompter.tokens(problem) for problem in options.problems]
            self._held_out = [prompter.tokens(problem) for problem in options.held_out]
        self._order = ProblemOrder(len(options.problems), derive_seed(self.context.seed, "problems"))
        longest = max(len(tokens) for tokens in [*self._prompts, *self._held_out])
        return Asked(longest, len(self._prompts), len(self._held_out))

    async def ask(self, round: Round) -> None:
        """Hand on the questions of a round."""
        if round.purpose == "evaluate":
            indices, prompts = range(round.first, round.first + round.count), self._held_out
        else:
            indices, prompts = self._order.take(round.first, round.count), self._prompts
        for number, index in enumerate(indices, start=round.first):
            seeds = self._seeds(round, number, index)
            await self.questions.put(Question(number, index, torch.tensor(prompts[index]), seeds), key=number)
        await self.questions.end()

    def _seeds(self, round: Round, number: int, index: int) -> tuple[int, ...]:
        options = self.options
        if round.purpose == "train":
            seed = self.context.seed
            return tuple(derive_seed(seed, "generate", number, member) for member in range(options.group_size))
        # of the problem itself, so that an evaluation by command draws the same
        key = options.held_out[index].key
        seed = options.evaluation_seed
        return tuple(derive_seed(seed, "evaluation", key, attempt) for attempt in range(options.attempts))
