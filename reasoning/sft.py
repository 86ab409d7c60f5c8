"""Supervised fitting of a language model to worked solutions: what a model needs before reinforcement can improve it.

The loss is of the solution's tokens and its end alone, averaged over all of them in a batch. Sequences are packed. The
fit can stop as soon as the model solves a given share of held-out problems.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from embodied.algorithms.statistics import Mean, Statistic, report
from embodied.config import config
from embodied.errors import AssetError
from embodied.learner.learner import Learner, LearnerConfig
from reasoning.batching import pack_sequences
from reasoning.evaluation.run import EvaluationConfig, evaluate
from reasoning.generation.api import Sampling
from reasoning.generation.native import NativeEngine
from reasoning.models.loading import end_tokens
from reasoning.problems.order import ProblemOrder
from reasoning.problems.record import Problem
from reasoning.prompts import Prompter
from reasoning.rewards.reward import RewardFunction

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@config
class SFTConfig:
    """steps: at most so many optimiser steps. batch: problems of one step. lr: after `warmup` steps of linear rise;
    then it falls along a cosine to a tenth. weight_decay, grad_clip: as usual. precision: of the forward pass.
    until: stop once this share of the held-out problems is solved (greedily); None never does.
    evaluate_every: steps between such tests. max_new_tokens: of their responses. row_tokens: of a packed row.
    seed: of the order of the problems.
    """

    steps: int = 1000
    batch: int = 64
    lr: float = 3e-3
    warmup: int = 20
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    until: float | None = None
    evaluate_every: int = 50
    max_new_tokens: int = 128
    row_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "max_new_tokens", "row_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.lr <= 0 or self.warmup < 0 or self.weight_decay < 0 or self.grad_clip <= 0:
            raise ValueError(
                f"lr is {self.lr}, warmup {self.warmup}, weight_decay {self.weight_decay}, grad_clip {self.grad_clip}; "
                "expected lr and grad_clip above 0, the others at least 0"
            )
        if self.until is not None and not 0 < self.until <= 1:
            raise ValueError(f"until is {self.until}; it is a share of problems, above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class Progress:
    """One step. solved: the share of held-out problems, where it was tested."""

    step: int
    loss: float
    seconds: float
    solved: float | None = None


@dataclasses.dataclass(frozen=True)
class _Example:
    """tokens: int64 [N], prompt, solution and end. scored: bool [N - 1], where the next token is the solution's."""

    tokens: torch.Tensor
    scored: torch.Tensor


def fit(
    model: PreTrainedModel,
    prompter: Prompter,
    problems: Sequence[Problem],
    held_out: Sequence[Problem],
    reward: RewardFunction,
    options: SFTConfig,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> list[Progress]:
    """Fit the model in place. Returns the progress of every step.

    Raises AssetError when a problem has no worked solution or is too long for a packed row.
    """
    examples = [_example(problem, prompter, options.row_tokens) for problem in problems]
    order = ProblemOrder(len(examples), options.seed)
    learner = Learner({"actor": list(model.parameters())}, _learner_config(options), str(model.device))
    test = HeldOut(model, prompter, held_out, reward, options) if options.until is not None else None
    padding = int(prompter.tokenizer.pad_token_id or 0)
    history: list[Progress] = []
    start = time.monotonic()
    model.train()
    for step in range(1, options.steps + 1):
        for group in learner.optimizer.param_groups:
            group["lr"] = options.lr * _schedule(step, options)
        batch = [examples[i] for i in order.take((step - 1) * options.batch, options.batch)]
        statistics, _ = learner.step([batch], lambda b: _loss(model, b, padding, options.row_tokens))
        solved = None
        if test is not None and step % options.evaluate_every == 0:
            solved = test.solved()
        progress = Progress(step, report(statistics)["loss"], time.monotonic() - start, solved)
        history.append(progress)
        on_step(progress)
        if solved is not None and options.until is not None and solved >= options.until:
            break
    model.eval()
    return history


class HeldOut:
    """A test of the model as it is now, by an engine that takes over its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompter: Prompter,
        problems: Sequence[Problem],
        reward: RewardFunction,
        options: SFTConfig,
    ) -> None:
        self._model, self._prompter, self._problems, self._reward = model, prompter, problems, reward
        longest = max(len(prompter.tokens(problem)) for problem in problems)
        self._engine = NativeEngine(
            model,
            eos=end_tokens(model, prompter.tokenizer),
            slots=min(64, len(problems)),
            capacity=longest + options.max_new_tokens,
        )
        self._options = EvaluationConfig(sampling=Sampling(decode="greedy", max_new_tokens=options.max_new_tokens))

    def solved(self) -> float:
        """The share of the problems that are solved greedily."""
        self._engine.update_weights(self._model.state_dict(), self._engine.version + 1)
        run = evaluate(self._engine, self._prompter, self._problems, self._reward, self._options)
        results = asyncio.run(run)
        return sum(result.right for result in results) / len(results)


def require_solutions(problems: Sequence[Problem]) -> None:
    """Raise AssetError for a problem without a worked solution."""
    for problem in problems:
        if problem.solution is None:
            raise AssetError(
                f"problem {problem.origin} has no worked solution to fit to. Name its column (--solution), or use a "
                "family that has them: arithmetic, linear_equation."
            )


def _example(problem: Problem, prompter: Prompter, longest: int) -> _Example:
    require_solutions([problem])
    assert problem.solution is not None
    prompt = prompter.tokens(problem)
    solution = prompter.tokenizer.encode(problem.solution, add_special_tokens=False)
    end = prompter.tokenizer.eos_token_id
    tokens = torch.tensor([*prompt, *solution, end])
    if len(tokens) > longest:
        raise AssetError(
            f"problem {problem.origin} has {len(tokens)} tokens with its solution, more than a row of {longest}; "
            "raise row_tokens"
        )
    return _Example(tokens, torch.arange(len(tokens) - 1) >= len(prompt) - 1)


def _loss(
    model: PreTrainedModel, batch: list[_Example], padding: int, capacity: int
) -> tuple[torch.Tensor, dict[str, Statistic]]:
    # a sequence's last token predicts nothing, so it is not fed
    packed = pack_sequences([e.tokens[:-1].to(model.device) for e in batch], capacity, padding=padding)
    targets = packed.spread([e.tokens[1:].to(model.device) for e in batch])
    scored = packed.spread([e.scored.to(model.device) for e in batch])
    logits = model(
        input_ids=packed.tokens, position_ids=packed.positions, attention_mask=packed.mask(), use_cache=False
    ).logits
    losses = F.cross_entropy(logits[scored].float(), targets[scored], reduction="none")
    everything = torch.ones_like(losses, dtype=torch.bool)
    return losses.mean(), {"loss": Mean.of(losses, everything)}


def _learner_config(options: SFTConfig) -> LearnerConfig:
    return LearnerConfig(
        lr=options.lr,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=options.weight_decay,
        grad_clip=options.grad_clip,
        precision=options.precision,
    )


def _schedule(step: int, options: SFTConfig) -> float:
    if step <= options.warmup:
        return step / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))
