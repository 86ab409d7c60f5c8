"""The policy worker: answers questions with decisions until nobody asks any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.interaction.messages import Decision, Question, Rollout
from embodied.random import RowNoise, derive_seed
from embodied.scheduler import Input, Output, Worker, WorkerContext
from policies import registry
from policies.api import PolicyConfig, PolicyOutput


@dataclasses.dataclass(frozen=True)
class PolicyWorkerOptions:
    """policy: what to build with the run's seed, or the folder of a saved policy to load.

    evaluation_block: rows of a forward pass in evaluation, always filled up to exactly so many: matrix products of
    another shape may differ in the last bit, and an evaluation must not depend on how many environments play it.
    """

    policy: PolicyConfig | Path
    evaluation_block: int = 16


class PolicyWorker(Worker):
    """Owns a policy that acts; its weights come from the learner or from a file."""

    questions = Input(Question)
    decisions = Output(Decision)

    def __init__(self, context: WorkerContext, options: PolicyWorkerOptions) -> None:
        super().__init__(context, options)
        self.options: PolicyWorkerOptions = options
        self.version = -1

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

    def share_weights(self, weights: dict[str, Any]) -> None:
        """Hold the learner's tensors: its updates are then the policy's."""
        self.policy.load_state_dict(weights, strict=True, assign=True)
        self.policy.eval()

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

    async def act_evaluation(self, rollout: Rollout) -> None:
        """Serve one round of evaluation, in forward passes of one fixed size."""
        seed = derive_seed(self.context.seed, rollout.purpose)
        async for key, question in self.questions:
            with self.timed("act in evaluation"):
                decision = self._decide_in_blocks(question, rollout, seed)
            await self.decisions.put(decision, key)

    @torch.no_grad()
    def _decide(self, question: Question, rollout: Rollout, seed: int) -> Decision:
        device = self.context.device
        policy = self.policy
        inputs = policy.prepare(question.observation).to(device)
        final_values = None
        if question.final_observation is not None and policy.spec.values:
            final_values = policy.value(policy.prepare(question.final_observation).to(device)).cpu()
        if not question.decide:
            value = policy.value(inputs).cpu() if policy.spec.values else None
            return Decision(None, None, value, final_values, self.version)
        noise = RowNoise(seed, question.streams, question.steps, device)
        output = policy.act(inputs, rollout.sampling, noise)
        value = None if output.value is None else output.value.cpu()
        return Decision(output, inputs, value, final_values, self.version)

    @torch.no_grad()
    def _decide_in_blocks(self, question: Question, rollout: Rollout, seed: int) -> Decision:
        size = self.options.evaluation_block
        count = len(question.streams)
        outputs = []
        for begin in range(0, count, size):
            rows = torch.arange(begin, begin + size).clamp(max=count - 1)  # the last row again where rows run out
            inputs = self.policy.prepare(question.observation.select(rows)).to(self.context.device)
            noise = RowNoise(seed, question.streams[rows.numpy()], question.steps[rows.numpy()], self.context.device)
            outputs.append(self.policy.act(inputs, rollout.sampling, noise))
        joined = PolicyOutput(
            actions=torch.cat([o.actions for o in outputs])[:count],
            tokens=torch.cat([o.tokens for o in outputs])[:count],
            logprobs=torch.cat([o.logprobs for o in outputs])[:count],
            value=None if outputs[0].value is None else torch.cat([o.value for o in outputs])[:count],
        )
        return Decision(joined, None, joined.value, None, self.version)
