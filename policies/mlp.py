"""A multilayer perceptron over the state vector: the smallest policy, for state-based tasks.

Continuous actions are independent Gaussians whose draws are clipped to the action bounds by what executes them (the
logged log-probability is that of the unclipped draw); discrete actions are categorical. Actor and critic are separate
networks with tanh units and orthogonal initialisation, as usual for PPO on state observations.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import torch
from tensordict import TensorDict
from torch import nn

from embodied.config import config
from embodied.errors import ConfigurationError
from policies import distributions
from policies.api import (
    Evaluation,
    Imitation,
    Interface,
    Noise,
    Observed,
    Policy,
    PolicyConfig,
    PolicyOutput,
    PolicySpec,
    Sampling,
)


@config
class MLPConfig(PolicyConfig):
    """name: mlp. hidden: units of each hidden layer, of actor and critic alike. log_std: initial log standard deviation
    of continuous actions, in units of half the action range."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[int, ...] = (256, 256, 256)
    log_std: float = -0.5

    def __post_init__(self) -> None:
        if self.value == "action" and (self.chunk or 1) == 1:
            raise ValueError("value: action gives one value an action of a chunk; with chunk 1 use value: chunk")
        if any(units <= 0 for units in self.hidden):
            raise ValueError(f"hidden is {self.hidden}; every layer needs at least one unit")


def _network(sizes: list[int], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        last = index == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if last else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


class MLPPolicy(Policy):
    """See the module's docstring."""

    def __init__(self, options: MLPConfig, interface: Interface, seed: int) -> None:
        super().__init__()
        if interface.state_dim == 0:
            raise ConfigurationError(
                "policy mlp needs a state vector, but the environment shows none (state_dim 0); "
                "use an observation mode with state, or policy cnn"
            )
        self.options, self.interface = options, interface
        chunk = options.chunk or 1
        self.discrete = interface.action_kind == "discrete"
        outputs = chunk * (interface.choices if self.discrete else interface.action_dim)
        values = {"none": 0, "chunk": 1, "action": chunk}[options.value]
        self.spec = PolicySpec("mlp", chunk, interface.action_dim, interface.action_dim, values)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _network([interface.state_dim, *options.hidden, outputs], last_gain=0.01 * 2**0.5)
            if values:
                self.value_head = _network([interface.state_dim, *options.hidden, values], last_gain=1.0)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((interface.action_dim,), options.log_std))
            low = torch.tensor(interface.action_low, dtype=torch.float32)
            high = torch.tensor(interface.action_high, dtype=torch.float32)
            bounded = torch.isfinite(low) & torch.isfinite(high)
            middle = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
            half = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
            limit = torch.where(bounded, torch.ones_like(low), torch.full_like(low, torch.inf))
            self.register_buffer("action_middle", middle)
            self.register_buffer("action_half_range", half)
            self.register_buffer("action_limit", limit)

    def prepare(self, observation: Observed) -> TensorDict:
        """The state vector as it is."""
        return TensorDict({"state": observation.state.float().clone()}, batch_size=[len(observation.state)])

    def act(self, inputs: TensorDict, sampling: Sampling, noise: Noise) -> PolicyOutput:
        """Draw a chunk; continuous actions are scaled to the bounds and clipped to them."""
        value = self.value(inputs) if self.spec.values else None
        if self.discrete:
            log_probabilities = self._log_probabilities(inputs, sampling)
            uniform = torch.empty(0) if sampling.decode == "greedy" else noise.uniform(self.spec.chunk, 1)
            tokens = distributions.draw_categorical(log_probabilities, uniform, sampling)
            logprobs = distributions.categorical_logprob(log_probabilities, tokens)
            return PolicyOutput(tokens.float(), tokens, logprobs, value)
        mean = self._mean(inputs)
        draws = distributions.draw_gaussian(mean, self.log_std, noise, sampling)
        logprobs = distributions.gaussian_logprob(draws, mean, self.log_std, sampling)
        clipped = torch.maximum(torch.minimum(draws, self.action_limit), -self.action_limit)
        return PolicyOutput(self.action_middle + self.action_half_range * clipped, draws, logprobs, value)

    def evaluate(self, inputs: TensorDict, tokens: torch.Tensor, sampling: Sampling) -> Evaluation:
        """Log-probabilities and entropies of `tokens`, and values."""
        value = self.value(inputs) if self.spec.values else None
        if self.discrete:
            log_probabilities = self._log_probabilities(inputs, sampling, drawn=tokens)
            logprobs = distributions.categorical_logprob(log_probabilities, tokens)
            return Evaluation(logprobs, distributions.categorical_entropy(log_probabilities), value)
        mean = self._mean(inputs)
        logprobs = distributions.gaussian_logprob(tokens, mean, self.log_std, sampling)
        return Evaluation(logprobs, distributions.gaussian_entropy(mean, self.log_std, sampling), value)

    def value(self, inputs: TensorDict) -> torch.Tensor:
        """[B, V]."""
        if not self.spec.values:
            raise ConfigurationError("this mlp has no value head (policy.value is none), but a value was asked for")
        return self.value_head(inputs["state"])

    def imitation(self, inputs: TensorDict, actions: torch.Tensor, valid: torch.Tensor | None = None) -> Imitation:
        """How well demonstrated `actions` [B, C, A] are predicted where `valid` [B, C]; the loss carries the gradient.

        Continuous: half the squared error of the mean in half ranges; the standard deviation is left to exploration,
        and an action counts as accurate within a 256th of the range. Discrete: cross-entropy.
        """
        device = self.actor[0].weight.device
        actions = actions.to(device)
        weight = torch.ones(actions.shape[:2], device=device) if valid is None else valid.to(device).float()
        weight = weight[..., None].expand(actions.shape)
        total = weight.sum().clamp_min(1)
        inputs = inputs.to(device)
        if self.discrete:
            scores = self._log_probabilities(inputs, Sampling())
            losses = -distributions.categorical_logprob(scores, actions.long())
            accurate = scores.detach().argmax(-1) == actions.long()
            gap = (~accurate).float()
        else:
            gap = self._mean(inputs) - (actions - self.action_middle) / self.action_half_range
            losses = 0.5 * gap.square()
            accurate = gap.detach().abs() <= 1 / 128
        return Imitation(
            loss=(losses * weight).sum() / total,
            accuracy=(accurate * weight).sum() / total,
            distance=(gap.detach().abs() * weight).sum() / total,
        )

    def blocks(self) -> list[nn.Module]:
        """Actor and critic."""
        return [self.actor, self.value_head] if self.spec.values else [self.actor]

    def metadata(self) -> dict[str, Any]:
        """Options and interface."""
        return {
            "kind": "mlp",
            "options": dataclasses.asdict(self.options),
            "interface": dataclasses.asdict(self.interface),
        }

    def _mean(self, inputs: TensorDict) -> torch.Tensor:
        return self.actor(inputs["state"]).view(-1, self.spec.chunk, self.interface.action_dim)

    def _log_probabilities(
        self, inputs: TensorDict, sampling: Sampling, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, C, 1, K]."""
        logits = self.actor(inputs["state"]).view(-1, self.spec.chunk, 1, self.interface.choices)
        return distributions.filter_logits(logits, sampling, drawn)


Config = MLPConfig
build = MLPPolicy
