"""The policy worker: answers questions with decisions until nobody asks any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.interaction.deciding import decide, row_blocks
from embodied.interaction.messages import Decision, Question, Rollout
from embodied.learner.residency import Parking, resident_bytes
from embodied.random import derive_seed
from embodied.scheduler import Input, Output, Worker, WorkerContext
from embodied.scheduler.trace import LOAD
from envs.api import Observation
from policies import registry
from policies.api import PolicyConfig


@dataclasses.dataclass(frozen=True)
class PolicyWorkerOptions:
    """policy: what to build with the run's seed, or the folder of a saved policy to load.

    forward_rows: rows of every forward pass, filled up to exactly so many. Matrix products of another shape may differ
    in the last bit; with one shape a decision does not depend on how environments are divided over workers and slots.
    None takes all rows of a question at once.
    """

    policy: PolicyConfig | Path
    forward_rows: int | None


class PolicyWorker(Worker):
    """Owns a policy that acts; its weights come from the learner or from a file."""

    follows = frozenset({"slots"})  # it answers however many slots ask

    questions = Input(Question)
    decisions = Output(Decision)

    def __init__(self, context: WorkerContext, options: PolicyWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: PolicyWorkerOptions = options
        self.version = -1
        self._parking = Parking()

    async def setup(self, announced: Mapping[str, Any]) -> None:
        """Build the policy."""
        with self.timed("build policy"):
            interface = registry.interface_of(announced["env"])
            if isinstance(self.options.policy, Path):
                self.policy = registry.load(self.options.policy)
                registry.check_interface(self.policy, interface)
            else:
                seed = derive_seed(self.context.seed, "policy")
                self.policy = registry.build(self.options.policy, interface, seed=seed)
            self.policy.to(self.context.device).eval()

    def weights(self) -> dict[str, Any]:
        """The policy's parameters and buffers themselves."""
        return self.policy.state_dict(keep_vars=True)

    def acting_weights(self) -> dict[str, torch.Tensor]:
        """Copies of the tensors that act now."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()}

    def share_weights(self, weights: dict[str, Any]) -> None:
        """Hold the learner's tensors: its updates are then the policy's."""
        self.policy.load_state_dict(weights, strict=True, assign=True)
        self.policy.eval()

    def memory(self) -> int:
        """Bytes of the policy's tensors."""
        return resident_bytes(self.policy.state_dict().values())

    def unload(self) -> None:
        """Park the policy's tensors."""
        with self.timed("unload", LOAD):
            self._parking.unload(self.policy.state_dict().values())

    def load(self) -> None:
        """Bring them back."""
        with self.timed("load", LOAD):
            self._parking.load()

    def weights_changed(self, version: int) -> None:
        """Note which version acts."""
        self.version = version

    async def act(self, rollout: Rollout) -> None:
        """Serve one round."""
        seed = derive_seed(self.context.seed, rollout.purpose)
        async for key, question in self.questions:
            with self.timed("act"):
                decision = self._decide(question, rollout, seed)
            await self.decisions.put(decision, key)

    @torch.no_grad()
    def _decide(self, question: Question, rollout: Rollout, seed: int) -> Decision:
        final_values = None
        if question.final_observation is not None and self.policy.spec.values:
            final_values = self._values(question.final_observation)
        if not question.decide:
            value = self._values(question.observation) if self.policy.spec.values else None
            return Decision(None, None, value, final_values, self.version)
        output, inputs = decide(
            self.policy,
            question.observation,
            question.streams,
            question.steps,
            rollout.sampling,
            seed=seed,
            forward_rows=self.options.forward_rows,
            device=self.context.device,
        )
        return Decision(output, inputs, output.value, final_values, self.version)

    def _values(self, observation: Observation) -> torch.Tensor:
        count = len(observation)
        values = [
            self.policy.value(self.policy.prepare(observation.select(rows)).to(self.context.device))
            for rows in row_blocks(count, self.options.forward_rows)
        ]
        return torch.cat(values)[:count].cpu()
