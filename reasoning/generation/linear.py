"""Products of a few rows with large matrices, which is all that generation does.

On the CPU the matrix is laid out once for oneDNN, as torch's own compiler does for frozen models; each product is then
about twice as fast in float32 (see benchmarks/results/generation.md). Elsewhere it is an ordinary linear layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_ROWS = 32


class Linear:
    """x [N, in] -> x W^T + b [N, out], for weights that do not change."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, _ROWS) if _can_pack(weight) else None
        if self._packed is not None:
            self._weight = torch.empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32
