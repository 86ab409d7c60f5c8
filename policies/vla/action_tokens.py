"""Actions as tokens: 256 bins on [-1, 1] that take the last 256 ids of the language model's vocabulary.

The scheme is OpenVLA's (Kim et al. 2024, section 3.2, after RT-2): ids count down from the end of the vocabulary, so
that the smallest action has the largest id. 256 bin edges enclose 255 bins, hence the two smallest ids decode alike.
"""

from __future__ import annotations

import torch


class ActionTokenizer:
    """Maps normalised actions to token ids and back.

    Args:
        vocab_end: one above the largest action id; 32000 for LLaMA-2 (the padding rows above do not count).
        bins: number of bin edges, and of ids set aside.
    """

    def __init__(self, vocab_end: int, bins: int = 256) -> None:
        self.bins = bins
        self.vocab_end = vocab_end
        self.first = vocab_end - bins
        self._edges = torch.linspace(-1, 1, bins, dtype=torch.float64, device="cpu")
        self._centers = (self._edges[:-1] + self._edges[1:]) / 2

    @property
    def rows(self) -> slice:
        """The rows of the output head that score actions."""
        return slice(self.first, self.vocab_end)

    def encode(self, actions: torch.Tensor) -> torch.Tensor:
        """int64 ids, same shape as `actions`, which are normalised and clipped to [-1, 1] here."""
        clipped = actions.detach().to("cpu", torch.float64).clamp(-1, 1)
        bin_above = torch.bucketize(clipped, self._edges, right=True)
        return (self.vocab_end - bin_above).to(actions.device)

    def decode(self, ids: torch.Tensor) -> torch.Tensor:
        """float64 bin centres in (-1, 1), same shape as `ids`, which must be action ids."""
        bins = (self.vocab_end - 1 - ids).clamp(0, self.bins - 2)
        return self._centers.to(ids.device)[bins]

    def spread(self, actions: torch.Tensor, deviation: float) -> torch.Tensor:
        """float32 [..., bins]: `actions` [...] as probabilities of the ids from `first` on, a normal distribution
        of so much standard deviation over the bin centres. The id that only repeats a centre gets none."""
        ids = torch.arange(self.first, self.vocab_end, device=actions.device)
        gaps = self.decode(ids).float() - actions.clamp(-1, 1)[..., None]
        scores = -0.5 * (gaps / deviation).square()
        scores[..., 0] = -torch.inf
        return scores.softmax(-1)
