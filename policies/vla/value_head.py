"""The critic of a vision-language-action policy: a small network on the hidden state of the last prompt token, or on
what only a simulator knows.

Shape of the first after Liu et al. 2025, "What can RL bring to VLA generalization?": one shared backbone, 512 and 128
units. The second (Pinto et al. 2018, "Asymmetric actor critic") learns fast from few episodes and costs next to
nothing; acting never needs it, so nothing is lost when the policy leaves the simulator.
"""

from __future__ import annotations

import torch
from torch import nn


class ValueHead(nn.Module):
    """hidden [B, D] -> values [B, V]; the last layer starts small, so the first values are near zero."""

    def __init__(self, hidden_size: int, values: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 512),
            nn.GELU(),
            nn.Linear(512, 128),
            nn.GELU(),
            nn.Linear(128, values, bias=False),
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh weights from torch's global generator."""
        for layer in (self.mlp[0], self.mlp[2]):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.mlp[4].weight, std=1e-3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [B, V]."""
        return self.mlp(hidden.to(self.mlp[0].weight.dtype)).float()


class PrivilegedCritic(nn.Module):
    """What only the simulator knows, scaled, [B, P] -> values [B, V]; the first values are near zero."""

    def __init__(self, privileged_dim: int, values: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(privileged_dim, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, values)
        )
        for layer in (self.mlp[0], self.mlp[2]):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.mlp[4].weight, std=1e-3)
        nn.init.zeros_(self.mlp[4].bias)

    def forward(self, privileged: torch.Tensor) -> torch.Tensor:
        """float32 [B, V]."""
        return self.mlp(privileged.to(self.mlp[0].weight.dtype)).float()
