"""The reference worker: says how likely the model at the start would have found each answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from embodied.learner.learner import LearnerConfig
from embodied.learner.residency import Parking, resident_bytes
from embodied.random import derive_seed
from embodied.scheduler import Input, Output, Worker, WorkerContext
from embodied.scheduler.trace import LOAD
from reasoning.generation.api import Sampling
from reasoning.models.actor import Actor
from reasoning.models.loading import open_model
from reasoning.training.messages import Group
from reasoning.training.pieces import LayoutConfig, divide


@dataclasses.dataclass(frozen=True)
class ReferenceWorkerOptions:
    """model: the reference. learner: whose precision it shares. sampling: of training."""

    model: str
    learner: LearnerConfig
    layout: LayoutConfig
    sampling: Sampling


class ReferenceWorker(Worker):
    """Owns a model that never changes."""

    groups = Input(Group)
    referenced = Output(Group)

    def __init__(self, context: WorkerContext, options: ReferenceWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: ReferenceWorkerOptions = options
        self._parking = Parking()

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Load the model."""
        with self.timed("build reference"):
            seed, device = derive_seed(self.context.seed, "model"), self.context.device
            low = self.options.learner.precision == "bfloat16" and not device.startswith("cpu")
            dtype = torch.bfloat16 if low else torch.float32
            self.actor = Actor(open_model(self.options.model, seed=seed, dtype=dtype, device=device)).eval()

    def memory(self) -> int:
        """Bytes of the model."""
        return resident_bytes(self.actor.state_dict().values())

    def unload(self) -> None:
        """Park the model."""
        with self.timed("unload", LOAD):
            self._parking.unload(self.actor.state_dict().values())

    def load(self) -> None:
        """Bring it back."""
        with self.timed("load", LOAD):
            self._parking.load()

    async def refer(self) -> None:
        """Add log-probabilities to every group of a round."""
        async for key, group in self.groups:
            with self.timed("reference"):
                group = dataclasses.replace(group, reference=self._logprobs(group))
            await self.referenced.put(group, key, weight=group.weight)
        await self.referenced.end()

    @torch.no_grad()
    def _logprobs(self, group: Group) -> torch.Tensor:
        sequence, prompt = sequences(group)
        found = torch.zeros(group.tokens.shape)
        device, precision = self.context.device, self.options.learner.precision
        for rows in divide((prompt + group.lengths).tolist(), self.options.layout):
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16"):
                logprobs, _ = self.actor.evaluate(
                    sequence[rows].to(device),
                    prompt[rows].to(device),
                    group.lengths[rows].to(device),
                    self.options.sampling,
                    row_tokens=self.options.layout.packing,
                    entropy=False,
                )
            found[rows, : logprobs.shape[1]] = logprobs.float().cpu()
        return found


def sequences(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [G, P + L], prompt and response of each member, and the prompt's length int64 [G]."""
    prompt = group.prompt.expand(group.size, -1)
    return torch.cat([prompt, group.tokens], 1), torch.full((group.size,), len(group.prompt))
