"""What the small policies have in common: an action distribution over the outputs of a network, and its use.

Continuous actions are independent Gaussians whose draws are clipped to the action bounds by what executes them (the
logged log-probability is that of the unclipped draw); discrete actions are categorical. A subclass says what the
network sees, and has a module `value_head` where there are values.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from embodied.errors import ConfigurationError
from policies import distributions
from policies.api import (
    Evaluation,
    Imitation,
    Interface,
    Noise,
    Policy,
    PolicyConfig,
    PolicyOutput,
    PolicySpec,
    Sampling,
)


def layers(sizes: list[int], last_gain: float, activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers of the given sizes, orthogonally initialised, with an activation between them."""
    made: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        last = index == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, last_gain if last else 2**0.5)
        nn.init.zeros_(linear.bias)
        made += [linear] if last else [linear, activation()]
    return nn.Sequential(*made)


class SmallPolicy(Policy):
    """See the module's docstring."""

    kind: str
    options: PolicyConfig

    def __init__(self, options: PolicyConfig, interface: Interface) -> None:
        super().__init__()
        self.options, self.interface = options, interface
        chunk = options.actions
        self.discrete = interface.action_kind == "discrete"
        self.outputs = chunk * (interface.choices if self.discrete else interface.action_dim)
        values = {"none": 0, "chunk": 1, "action": chunk}[options.value]
        self.spec = PolicySpec(self.kind, chunk, interface.action_dim, interface.action_dim, values)

    def add_distribution(self, log_std: float) -> None:
        """What the action distribution has beside the network: a standard deviation, and the bounds of the actions."""
        if self.discrete:
            return
        self.log_std = nn.Parameter(torch.full((self.interface.action_dim,), log_std))
        low = torch.tensor(self.interface.action_low, dtype=torch.float32)
        high = torch.tensor(self.interface.action_high, dtype=torch.float32)
        bounded = torch.isfinite(low) & torch.isfinite(high)
        middle = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
        half = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        limit = torch.where(bounded, torch.ones_like(low), torch.full_like(low, torch.inf))
        self.register_buffer("action_middle", middle)
        self.register_buffer("action_half_range", half)
        self.register_buffer("action_limit", limit)

    @abc.abstractmethod
    def scores(self, inputs: TensorDict) -> torch.Tensor:
        """float32 [B, outputs]: C x A Gaussian means in half ranges, or C x K logits."""

    @abc.abstractmethod
    def state_values(self, inputs: TensorDict) -> torch.Tensor:
        """float32 [B, V]; called only where there is a value head."""

    def both(self, inputs: TensorDict) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores, and values or None; a subclass whose two share work does it once."""
        return self.scores(inputs), self.state_values(inputs) if self.spec.values else None

    def act(self, inputs: TensorDict, sampling: Sampling, noise: Noise) -> PolicyOutput:
        """Draw a chunk; continuous actions are scaled to the bounds and clipped to them."""
        scores, value = self.both(inputs)
        if self.discrete:
            log_probabilities = self._log_probabilities(scores, sampling)
            uniform = torch.empty(0) if sampling.decode == "greedy" else noise.uniform(self.spec.chunk, 1)
            tokens = distributions.draw_categorical(log_probabilities, uniform, sampling)
            logprobs = distributions.categorical_logprob(log_probabilities, tokens)
            return PolicyOutput(tokens.float(), tokens, logprobs, value)
        mean = self._mean(scores)
        draws = distributions.draw_gaussian(mean, self.log_std, noise, sampling)
        logprobs = distributions.gaussian_logprob(draws, mean, self.log_std, sampling)
        clipped = torch.maximum(torch.minimum(draws, self.action_limit), -self.action_limit)
        return PolicyOutput(self.action_middle + self.action_half_range * clipped, draws, logprobs, value)

    def evaluate(self, inputs: TensorDict, tokens: torch.Tensor, sampling: Sampling) -> Evaluation:
        """Log-probabilities and entropies of `tokens`, and values."""
        scores, value = self.both(inputs)
        if self.discrete:
            log_probabilities = self._log_probabilities(scores, sampling, drawn=tokens)
            logprobs = distributions.categorical_logprob(log_probabilities, tokens)
            return Evaluation(logprobs, distributions.categorical_entropy(log_probabilities), value)
        mean = self._mean(scores)
        logprobs = distributions.gaussian_logprob(tokens, mean, self.log_std, sampling)
        return Evaluation(logprobs, distributions.gaussian_entropy(mean, self.log_std, sampling), value)

    def value(self, inputs: TensorDict) -> torch.Tensor:
        """[B, V]."""
        if not self.spec.values:
            raise ConfigurationError(
                f"this {self.kind} has no value head (policy.value is none), but a value was asked for"
            )
        return self.state_values(inputs)

    def imitation(self, inputs: TensorDict, actions: torch.Tensor, valid: torch.Tensor | None = None) -> Imitation:
        """How well demonstrated `actions` [B, C, A] are predicted where `valid` [B, C]; the loss carries the gradient.

        Continuous: half the squared error of the mean in half ranges; the standard deviation is left to exploration,
        and an action counts as accurate within a 256th of the range. Discrete: cross-entropy.
        """
        device = next(self.parameters()).device
        actions = actions.to(device)
        weight = torch.ones(actions.shape[:2], device=device) if valid is None else valid.to(device).float()
        weight = weight[..., None].expand(actions.shape)
        total = weight.sum().clamp_min(1)
        scores = self.scores(inputs.to(device))
        if self.discrete:
            log_probabilities = self._log_probabilities(scores, Sampling())
            losses = -distributions.categorical_logprob(log_probabilities, actions.long())
            accurate = log_probabilities.detach().argmax(-1) == actions.long()
            gap = (~accurate).float()
        else:
            # a dimension whose bounds are one has no range to measure in
            unit = torch.where(self.action_half_range > 0, self.action_half_range, 1.0)
            gap = self._mean(scores) - (actions - self.action_middle) / unit
            losses = 0.5 * gap.square()
            accurate = gap.detach().abs() <= 1 / 128
        return Imitation(
            loss=(losses * weight).sum() / total,
            accuracy=(accurate * weight).sum() / total,
            distance=(gap.detach().abs() * weight).sum() / total,
        )

    def metadata(self) -> dict[str, Any]:
        """Options and interface."""
        return {
            "kind": self.kind,
            "options": dataclasses.asdict(self.options),
            "interface": dataclasses.asdict(self.interface),
        }

    def _mean(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.view(-1, self.spec.chunk, self.interface.action_dim)

    def _log_probabilities(
        self, scores: torch.Tensor, sampling: Sampling, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, C, 1, K]."""
        logits = scores.view(-1, self.spec.chunk, 1, self.interface.choices)
        return distributions.filter_logits(logits, sampling, drawn)
