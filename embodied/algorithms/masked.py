"""Masked reductions that no value under the mask can disturb, and the shape check every formula here starts with.

Not numerics of their own: multiplying by a mask lets NaN and infinity through, forward and backward, so every
function of this package first replaces what the mask excludes.
"""

from __future__ import annotations

import torch

from embodied.errors import CorrectnessAlarm


def fill(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` where `mask` (bool, broadcastable), else 0; the gradient to what is masked is exactly 0, not NaN."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of the valid entries, 0-dim; 0 for an empty mask."""
    return fill(values, mask).sum()


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of the valid entries, 0-dim; 0 for an empty mask. `mask` is broadcast first, so every entry counts once."""
    return masked_sum(values, mask) / mask.expand_as(values).sum().clamp(min=1)


def require_shape(function: str, expected: torch.Size | tuple[int, ...], **tensors: torch.Tensor) -> None:
    """Raise CorrectnessAlarm unless every tensor has the expected shape: silent broadcasting is a wrong number."""
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(expected):
            raise CorrectnessAlarm(
                f"{function}: {name} has shape {list(tensor.shape)}, expected {list(expected)}. "
                "Bring every tensor to one level and layout first (embodied.algorithms.levels)."
            )


def require_mask(function: str, **masks: torch.Tensor) -> None:
    """Raise CorrectnessAlarm unless every mask is boolean: a float mask would weight instead of choose."""
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise CorrectnessAlarm(f"{function}: {name} has dtype {mask.dtype}, expected torch.bool. Compare it first.")
