"""From per-entry loss terms to one number, so that pieces of a batch add up to exactly the gradient of the whole.

The denominator belongs to the whole batch of one optimiser step: `loss_denominator` computes it before the first
backward pass from the masks alone, over all ranks, and every micro-batch divides its sum by that same number. Gradients
of micro-batches and ranks are therefore *added*; where ranks average (FSDP, DDP), multiply the loss by their number.
"""

from __future__ import annotations

import enum

import torch
import torch.distributed as dist

from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.algorithms.statistics import sum_over_ranks
from embodied.errors import ConfigurationError, CorrectnessAlarm, suggest


class Aggregation(enum.StrEnum):
    """How terms are weighted. A sequence is one index of the first dimension with everything behind it, so [N, L] are N
    responses of L tokens and [N, C, D] are N decisions of C * D tokens. Empty sequences count nowhere."""

    TOKEN_MEAN = "token-mean"  # every valid entry of the batch weighs the same
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"  # a sequence's terms are summed, sequences averaged
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"  # a sequence's terms are averaged, sequences averaged
    TRAJECTORY_LENGTH = "trajectory-length"  # a trajectory's terms are divided by its length, trajectories averaged


def loss_denominator(
    mask: torch.Tensor,
    mode: Aggregation | str,
    *,
    lengths: torch.Tensor | None = None,
    ranks: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """What `aggregate` divides by, float64, 0-dim: entries, sequences or trajectories of the whole batch on all ranks.

    Args:
        mask: bool, of every term this rank contributes to the optimiser step, in the terms' own shape (`levels.mask_to`
            makes it: a mask with one entry for seven tokens would make the loss seven times too large).
        mode: see Aggregation.
        lengths: only for `trajectory-length`: in the mask's shape, the number of valid terms of the whole trajectory
            that a term belongs to, wherever its other terms are (see `trajectory_lengths`).
        ranks: process group; None is the default group, nothing is sent without an initialised torch.distributed.

    Add the results where the batch comes in several tensors.
    """
    kind = parse_aggregation(mode)
    require_mask("loss_denominator", mask=mask)
    if kind is Aggregation.TOKEN_MEAN:
        local = mask.sum().double()
    elif kind is Aggregation.TRAJECTORY_LENGTH:
        local = fill(1.0 / _lengths(mask, lengths), mask).sum()
    else:
        local = mask.reshape(mask.shape[0], -1).any(1).sum().double()
    return sum_over_ranks(local, ranks)


def aggregate(
    terms: torch.Tensor,
    mask: torch.Tensor,
    mode: Aggregation | str,
    denominator: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """This piece's share of the batch's loss, 0-dim with gradient; the shares of all pieces sum to the loss.

    terms and mask (bool) have one shape; denominator comes from `loss_denominator`; lengths as there. Under the `seq`
    modes a sequence must lie whole within a piece. A denominator of 0 (nothing valid anywhere) gives 0 and gradient 0.
    """
    kind = parse_aggregation(mode)
    require_mask("aggregate", mask=mask)
    require_shape("aggregate", terms.shape, mask=mask)
    terms = fill(terms, mask)
    if kind is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        rows = mask.reshape(mask.shape[0], -1)
        terms = terms.reshape(rows.shape).sum(1) / rows.sum(1).clamp(min=1)
    elif kind is Aggregation.TRAJECTORY_LENGTH:
        terms = terms / _lengths(mask, lengths).to(terms.dtype)
    scale = torch.where(denominator > 0, denominator, torch.ones_like(denominator))
    return terms.sum() / scale.to(terms.dtype)


def trajectory_lengths(mask: torch.Tensor, trajectory: torch.Tensor) -> torch.Tensor:
    """int64, in the shape of `mask`: the number of valid terms of each term's trajectory; 1 for an empty one.

    mask: bool [N, ...]. trajectory: int64 [N], non-negative numbers of the trajectories that the N rows belong to.
    """
    require_mask("trajectory_lengths", mask=mask)
    require_shape("trajectory_lengths", mask.shape[:1], trajectory=trajectory)
    per_row = mask.reshape(len(mask), -1).sum(1)
    _, dense = trajectory.unique(return_inverse=True)
    totals = torch.zeros_like(per_row).index_add_(0, dense, per_row)
    return totals[dense].clamp(min=1).reshape(-1, *[1] * (mask.dim() - 1)).expand(mask.shape)


def parse_aggregation(mode: Aggregation | str) -> Aggregation:
    """The enum member of that name; raises ConfigurationError for any other."""
    try:
        return Aggregation(mode)
    except ValueError:
        raise ConfigurationError(f"loss aggregation is {mode!r}. " + suggest(mode, Aggregation)) from None


def _lengths(mask: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """float64 lengths of at least 1 (entries under the mask may hold anything)."""
    if lengths is None:
        raise ConfigurationError("trajectory-length aggregation needs `lengths`; see aggregation.trajectory_lengths.")
    require_shape("trajectory-length aggregation", mask.shape, lengths=lengths)
    if bool((mask & (lengths < 1)).any()):
        raise CorrectnessAlarm("A valid term belongs to a trajectory of length 0; lengths do not belong to this mask.")
    return torch.where(mask, lengths, torch.ones_like(lengths)).double()
