"""The critic worker: values every token of the answers, and learns from what became of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.algorithms import aggregate, alarms, loss_denominator, statistics, value_terms
from embodied.algorithms.aggregation import Aggregation
from embodied.algorithms.statistics import Statistic
from embodied.config import config
from embodied.learner.learner import LearnerConfig
from embodied.learner.update import Update
from embodied.random import derive_seed
from embodied.scheduler import Input, Output, WorkerContext
from reasoning.models.actor import Critic
from reasoning.models.loading import open_model
from reasoning.training.algorithm import AlgorithmConfig, Samples, make_samples
from reasoning.training.messages import Group
from reasoning.training.pieces import LayoutConfig, divide
from reasoning.training.reference_worker import sequences
from reasoning.training.trained import Share, TrainedWorker


@config
class CriticConfig:
    """source: model to begin with; null takes the actor's. learner: how it is trained, as for the actor.
    value_clip, huber_delta: of the value loss."""

    source: str | None = None
    learner: LearnerConfig = dataclasses.field(default_factory=LearnerConfig)
    value_clip: float | None = None
    huber_delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("value_clip", "huber_delta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0, or null to switch it off")


@dataclasses.dataclass(frozen=True)
class CriticWorkerOptions:
    """model: to begin with. critic, algorithm, layout: how it is trained. alarms: where the batch behind one goes."""

    model: str
    critic: CriticConfig
    algorithm: AlgorithmConfig
    layout: LayoutConfig
    alarms: Path


class CriticWorker(TrainedWorker):
    """Owns the critic and its optimiser."""

    groups = Input(Group)
    valued = Output(Group)

    def __init__(self, context: WorkerContext, options: CriticWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: CriticWorkerOptions = options
        self._waiting: dict[int, list[Group]] = {}  # by iteration, until they are learnt from

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Load the model, and make its optimiser."""
        options, device = self.options, self.context.device
        with self.timed("build critic"):
            seed = derive_seed(self.context.seed, "model")
            critic = Critic(open_model(options.model, seed=seed, dtype=torch.float32, device=device)).to(device)
            self.build(critic, "critic", "values", options.critic.learner, options.layout, options.alarms)

    async def value(self, iteration: int) -> None:
        """Add values to every group of a round."""
        kept = self._waiting.setdefault(iteration, [])
        if self.context.world == 1:
            async for key, group in self.groups:
                with self.timed("value"):
                    group = dataclasses.replace(group, values=self._values(group))
                kept.append(group)
                await self.valued.put(group, key, weight=group.weight)
        else:
            await self._value_together(kept)
        await self.valued.end()

    async def _value_together(self, kept: list[Group]) -> None:
        """With a sharded critic all ranks run as many passes as the one that has most."""
        entries = [entry async for entry in self.groups]
        own = torch.tensor([[len(entries)]])
        most = int(statistics.gather_rows(own, self.context.ranks)[0].max())
        for number in range(most):
            with self.timed("value"):
                if number < len(entries):
                    key, group = entries[number]
                    group = dataclasses.replace(group, values=self._values(group))
                    kept.append(group)
                    await self.valued.put(group, key, weight=group.weight)
                else:
                    one = torch.ones(1, dtype=torch.int64, device=self.context.device)
                    with torch.no_grad():
                        self._forward(torch.zeros_like(one)[:, None].expand(1, 2), one, one)

    @torch.no_grad()
    def _values(self, group: Group) -> torch.Tensor:
        sequence, prompt = sequences(group)
        found, device = torch.zeros(group.tokens.shape), self.context.device
        # a sharded critic needs the same number of passes on every rank: one a group
        whole = [list(range(group.size))]
        lengths = (prompt + group.lengths).tolist()
        for rows in divide(lengths, self.layout) if self.context.world == 1 else whole:
            values = self._forward(sequence[rows].to(device), prompt[rows].to(device), group.lengths[rows].to(device))
            found[rows, : values.shape[1]] = values.float().cpu()
        return found

    def _forward(self, sequence: torch.Tensor, prompt_length: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.module, Critic)
        with self.learner.arithmetic():
            return self.module.values(sequence, prompt_length, length, row_tokens=self.layout.packing)

    async def learn(self, iteration: int) -> Update:
        """Improve the critic with an iteration's groups."""
        groups = sorted(self._waiting.pop(iteration, []), key=lambda group: group.number)
        with self.timed("returns"):
            samples, idle, _ = make_samples(groups, self.options.algorithm, self.context.ranks)
            everywhere = self.everywhere(samples)
        if len(everywhere) == 0:
            return Update({}, (), self.version)
        with self.timed("update"):
            record = self.epochs(samples, idle, everywhere, iteration, self._share_of)
        self.version += 1
        return Update(statistics.report(statistics.all_reduce(record, self.context.ranks)), (), self.version)

    def _share_of(self, batch: Samples, first: bool) -> Share:
        options, mode = self.options.critic, Aggregation.TOKEN_MEAN
        denominator = loss_denominator(batch.mask, mode, ranks=self.context.ranks).to(self.context.device)

        def share(part: Samples) -> tuple[torch.Tensor, dict[str, Statistic]]:
            values = self._forward(part.sequence, part.prompt_length, part.length)
            terms, found = value_terms(
                values,
                part.state_values,
                part.returns,
                part.mask,
                value_clip=options.value_clip,
                huber_delta=options.huber_delta,
            )
            loss = aggregate(terms.terms, terms.mask, mode, denominator)
            alarms.require_finite_loss(loss, values=values, returns=part.returns)
            return loss, found

        return share
