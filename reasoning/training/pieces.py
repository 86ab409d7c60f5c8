"""Which responses share a forward pass: of similar lengths, in pieces of about equal cost. Order changes no value.

Every rank computes the same division from everybody's lengths, so all know how many passes the slowest needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from embodied.config import config
from embodied.learner.batches import Step, plan_steps
from reasoning.training.algorithm import Samples


@config
class LayoutConfig:
    """micro_tokens: tokens of one forward pass, padding included; a longer response has a pass of its own.
    rows: `padded` puts one sequence into a row, `packed` several behind each other in rows of `row_tokens`.
    """

    micro_tokens: int = 16384
    rows: Literal["padded", "packed"] = "padded"
    row_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.micro_tokens < 1 or self.row_tokens < 1:
            raise ValueError(
                f"micro_tokens is {self.micro_tokens}, row_tokens {self.row_tokens}; both must be at least 1"
            )

    @property
    def packing(self) -> int | None:
        """Tokens of a packed row; None where rows are padded."""
        return self.row_tokens if self.rows == "packed" else None


def divide(lengths: Sequence[int], options: LayoutConfig) -> list[list[int]]:
    """Indices of sequences in pieces of at most `micro_tokens` each, the longest first; every index once."""
    pieces: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # a padded row is as long as the longest of its piece, which came first
        cost = lengths[pieces[-1][0]] if pieces and options.packing is None else lengths[index]
        if not pieces or cost > room:
            pieces.append([])
            cost, room = lengths[index], max(options.micro_tokens, lengths[index])
        pieces[-1].append(index)
        room -= cost
    return pieces


def sequence_lengths(samples: Samples) -> torch.Tensor:
    """int64 [N]: tokens of prompt and response."""
    return samples.prompt_length + samples.length


def plan(
    everywhere: torch.Tensor,
    rank: int,
    options: LayoutConfig,
    *,
    batch: int | None,
    generator: torch.Generator,
) -> list[tuple[torch.Tensor, list[list[int]], int]]:
    """The optimiser steps of one pass over all samples: this rank's rows, their division into pieces (indices into
    those rows), and how many pieces every rank runs.

    everywhere: int64 [N, 3], of all ranks' samples: order, rank, tokens; rank after rank. batch: samples of a global
    batch; where it does not divide N, batches are made equal and their number is the nearest.
    """
    owner, tokens = everywhere[:, 1], everywhere[:, 2]
    # plan_steps shuffles alike for every rank, so asking it for each gives the division of all
    by_rank: dict[int, list[Step]] = {}
    state = generator.get_state()
    for other in sorted({rank, *owner.tolist()}):
        generator.set_state(state)
        by_rank[other] = plan_steps(
            everywhere[:, 0], owner, other, batch=batch, micro_batch=None, generator=generator, nearest=True
        )
    first = {other: int((owner < other).sum()) for other in by_rank}
    planned = []
    for number in range(len(by_rank[rank])):
        pieces = {
            other: divide(tokens[first[other] + own[number].rows].tolist(), options) for other, own in by_rank.items()
        }
        planned.append((by_rank[rank][number].rows, pieces[rank], max(len(p) for p in pieces.values())))
    return planned
