"""Which samples make up which optimiser step, on one rank or on many: the same ones either way.

Samples have a place in an order of all ranks' samples. Every rank shuffles that whole order alike and takes its own
samples out of each global batch, so a run on two ranks steps on the batches of a run on one.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Step:
    """One optimiser step.

    rows: int64, this rank's samples of the global batch, maybe none. pieces: how many micro-batches every rank runs; a
    rank with fewer of its own fills up with ones that count for nothing.
    """

    rows: torch.Tensor
    pieces: int


def plan_steps(
    order: torch.Tensor,
    owner: torch.Tensor,
    rank: int,
    *,
    batch: int | None,
    micro_batch: int | None,
    generator: torch.Generator,
    nearest: bool = False,
) -> list[Step]:
    """The optimiser steps of one pass over all samples.

    Args:
        order: int64 [N], places of all ranks' samples, rank after rank, each rank's in the order it holds them.
        owner: int64 [N], the rank that holds each.
        rank: this rank.
        batch, micro_batch: most samples of a global batch, over all ranks, and of one forward pass on one rank; None:
            all. Where a batch does not divide N, the same number of steps gets as equal a share as can be.
        generator: the same on every rank.
        nearest: the number of steps is the one with which batches come nearest to `batch`, which may then be exceeded.
    """
    count = len(order)
    first_of_rank = (owner == rank).nonzero().flatten()[:1]
    offset = int(first_of_rank[0]) if len(first_of_rank) else 0
    shuffled = order.argsort()[torch.randperm(count, generator=generator)]
    steps = []
    # in equal parts: a remainder of a few samples would make a whole step of the optimiser
    parts = 1 if batch is None else max(1, round(count / batch)) if nearest else -(-count // batch)
    for chosen in shuffled.tensor_split(parts):
        owners = owner[chosen]
        largest = int(owners.bincount().max())
        pieces = 1 if micro_batch is None else -(-largest // micro_batch)
        steps.append(Step(chosen[owners == rank] - offset, pieces))
    return steps
