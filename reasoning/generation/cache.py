"""Keys and values of the running responses: one slot each, always the first n slots, and prompts that several share."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prompt worked out once. stored: its keys and values [layers, 2, kv heads, S, head size].

    logits: [V], of its next token.
    """

    stored: torch.Tensor
    logits: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens."""
        return self.stored.shape[3]


class SlotCache:
    """stored: keys and values [layers, 2, slots, kv heads, capacity, head size].

    Memory that was never written is zero and stays untouched on the CPU until it is.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        heads: int,
        capacity: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # zeros, not empty: a masked place still enters a product with weight 0, and 0 times NaN is NaN
        self.stored = torch.zeros((layers, 2, slots, heads, capacity, size), dtype=dtype, device=device)

    @property
    def slots(self) -> int:
        """How many responses at once."""
        return self.stored.shape[2]

    @property
    def capacity(self) -> int:
        """Tokens of one slot, prompt and response."""
        return self.stored.shape[4]

    def fill(self, slot: int, prefix: Prefix) -> None:
        """Begin a slot with a prompt."""
        self.stored[:, :, slot, :, : prefix.length] = prefix.stored

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        self.stored[:, :, target, :, :length] = self.stored[:, :, source, :, :length]
