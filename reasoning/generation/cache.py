"""Keys and values of the running responses: one slot each, always the first n slots, and prompts that several share."""

from __future__ import annotations

import dataclasses

import torch

_GRANULE = 16


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
    """stored: keys and values [layers, 2, slots, kv heads, room, head size]; room grows up to `capacity` as needed.

    A product of matrices on the CPU copies a slice of tokens before it begins, so there a step attends to all the room
    there is, and the room is kept close to what is used. On a GPU all of it is there from the start.
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
        self.slots = slots
        self.capacity = capacity
        self._granule = _GRANULE if device.type == "cpu" else capacity
        self._shape = (layers, 2, slots, heads, size)
        self.stored = self._empty(0, dtype, device)

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens."""
        room = self.stored.shape[4]
        if length > room:
            grown = self._empty(length, self.stored.dtype, self.stored.device)
            grown[:, :, :, :, :room] = self.stored
            self.stored = grown

    def reset(self) -> None:
        """Let memory go that long sequences needed; for when no slot is in use."""
        if self.stored.shape[4] > self._granule:
            self.stored = self._empty(0, self.stored.dtype, self.stored.device)

    def release(self) -> None:
        """Let all memory go; the next sequence takes it again."""
        self.stored = self.stored[..., :0, :].clone()

    def width(self, span: int) -> int:
        """How many places a step attends to, of which the first `span` are in use."""
        return self.stored.shape[4] if self.stored.device.type == "cpu" else span

    def fill(self, slot: int, prefix: Prefix) -> None:
        """Begin a slot with a prompt."""
        self.reserve(prefix.length)
        self.stored[:, :, slot, :, : prefix.length] = prefix.stored

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        self.stored[:, :, target, :, :length] = self.stored[:, :, source, :, :length]

    def _empty(self, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        layers, two, slots, heads, size = self._shape
        room = min(self.capacity, max(1, -(-length // self._granule)) * self._granule)
        # zeros, not empty: a masked place still enters a product with weight 0, and 0 times NaN is NaN
        with torch.inference_mode(False):  # it is also written to where that mode is off
            return torch.zeros((layers, two, slots, heads, room, size), dtype=dtype, device=device)
