"""A small convolutional network over pictures, and the state vector where there is one: policies from pixels at the
cost of a laptop.

Every camera goes through the same convolutions, each of which halves the picture; what remains is averaged to a grid of
4 x 4, projected to `features` numbers, and joined by the state. The critic looks at the same features, or at what only
the simulator knows; either way it is a network of its own after that. `small` has the action distribution.
"""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDict
from torch import nn

from embodied.config import config
from embodied.errors import ConfigurationError
from policies.api import Interface, Observed, PolicyConfig
from policies.small import SmallPolicy, layers

_GRID = 4
_SMALLEST_SIDE = 16


@config
class CNNConfig(PolicyConfig):
    """name: cnn. channels: of each convolution, which halves the picture. features: numbers that the pictures of all
    cameras come down to. hidden: units of each hidden layer after that, of actor and critic alike.
    critic: what the value head looks at, what the policy sees (observation) or what only the simulator knows and acting
    does without, with the state (privileged). log_std: initial log standard deviation of continuous actions, in units
    of half the action range."""

    name: Literal["cnn"] = "cnn"
    channels: tuple[int, ...] = (16, 32, 64)
    features: int = 128
    hidden: tuple[int, ...] = (256,)
    critic: Literal["observation", "privileged"] = "observation"
    log_std: float = -0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels or any(units <= 0 for units in (*self.channels, self.features, *self.hidden)):
            raise ValueError(
                f"channels is {self.channels}, features {self.features}, hidden {self.hidden}; expected at least one "
                "convolution, and at least one unit in everything"
            )


class Eyes(nn.Module):
    """Pictures uint8 [B, V, H, W, 3] to features float32 [B, F]."""

    def __init__(self, cameras: int, channels: tuple[int, ...], features: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for inputs, outputs in zip((3, *channels), channels, strict=False):
            convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
            nn.init.orthogonal_(convolution.weight, 2**0.5)
            nn.init.zeros_(convolution.bias)
            stages += [convolution, nn.ReLU()]
        self.convolutions = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(_GRID), nn.Flatten())
        self.projection = nn.Linear(cameras * channels[-1] * _GRID**2, features)
        nn.init.orthogonal_(self.projection.weight, 2**0.5)
        nn.init.zeros_(self.projection.bias)
        self.norm = nn.LayerNorm(features)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        rows, cameras = pixels.shape[:2]
        planes = pixels.flatten(0, 1).permute(0, 3, 1, 2)
        seen = self.convolutions(planes.to(self.projection.weight.dtype) / 255 - 0.5)
        return torch.tanh(self.norm(self.projection(seen.view(rows, cameras * seen.shape[1]))))


class CNNPolicy(SmallPolicy):
    """See the module's docstring."""

    kind = "cnn"
    options: CNNConfig

    def __init__(self, options: CNNConfig, interface: Interface, seed: int) -> None:
        if not interface.cameras:
            raise ConfigurationError(
                "policy cnn needs a camera, but the environment shows no pictures; use an observation mode with "
                "pictures (maniskill: env.obs=rgb), or policy mlp"
            )
        if min(interface.image_height, interface.image_width) < _SMALLEST_SIDE:
            raise ConfigurationError(
                f"policy cnn needs pictures of at least {_SMALLEST_SIDE} x {_SMALLEST_SIDE} pixels; the environment's "
                f"are {interface.image_height} x {interface.image_width}"
            )
        self.privileged_critic = options.critic == "privileged" and options.value != "none"
        if self.privileged_critic and not interface.privileged_dim:
            raise ConfigurationError(
                "policy.critic: privileged needs what only the simulator knows, but this environment tells nothing of "
                "it (privileged_dim 0); use policy.critic: observation"
            )
        super().__init__(options, interface)
        seen = options.features + interface.state_dim
        judged = interface.state_dim + interface.privileged_dim if self.privileged_critic else seen
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.eyes = Eyes(interface.cameras, options.channels, options.features)
            self.actor = layers([seen, *options.hidden, self.outputs], 0.01 * 2**0.5, nn.Tanh)
            if self.spec.values:
                self.value_head = layers([judged, *options.hidden, self.spec.values], 1.0, nn.Tanh)
        self.add_distribution(options.log_std)

    def prepare(self, observation: Observed) -> TensorDict:
        """`pixels` uint8 [B, V, H, W, 3], `state` float32 [B, S], and `privileged` float32 [B, P] for its critic."""
        if observation.images is None:
            raise ConfigurationError("policy cnn needs pictures; the observation has none")
        fields = {"pixels": observation.images.clone(), "state": observation.state.float().clone()}
        known = observation.privileged
        # where the simulator tells something else, as of another task, the policy acts on without values
        if self.privileged_critic and known is not None and known.shape[1] == self.interface.privileged_dim:
            fields["privileged"] = known.float().clone()
        return TensorDict(fields, batch_size=[len(observation.state)])

    def scores(self, inputs: TensorDict) -> torch.Tensor:
        """See the base."""
        return self.actor(self._seen(inputs))

    def state_values(self, inputs: TensorDict) -> torch.Tensor:
        """See the base."""
        return self.value_head(self._judged(inputs) if self.privileged_critic else self._seen(inputs))

    def both(self, inputs: TensorDict) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See the base: pictures are looked at once."""
        seen = self._seen(inputs)
        if not self.spec.values or (self.privileged_critic and "privileged" not in inputs):
            return self.actor(seen), None
        return self.actor(seen), self.value_head(self._judged(inputs) if self.privileged_critic else seen)

    def blocks(self) -> list[nn.Module]:
        """Eyes, actor and critic."""
        return [self.eyes, self.actor, *([self.value_head] if self.spec.values else [])]

    def _seen(self, inputs: TensorDict) -> torch.Tensor:
        return torch.cat([self.eyes(inputs["pixels"]), inputs["state"]], dim=1)

    @staticmethod
    def _judged(inputs: TensorDict) -> torch.Tensor:
        return torch.cat([inputs["state"], inputs["privileged"]], dim=1)


Config = CNNConfig
build = CNNPolicy
