"""Inputs of unlike sizes brought to one: by the mean and deviation of everything that was trained on so far.

Counts, means and squared deviations are kept in float64 and merged as Chan, Golub and LeVeque do ("Updating formulae
and a pairwise algorithm for computing sample variances", 1979), so neither many rows nor several ranks lose digits.
"""

from __future__ import annotations

import torch
from torch import nn

_LARGEST = 5.0  # deviations; what lies further out is cut, so that a first sight of something new breaks nothing
_SMALLEST = 1e-2  # a deviation; columns that hardly move are not blown up to noise


class RunningScale(nn.Module):
    """columns: S, the numbers of a row. Before anything was absorbed rows pass as they are."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(columns, dtype=torch.float64))

    @property
    def deviation(self) -> torch.Tensor:
        """float64 [S]: of the population, at least 0.01; 1 before anything was absorbed."""
        spread = (self.squares / self.count.clamp_min(1)).sqrt().clamp_min(_SMALLEST)
        return torch.where(self.count > 0, spread, torch.ones_like(spread))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [B, S] -> float32 [B, S], from -5 to 5 deviations once something was absorbed."""
        scaled = (rows - self.mean.float()) / self.deviation.float()
        limit = torch.where(self.count > 0, _LARGEST, torch.inf).float()
        return torch.maximum(torch.minimum(scaled, limit), -limit)

    @staticmethod
    @torch.no_grad()
    def summary(rows: torch.Tensor) -> torch.Tensor:
        """float64 [1, 1 + 2 S]: count, means and squared deviations of rows [N, S]."""
        rows = rows.double()
        mean = rows.sum(0) / max(len(rows), 1)
        return torch.cat([rows.new_tensor([len(rows)]), mean, (rows - mean).square().sum(0)])[None]

    @torch.no_grad()
    def absorb(self, summaries: torch.Tensor) -> None:
        """Take in summaries [W, 1 + 2 S], in their order."""
        for summary in summaries.to(self.mean.device):
            count, (mean, squares) = summary[0], summary[1:].view(2, -1)
            total = self.count + count
            gap = mean - self.mean
            share = count / total.clamp_min(1)
            self.squares.add_(squares + gap.square() * self.count * share)
            self.mean.add_(gap * share)
            self.count.copy_(total)
