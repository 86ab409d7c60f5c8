"""A multilayer perceptron over the state vector: the smallest policy, for state-based tasks.

Actor and critic are separate networks with tanh units and orthogonal initialisation, as usual for PPO on state
observations; `small` has the action distribution.
"""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict
from torch import nn

from embodied.config import config
from embodied.errors import ConfigurationError
from policies.api import Interface, Observed, PolicyConfig
from policies.running_scale import RunningScale
from policies.small import SmallPolicy, layers


@config
class MLPConfig(PolicyConfig):
    """name: mlp. hidden: units of each hidden layer, of actor and critic alike. log_std: initial log standard deviation
    of continuous actions, in units of half the action range. scale: of the state: as it comes (none), or by the mean
    and deviation of what was trained on so far (running), which numbers of unlike sizes need.
    """

    name: Literal["mlp"] = "mlp"
    hidden: tuple[int, ...] = (256, 256, 256)
    log_std: float = -0.5
    scale: Literal["none", "running"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(units <= 0 for units in self.hidden):
            raise ValueError(f"hidden is {self.hidden}; every layer needs at least one unit")


class MLPPolicy(SmallPolicy):
    """See the module's docstring."""

    kind = "mlp"

    def __init__(self, options: MLPConfig, interface: Interface, seed: int) -> None:
        if interface.state_dim == 0:
            raise ConfigurationError(
                "policy mlp needs a state vector, but the environment shows none (state_dim 0); "
                "use an observation mode with state, or policy cnn"
            )
        super().__init__(options, interface)
        sizes = [interface.state_dim, *options.hidden]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = layers([*sizes, self.outputs], 0.01 * 2**0.5, nn.Tanh)
            if self.spec.values:
                self.value_head = layers([*sizes, self.spec.values], 1.0, nn.Tanh)
        self.scale = RunningScale(interface.state_dim) if options.scale == "running" else None
        self.add_distribution(options.log_std)

    def prepare(self, observation: Observed) -> TensorDict:
        """The state vector as it is."""
        return TensorDict({"state": observation.state.float().clone()}, batch_size=[len(observation.state)])

    def scores(self, inputs: TensorDict) -> torch.Tensor:
        """See the base."""
        return self.actor(self._scaled(inputs))

    def state_values(self, inputs: TensorDict) -> torch.Tensor:
        """See the base."""
        return self.value_head(self._scaled(inputs))

    def both(self, inputs: TensorDict) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See the base."""
        state = self._scaled(inputs)
        return self.actor(state), self.value_head(state) if self.spec.values else None

    def _scaled(self, inputs: TensorDict) -> torch.Tensor:
        return inputs["state"] if self.scale is None else self.scale(inputs["state"])

    def summary(self, inputs: TensorDict, rows: torch.Tensor) -> torch.Tensor:
        """See the base; of the states."""
        if self.scale is None:
            return super().summary(inputs, rows)
        return self.scale.summary(inputs["state"][rows])

    def absorb(self, summaries: torch.Tensor) -> None:
        """See the base."""
        if self.scale is not None:
            self.scale.absorb(summaries)

    def blocks(self) -> list[nn.Module]:
        """Actor and critic."""
        return [self.actor, self.value_head] if self.spec.values else [self.actor]


Config = MLPConfig
build = MLPPolicy
