"""The feed-forward half of a layer: one block for all tokens, or a mixture of experts of which a router picks a few."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from reasoning.generation.linear import Linear


class Dense:
    """x [N, hidden] -> [N, hidden]. gate_up: [2 inner, hidden], joined; down: [hidden, inner]."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up, self._down = gate_up, down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._down(F.silu(gate) * up)


class Experts:
    """x [N, hidden] -> [N, hidden], each token the weighted sum of what its experts say.

    Tokens are sorted by expert, so that an expert's matrices are read once however many tokens it has. On the CPU each
    expert is a `Dense` of its own with matrices laid out for it; elsewhere all of them are two grouped products.

    Args:
        router: [E, hidden]. gate_up: [E, 2 inner, hidden]. down: [E, hidden, inner].
        chosen: experts of a token. normed: whether the weights of these add up to 1.
    """

    def __init__(
        self, router: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *, chosen: int, normed: bool
    ) -> None:
        self._router = Linear(router)
        self._chosen, self._normed = chosen, normed
        self._count = len(router)
        self._each: list[Dense] = []
        if router.device.type == "cpu":
            self._each = [Dense(Linear(up), Linear(back)) for up, back in zip(gate_up, down, strict=True)]
        else:
            self._gate_up, self._down = gate_up.transpose(1, 2), down.transpose(1, 2)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        rows = x[order // self._chosen]
        counts = torch.bincount(flat, minlength=self._count)
        if self._each:
            parts = zip(self._each, rows.split(counts.tolist()), strict=True)
            said = torch.cat([expert(part) for expert, part in parts if len(part)])
        else:
            said = grouped(rows, self._gate_up, self._down, counts)
        # back into the order of the tokens; a sum over a dimension, unlike scattered additions, always rounds alike
        said = said[order.argsort()].view(len(x), self._chosen, -1)
        return (said * weights[..., None]).sum(1)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and indices [N, chosen] of each token's experts."""
        probabilities = self._router(x).softmax(-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._chosen, dim=-1)
        if self._normed:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen


def grouped(rows: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows [M, hidden] sorted by expert, of which expert e has counts[e], through gate_up [E, hidden, 2 inner] and down
    [E, inner, hidden] -> [M, hidden]."""
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up, offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, down, offs=ends)
