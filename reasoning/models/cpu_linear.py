"""Linear layers whose products are oneDNN's, forward and backward, in float32 on the CPU.

torch sends float32 products to MKL, which is about half as fast as oneDNN on processors of other makers; on Intel's own
they are alike. Same values up to the order of summation, same parameters, same names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def use_onednn(model: nn.Module) -> nn.Module:
    """Let all linear layers of the model use oneDNN when they are in float32 on the CPU; returns the model."""
    if torch.backends.mkldnn.is_available():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = _OneDNNLinear
    return model


class _OneDNNLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plain = input.dtype is self.weight.dtype is torch.float32 and input.device.type == "cpu"
        if not plain or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        flat = input.reshape(-1, self.in_features)
        return _Product.apply(flat, self.weight, self.bias).view(*input.shape[:-1], self.out_features)


class _Product(torch.autograd.Function):
    """x [N, in], weight [out, in], bias [out] or None -> [N, out]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _multiply(gradient, weight.t()) if for_x else None,
            _multiply(gradient.t(), x.t()) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [N, in] times weight [out, in] transposed."""
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight.contiguous(), bias, "none", [], "")
