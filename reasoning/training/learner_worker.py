"""The learner worker: turns graded groups into a better model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.algorithms import alarms, statistics
from embodied.algorithms.staleness import staleness
from embodied.algorithms.statistics import Maximum, Mean, Statistic
from embodied.errors import CheckpointError
from embodied.learner.learner import LearnerConfig
from embodied.learner.sharding import whole_state
from embodied.learner.update import Update
from embodied.random import derive_seed
from embodied.scheduler import Input, WorkerContext
from reasoning.generation.api import Sampling
from reasoning.models.actor import Actor
from reasoning.models.loading import open_model, open_tokenizer
from reasoning.models.saving import save_model
from reasoning.training.algorithm import AlgorithmConfig, ReasoningLoss, Samples, make_samples, trim
from reasoning.training.messages import Group
from reasoning.training.pieces import LayoutConfig, divide
from reasoning.training.trained import Share, TrainedWorker

# of the log-probability of one token, between generation and learning in float32
_RATIO_TOLERANCE = 1e-3
_LOW_PRECISION_GAP = {"mean_tolerance": 0.02, "max_tolerance": 1.0}


@dataclasses.dataclass(frozen=True)
class LearnerWorkerOptions:
    """model: to begin with. algorithm, learner, layout: how it is trained. sampling: of training. exact: generation is
    in float32 too, so that its log-probabilities must be the learner's. alarms: where the batch behind one is saved."""

    model: str
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    layout: LayoutConfig
    sampling: Sampling
    exact: bool
    alarms: Path


class LearnerWorker(TrainedWorker):
    """Owns the model that is trained and its optimiser; several of them are one sharded model."""

    groups = Input(Group)

    def __init__(self, context: WorkerContext, options: LearnerWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: LearnerWorkerOptions = options
        self._warnings: list[str] = []

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Load the model, and make its optimiser."""
        options, device = self.options, self.context.device
        with self.timed("build learner"):
            seed = derive_seed(self.context.seed, "model")
            self.tokenizer = open_tokenizer(options.model)
            model = open_model(options.model, seed=seed, dtype=torch.float32, device=device)
            self.build(Actor(model), "actor", "evaluate", options.learner, options.layout, options.alarms)
            self.loss = ReasoningLoss(options.algorithm, self.context.ranks)

    def weights(self) -> dict[str, Any]:
        """The model's parameters and buffers themselves, by the model's own names."""
        return self.module.model.state_dict(keep_vars=True)

    async def learn(self, iteration: int) -> Update:
        """Read this iteration's groups and improve the model with them."""
        algorithm, ranks = self.options.algorithm, self.context.ranks
        groups = sorted([group async for _, group in self.groups], key=lambda group: group.number)
        with self.timed("advantages"):
            samples, idle, record = make_samples(groups, algorithm, ranks)
            everywhere = self.everywhere(samples)
        warnings: list[str] = []
        if len(everywhere) == 0:
            warnings.append(
                "No response of this iteration counts (all were dropped, masked or could not be graded); no step was "
                "taken."
            )
        else:
            record |= staleness(self.version - samples.oldest, algorithm.max_staleness)
            if algorithm.old_logprobs == "learner":
                with self.timed("log-probabilities"):
                    self._recompute(samples, idle, everywhere)
            if iteration >= algorithm.critic_warmup:
                with self.timed("update"):
                    steps = self.epochs(samples, idle, everywhere, iteration, self._share_of)
                record = statistics.merge(record, steps)
                self.version += 1
        metrics = statistics.report(statistics.all_reduce(record, ranks))
        warnings += self._warnings
        self._warnings = []
        return Update(metrics, tuple(warnings), self.version)

    def _share_of(self, batch: Samples, first: bool) -> Share:
        denominator = self.loss.denominator(batch).to(self.context.device)

        def share(part: Samples) -> tuple[torch.Tensor, dict[str, Statistic]]:
            logprobs, entropy = self._evaluate(part)
            gap = self._check_ratio(logprobs, part) if first else {}
            loss, found = self.loss(part, logprobs, entropy, denominator)
            alarms.require_finite_loss(loss, logprobs=logprobs, advantages=part.advantages)
            return loss, found | gap

        return share

    def _evaluate(self, part: Samples) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self.module, Actor)
        return self.module.evaluate(
            part.sequence,
            part.prompt_length,
            part.length,
            self.options.sampling,
            row_tokens=self.layout.packing,
            entropy=self.options.algorithm.entropy_coefficient > 0,
        )

    def _check_ratio(self, logprobs: torch.Tensor, part: Samples) -> dict[str, Statistic]:
        """Before the first step of an iteration, generation and learning must agree about what was drawn."""
        exact = self.options.learner.precision == "float32"
        # only what the current weights drew can agree with them
        fresh = part.mask & (part.oldest == self.version)[:, None]
        if exact and self.options.algorithm.old_logprobs == "learner":
            alarms.require_ratio_one(logprobs, part.old_logprobs, part.mask, tolerance=_RATIO_TOLERANCE)
        if exact and self.options.exact:
            alarms.require_ratio_one(logprobs, part.engine_logprobs, fresh, tolerance=_RATIO_TOLERANCE)
        else:
            warning = alarms.warn_logprob_gap(logprobs, part.engine_logprobs, fresh, **_LOW_PRECISION_GAP)
            self._warnings += [warning] if warning else []
        gap = (logprobs - part.engine_logprobs).detach().abs()
        return {"policy/logprob_gap": Mean.of(gap, fresh), "policy/logprob_gap_max": Maximum.of(gap, fresh)}

    @torch.no_grad()
    def _recompute(self, samples: Samples, idle: Samples, everywhere: torch.Tensor) -> None:
        """Old log-probabilities under the weights before the update; every rank runs as many passes."""
        owner, tokens = everywhere[:, 1], everywhere[:, 2]
        pieces = {rank: divide(tokens[owner == rank].tolist(), self.layout) for rank in owner.unique().tolist()}
        own = pieces.get(self.context.rank, [])
        for number in range(max(map(len, pieces.values()))):
            rows = own[number] if number < len(own) else []
            part = (trim(samples[rows]) if rows else idle).to(self.context.device)
            with self.learner.arithmetic():
                logprobs = self._evaluate(part)[0].float().cpu()
            if rows:
                samples.old_logprobs[rows, : logprobs.shape[1]] = logprobs

    async def export(self, folder: Path) -> None:
        """Save the model and its tokenizer in transformers' layout; every rank must call, the first one writes."""
        assert isinstance(self.module, Actor)
        model = self.module.model
        weights = whole_state(model)
        if self.context.rank == 0:
            save_model(model, weights, folder)
            try:
                self.tokenizer.save_pretrained(folder)
            except Exception as error:  # the library raises no other class for a full disk
                raise CheckpointError(
                    f"the tokenizer could not be written to {folder}: {error}. Free some space, or choose another "
                    "folder."
                ) from error
