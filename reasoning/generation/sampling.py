"""The distribution tokens are drawn from, and drawing from it. Generation and learning both use these functions.

The order is fixed: float32, temperature, top-k, top-p, log-softmax. A draw is the inverse of the cumulative
distribution at one uniform number, so it depends on the row's own noise and on nothing else in the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from embodied.random import RowNoise
from reasoning.generation.api import Sampling


@dataclasses.dataclass(frozen=True)
class RowSampling:
    """The options of B rows as tensors. temperature float32 [B, 1], or one number when all rows agree.

    top_k int64 [B, 1] and top_p float32 [B, 1], or None when no row filters; greedy bool [B], or None when no row is.
    """

    temperature: torch.Tensor | float
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    greedy: torch.Tensor | None

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int, device: torch.device | str) -> RowSampling:
        """Gather the options of the rows."""
        temperatures = [row.temperature for row in rows]
        temperature: torch.Tensor | float = temperatures[0]
        if any(t != temperatures[0] for t in temperatures):
            temperature = torch.tensor(temperatures, device=device)[:, None]
        filtered = any(row.top_k is not None or row.top_p < 1 for row in rows)
        greedy = [row.decode == "greedy" for row in rows]
        return cls(
            temperature,
            torch.tensor([row.top_k or vocabulary for row in rows], device=device)[:, None] if filtered else None,
            torch.tensor([row.top_p for row in rows], device=device)[:, None] if filtered else None,
            torch.tensor(greedy, device=device) if any(greedy) else None,
        )


def filter_logits(logits: torch.Tensor, options: RowSampling) -> torch.Tensor:
    """Logits [B, V] of any dtype -> float32 logits of the distribution drawn from, -inf where nothing is drawn."""
    logits = logits.float()
    if not (isinstance(options.temperature, float) and options.temperature == 1.0):
        logits = logits / options.temperature
    if options.top_k is None or options.top_p is None:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(ranks >= options.top_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    # a token is kept while those before it do not yet have top_p together; so the first one always is
    before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill((before >= options.top_p) & (ranks > 0), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)


def draw(logits: torch.Tensor, noise: torch.Tensor, options: RowSampling) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row: logits [B, V], noise float32 [B] in (0, 1) -> tokens int64 [B], logprobs float32 [B]."""
    probabilities = filter_logits(logits, options).softmax(-1)
    cumulative = probabilities.cumsum(-1)
    target = noise[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target).clamp_(max=logits.shape[-1] - 1)
    if options.greedy is not None:
        tokens = torch.where(options.greedy[:, None], logits.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0], probabilities.gather(1, tokens)[:, 0].log()


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities of given tokens under the distribution they are drawn from; differentiable.

    logits [..., V], tokens int64 [...] -> float32 [...]. -inf for a token that top_k or top_p would not draw.
    """
    options = RowSampling.of([sampling], logits.shape[-1], logits.device)
    filtered = filter_logits(logits, options)
    return filtered.gather(-1, tokens[..., None])[..., 0] - filtered.logsumexp(-1)


class TokenNoise:
    """The uniform numbers of one request, a pure function of (seed, position in the response); drawn in blocks."""

    _BLOCK = 64

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = -1
        self._values: list[float] = []

    def at(self, position: int) -> float:
        """The number for the token at `position` of the response, in (0, 1)."""
        block, place = divmod(position, self._BLOCK)
        if block != self._block:
            positions = np.arange(block * self._BLOCK, (block + 1) * self._BLOCK)
            self._values = RowNoise(self._seed, np.zeros_like(positions), positions).uniform().tolist()
            self._block = block
        return self._values[place]
