"""Keys and values of the running responses: one slot each, always the first n slots, and prompts that several share."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prompt worked out once. keys and values: [layers, kv heads, S, head size]. logits: [V], of its next token."""

    keys: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens."""
        return self.keys.shape[2]


class SlotCache:
    """keys and values: [layers, slots, kv heads, capacity, head size].

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
        shape = (layers, slots, heads, capacity, size)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def slots(self) -> int:
        """How many responses at once."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Tokens of one slot, prompt and response."""
        return self.keys.shape[3]

    def fill(self, slot: int, prefix: Prefix) -> None:
        """Begin a slot with a prompt."""
        self.keys[:, slot, :, : prefix.length] = prefix.keys
        self.values[:, slot, :, : prefix.length] = prefix.values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]
