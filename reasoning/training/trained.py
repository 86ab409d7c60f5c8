"""What the learner and the critic have in common: a module, sharded over the stage's ranks, and its optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.algorithms import alarms, statistics
from embodied.algorithms.statistics import Mean, Statistic
from embodied.errors import CorrectnessAlarm
from embodied.learner.learner import Learner, LearnerConfig
from embodied.learner.residency import Parking, resident_bytes
from embodied.learner.sharding import load_whole_state, recompute_activations, shard, whole_state
from embodied.random import derive_seed, generator
from embodied.runs.state_file import keep_evidence
from embodied.scheduler import Worker
from embodied.scheduler.trace import LOAD
from reasoning.models.actor import Actor, Critic
from reasoning.training.algorithm import Samples, trim
from reasoning.training.pieces import LayoutConfig, plan, sequence_lengths

Share = Callable[[Samples], tuple[torch.Tensor, dict[str, Statistic]]]


class TrainedWorker(Worker):
    """Owns a module that learns; several of them are one sharded module."""

    collective = True

    def build(
        self, module: Actor | Critic, role: str, method: str, options: LearnerConfig, layout: LayoutConfig, saved: Path
    ) -> None:
        """Take over `module`, whose `method` runs its forward pass. saved: where the batch behind an alarm goes."""
        self.module, self.role, self.saved = module.eval(), role, saved
        self.learning, self.layout = options, layout
        self.version = 0
        self._parking = Parking()
        if options.activations == "recompute":
            recompute_activations(module.blocks())
        if self.context.world > 1:
            shard(module, module.blocks(), (method,), self.context.ranks, self.context.device)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.learner = Learner({role: trained}, options, self.context.device)

    def memory(self) -> int:
        """Bytes of parameters, gradients and optimiser state, as they will be once it has stepped."""
        return 4 * resident_bytes(self.module.state_dict().values())

    def unload(self) -> None:
        """Park parameters, gradients and optimiser state."""
        with self.timed("unload", LOAD):
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            self._parking.unload([*self.module.state_dict().values(), *self.learner.tensors(), *gradients])

    def load(self) -> None:
        """Bring them back."""
        with self.timed("load", LOAD):
            self._parking.load()

    def everywhere(self, samples: Samples) -> torch.Tensor:
        """int64 [N, 3]: order, rank and tokens of all ranks' samples; every rank must call."""
        rank = torch.full_like(samples.order, self.context.rank)
        own = torch.stack([samples.order, rank, sequence_lengths(samples)], dim=1)
        return statistics.gather_rows(own, self.context.ranks)[0]

    def epochs(
        self,
        samples: Samples,
        idle: Samples,
        everywhere: torch.Tensor,
        iteration: int,
        share_of: Callable[[Samples, bool], Share],
    ) -> dict[str, Statistic]:
        """All passes over the samples. share_of(batch, first): of one global batch, of which this rank has `batch` (or
        the idle sample), the function from a micro-batch to its share of the loss; first: no step was taken before."""
        options, rank = self.learning, self.context.rank
        torch.manual_seed(derive_seed(self.context.seed, f"learn {self.role}", rank, iteration))  # dropout
        before = alarms.fingerprint(self.module.named_parameters()) if self.version == 0 else None
        record: dict[str, Statistic] = {}
        taken, stopped = 0, False
        self.module.train()
        for epoch in range(options.epochs):
            source = generator(self.context.seed, f"shuffle {self.role}", iteration, epoch)
            for rows, pieces, passes in plan(
                everywhere, rank, self.layout, batch=options.global_batch, generator=source
            ):
                batch = samples[rows]
                share = share_of(batch if len(batch) else idle, taken == 0)
                own = [trim(batch[piece]).to(self.context.device) for piece in pieces]
                own += [idle.to(self.context.device)] * (passes - len(own))
                step_record, accepted = self._step(own, share)
                record = statistics.merge(record, step_record)
                if not accepted:
                    stopped = True
                    break
                taken += 1
            if stopped:
                break
        self.module.eval()
        if before is not None and taken and _signal(record):
            after = alarms.fingerprint(self.module.named_parameters())
            alarms.require_change(before, after, self.context.ranks, self.context.device)
        counted = torch.ones(1, dtype=torch.bool)
        prefix = "learner" if self.role == "actor" else self.role
        record[f"{prefix}/steps"] = Mean.of(torch.tensor([float(taken)]), counted)
        record[f"{prefix}/stopped_early"] = Mean.of(torch.tensor([float(stopped)]), counted)
        if prefix != "learner" and "learner/gradient_norm" in record:
            record[f"{prefix}/gradient_norm"] = record.pop("learner/gradient_norm")
        return record

    def _step(self, pieces: list[Samples], share: Share) -> tuple[dict[str, Statistic], bool]:
        limit = self.learning.target_kl

        def accept(step_record: dict[str, Statistic]) -> bool:
            if limit is None or "policy/approx_kl" not in step_record:
                return True
            return float(step_record["policy/approx_kl"].all_reduce(self.context.ranks).value()) <= limit

        try:
            return self.learner.step(pieces, share, accept=accept)
        except CorrectnessAlarm as alarm:
            path = self.saved / f"batch_{self.role}_version_{self.version}_rank_{self.context.rank}"
            batch = {str(i): piece.to_tensordict().to_dict() for i, piece in enumerate(pieces)}
            raise CorrectnessAlarm(f"{alarm} {keep_evidence(path, batch)}") from alarm

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser and version, whole, from the first rank; every rank must call."""
        state = {"module": whole_state(self.module), "learner": self.learner.state_dict(), "version": self.version}
        return state if self.context.rank == 0 else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there; tensors shared with others stay shared."""
        load_whole_state(self.module, state["module"], noun="model")
        self.learner.load_state_dict(dict(state["learner"]))
        self.version = state["version"]


def _signal(record: dict[str, Statistic]) -> bool:
    """Whether there was a gradient at all: groups whose scores are all equal have none."""
    norm = record.get("learner/gradient_norm")
    return norm is not None and float(norm.value()) > 0
