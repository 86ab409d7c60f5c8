"""The small networks OpenVLA-OFT adds to OpenVLA: regression head, state projector, language-conditioned vision blocks.

Parameter names are those of the published component files. Reference: Kim, Finn and Liang 2025, "Fine-Tuning
Vision-Language-Action Models: Optimizing Speed and Success"; FiLM after Perez et al. 2018.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from policies.vla.vision import VisionBackbone


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(x)


class _ResidualMLP(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, blocks: int = 2) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(_ResidualBlock(width) for _ in range(blocks))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class RegressionHead(nn.Module):
    """Hidden states of an action's tokens, side by side, to that action."""

    def __init__(self, hidden_size: int, action_dim: int) -> None:
        super().__init__()
        self.model = _ResidualMLP(hidden_size * action_dim, hidden_size, action_dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, C, A, D] -> [B, C, A] normalised actions."""
        return self.model(hidden.flatten(2).to(self.model.fc1.weight.dtype))


class StateProjector(nn.Module):
    """The robot's state as one embedding."""

    def __init__(self, state_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """[B, S] -> [B, 1, D]."""
        return self.fc2(F.gelu(self.fc1(state.to(self.fc1.weight.dtype))))[:, None]


class FiLMBlock(nn.Module):
    """A vision block whose features the instruction scales and shifts between attention and feed-forward."""

    def __init__(self, block: nn.Module, width: int, condition_size: int) -> None:
        super().__init__()
        self.block = block
        self.scale = nn.Linear(condition_size, width)
        self.shift = nn.Linear(condition_size, width)

    def reset_parameters(self) -> None:
        """Start as the plain block: scale and shift of zero."""
        for layer in (self.scale, self.shift):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """x [N, P, width], condition [N, condition_size]."""
        block = self.block
        x = x + block.drop_path1(block.ls1(block.attn(block.norm1(x))))
        condition = condition.to(self.scale.weight.dtype)  # these are trained whole, in float32, also beside bfloat16
        scale, shift = self.scale(condition).to(x.dtype), self.shift(condition).to(x.dtype)
        x = x * (1 + scale[:, None]) + shift[:, None]
        return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))


def add_film(backbone: VisionBackbone, condition_size: int) -> None:
    """Wrap every block of every transformer of `backbone`, as plain blocks to begin with."""
    for vit in backbone.featurizers:
        for index, block in enumerate(vit.blocks):
            vit.blocks[index] = FiLMBlock(block, vit.embed_dim, condition_size)
            vit.blocks[index].reset_parameters()
    backbone.freeze_unread()


def film_layers(backbone: VisionBackbone) -> list[nn.Module]:
    """The conditioning layers whose output is read; empty for plain blocks."""
    blocks = [block for vit in backbone.featurizers for block in vit.blocks[:-1] if isinstance(block, FiLMBlock)]
    return [layer for block in blocks for layer in (block.scale, block.shift)]
