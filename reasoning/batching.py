"""Arranging sequences of different lengths: evenly over ranks, and packed into rows without padding.

Pure functions of lengths and tensors; they reorder and restore, and change no value. Packed sequences do not see each
other: the mask is block-diagonal and positions start anew.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


class Counts(enum.StrEnum):
    """How many sequences each part gets: any number, or the same (one more where it does not divide)."""

    ANY = "any"
    EQUAL = "equal"


def balance(costs: Sequence[float], parts: int, counts: Counts = Counts.ANY) -> list[list[int]]:
    """Indices of `costs` in `parts` parts of nearly equal sums: the costliest first, each to the part that has least.

    The largest sum is at most 4/3 of the best possible one for Counts.ANY (Graham 1969). Every index occurs once, in
    ascending order within its part. Raises ValueError for fewer than one part.
    """
    if parts < 1:
        raise ValueError(f"cannot balance over {parts} parts; at least 1 is needed")
    room = [-(-(len(costs) - part) // parts) if counts is Counts.EQUAL else len(costs) for part in range(parts)]
    chosen: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        total, part = heapq.heappop(heap)
        while len(chosen[part]) >= room[part]:  # full parts leave the heap
            total, part = heapq.heappop(heap)
        chosen[part].append(index)
        heapq.heappush(heap, (total + costs[index], part))
    return [sorted(part) for part in chosen]


def restore(parts: Sequence[Sequence[int]], values: Sequence[Sequence[T]]) -> list[T]:
    """Undo `balance` or `pack`: the values of the parts, in the order of the original sequences."""
    placed = {i: v for part, given in zip(parts, values, strict=True) for i, v in zip(part, given, strict=True)}
    return [placed[index] for index in range(len(placed))]


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in rows whose lengths add up to at most `capacity`: the longest first, into the first row
    with room (first-fit decreasing, at most 11/9 of the fewest rows + 1).

    Raises ValueError when one sequence is longer than a row.
    """
    if lengths and max(lengths) > capacity:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens does not fit into rows of {capacity}; raise the capacity"
        )
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((row for row, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            place = len(rows)
            rows.append([])
            room.append(capacity)
        rows[place].append(index)
        room[place] -= lengths[index]
    return rows


@dataclasses.dataclass(frozen=True)
class Packed:
    """Sequences laid into rows.

    tokens, positions: int64 [R, T]; positions count from 0 in each sequence. segments: int64 [R, T], the number of the
    sequence in its row from 1, 0 where nothing is. rows: which sequences are in which row, in order.
    lengths: of all sequences.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor
    rows: list[list[int]]
    lengths: list[int]

    def mask(self) -> torch.Tensor:
        """bool [R, 1, T, T]: where row position i may look at j: earlier in the same sequence, or itself.

        Empty places look at themselves, so that no softmax is over nothing.
        """
        same = self.segments[:, :, None] == self.segments[:, None, :]
        length = self.tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        return (same & causal)[:, None]

    def spread(self, sequences: Sequence[torch.Tensor], fill: float = 0) -> torch.Tensor:
        """[R, T]: per-token values of each sequence, laid out as the tokens are."""
        laid = torch.full(self.tokens.shape, fill, dtype=sequences[0].dtype, device=self.tokens.device)
        for row, start, index in self._places():
            laid[row, start : start + self.lengths[index]] = sequences[index]
        return laid

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Undo `spread`: [R, T, ...] -> per sequence [N, ...], in the original order."""
        found: dict[int, torch.Tensor] = {}
        for row, start, index in self._places():
            found[index] = values[row, start : start + self.lengths[index]]
        return [found[index] for index in range(len(self.lengths))]

    def _places(self) -> list[tuple[int, int, int]]:
        """(row, first place, sequence) of every sequence."""
        places = []
        for row, indices in enumerate(self.rows):
            start = 0
            for index in indices:
                places.append((row, start, index))
                start += self.lengths[index]
        return places


def pack_sequences(sequences: Sequence[torch.Tensor], capacity: int, *, padding: int) -> Packed:
    """Lay token sequences int64 [N] into rows of at most `capacity`; rows are as long as the fullest needs."""
    lengths = [len(sequence) for sequence in sequences]
    rows = pack(lengths, capacity)
    width = max(sum(lengths[i] for i in row) for row in rows)
    shape = (len(rows), width)
    empty = Packed(
        torch.full(shape, padding, device=sequences[0].device),
        torch.zeros(shape, dtype=torch.int64, device=sequences[0].device),
        torch.zeros(shape, dtype=torch.int64, device=sequences[0].device),
        rows,
        lengths,
    )
    place = {index: number for row in rows for number, index in enumerate(row, start=1)}
    return dataclasses.replace(
        empty,
        tokens=empty.spread(sequences, fill=padding),
        positions=empty.spread([torch.arange(len(s), device=s.device) for s in sequences]),
        segments=empty.spread([torch.full_like(s, place[i]) for i, s in enumerate(sequences)]),
    )
