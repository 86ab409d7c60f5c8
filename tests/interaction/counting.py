"""A policy and environments whose right answers are known, under the real workers and the real launcher."""

from __future__ import annotations

import functools

import torch
from tensordict import TensorDict
from torch import nn

from embodied.scheduler.inline import InlineLauncher
from envs.api import EnvConfig
from envs.local import LocalVectorEnv
from envs.pool import PoolVectorEnv
from policies.api import Evaluation, Policy, PolicyOutput, PolicySpec
from tests.envs.scripted_env import Habits, ScriptedBatch


class CountingPolicy(Policy):
    """Values an observation by the count it shows; acts with the row's noise."""

    def __init__(self, chunk: int, values: int) -> None:
        super().__init__()
        self.spec = PolicySpec("counting", chunk, 2, 2, values)
        self.weight = nn.Parameter(torch.ones(()))

    def prepare(self, observation):
        return TensorDict({"state": observation.state.clone()}, batch_size=[len(observation.state)])

    def act(self, inputs, sampling, noise):
        draws = noise.uniform(self.spec.chunk, 2)
        return PolicyOutput(draws, draws, -draws, self.value(inputs) if self.spec.values else None)

    def evaluate(self, inputs, tokens, sampling):
        value = self.value(inputs) * self.weight if self.spec.values else None
        return Evaluation(-tokens * self.weight, torch.ones_like(tokens) * self.weight, value)

    def value(self, inputs):
        steps = torch.arange(self.spec.values) if self.spec.values > 1 else torch.zeros(1)
        return inputs["state"][:, :1] + steps

    def metadata(self):
        return {"kind": "counting"}


def scripted_env(config: EnvConfig, **habits):
    """The environments that the registry would make, of the scripted simulator."""
    make_batch = functools.partial(ScriptedBatch, Habits(**habits))
    return LocalVectorEnv(make_batch, config) if config.processes == 0 else PoolVectorEnv(make_batch, config)


def launch(flow, plan, seed=0) -> InlineLauncher:
    return InlineLauncher(flow, plan, seed=seed, deadline=30.0)
