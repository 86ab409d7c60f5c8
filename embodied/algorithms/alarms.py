"""Checks of what must hold by construction; each stops with, or returns, an explanation and what to do.

Functions named `require_*` raise CorrectnessAlarm; functions named `warn_*` return the text of a warning, or None. They
decide nothing about when they run or what is saved: that is the training loop's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from embodied.algorithms.groups import check_groups
from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.algorithms.statistics import sum_over_ranks
from embodied.errors import CorrectnessAlarm

require_groups = check_groups


@torch.no_grad()
def require_ratio_one(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, mask: torch.Tensor, *, tolerance: float = 1e-3
) -> None:
    """Before the first optimiser step, evaluating what was drawn must give the log-probability it was drawn with.

    All of one shape, mask bool; tolerance is of |logprob difference|. An empty mask passes. Raises CorrectnessAlarm.
    """
    gap = _gap("require_ratio_one", logprobs, old_logprobs, mask)
    worst = gap.max().item() if gap.numel() else 0.0
    if not worst <= tolerance:
        off = (~(gap <= tolerance) & mask).sum().item()
        raise CorrectnessAlarm(
            f"The importance ratio is not 1 at the first update: {off} of {mask.sum().item()} log-probabilities differ "
            f"by more than {tolerance:g}, the largest gap is {worst:.3g}. No parameter has changed since the actions "
            "were drawn, so acting and learning compute different distributions. Check that both use the same sampling "
            "options (temperature, top-k, top-p), the same prepared inputs, tokens and dtype, that the policy was in "
            "eval mode while acting and has no dropout left while learning, and that the weights were published."
        )


@torch.no_grad()
def warn_logprob_gap(
    acting: torch.Tensor, learning: torch.Tensor, mask: torch.Tensor, *, mean_tolerance: float, max_tolerance: float
) -> str | None:
    """Warning where log-probabilities of the acting and the learning side drift apart beyond either tolerance.

    All of one shape, mask bool; tolerances are of |difference|, the mean over valid entries and the largest.
    """
    gap = _gap("warn_logprob_gap", acting, learning, mask)
    count = int(mask.sum())
    if count == 0:
        return None
    mean, worst = (gap.sum() / count).item(), gap.max().item()
    if mean <= mean_tolerance and worst <= max_tolerance:
        return None
    return (
        f"Acting and learning log-probabilities differ by {mean:.3g} on average and {worst:.3g} at most (tolerated: "
        f"{mean_tolerance:g} and {max_tolerance:g}). Lower precision or other kernels on the acting side explain a "
        "small gap; a growing one means stale weights, another temperature or a cache that outlived a weight sync. Use "
        "the recomputed log-probabilities as old ones, or raise the acting side's precision."
    )


def require_finite_loss(loss: torch.Tensor, **parts: torch.Tensor) -> None:
    """Raise CorrectnessAlarm unless the loss is finite, naming which of `parts` (its ingredients) are not."""
    if not bool(torch.isfinite(loss).all()):
        raise CorrectnessAlarm(
            f"The loss is {loss.detach().flatten()[0].item() if loss.numel() else 'empty'}. "
            f"Not finite among its ingredients: {_not_finite(parts)}. "
            "No optimiser step was taken with it. Infinite ratios point to a learning rate that is too high or to "
            "log-probabilities of another policy (set a log-ratio clamp); NaN in log-probabilities or values to the "
            "policy's inputs or an earlier step in low precision."
        )


@torch.no_grad()
def require_finite_gradients(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise CorrectnessAlarm naming the parameters whose gradient is not finite; takes `named_parameters()`."""
    named = [(name, _local(p.grad)) for name, p in parameters if p.grad is not None]
    if not named:
        return
    finite = torch.stack([torch.isfinite(g).all() for _, g in named]).tolist()
    bad = [name for (name, _), ok in zip(named, finite, strict=True) if not ok]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise CorrectnessAlarm(
            f"The gradient of {len(bad)} of {len(named)} parameters is NaN or infinite: {', '.join(bad[:5])}{more}. "
            "The optimiser has not stepped. Lower the learning rate, clip the log-ratio, or look at the saved batch."
        )


@torch.no_grad()
def warn_constant_reward(scores: torch.Tensor, valid: torch.Tensor | None = None) -> str | None:
    """Warning where all valid entries of `scores` (rewards, returns or scores, any shape) of a batch are equal."""
    chosen = scores.flatten() if valid is None else scores[valid]
    if chosen.numel() < 2 or bool((chosen != chosen[0]).any()):
        return None
    return (
        f"All {chosen.numel()} rewards of the batch are {chosen[0].item():g}: nothing can be learnt from it. Either "
        "the task is always failed (start from a better policy, an easier task, or a denser reward) or always solved, "
        "or the reward function does not work: look at one episode or answer and its reward."
    )


@torch.no_grad()
def warn_actions_at_bounds(
    actions: torch.Tensor, low: torch.Tensor, high: torch.Tensor, valid: torch.Tensor, *, tolerance: float = 1e-6
) -> str | None:
    """Warning where every component of every valid action sits at a bound: a saturated policy explores nothing.

    actions: float [..., A]; low, high: float [A]; valid: bool [...]; tolerance: of the range of each component.
    """
    require_mask("warn_actions_at_bounds", valid=valid)
    require_shape("warn_actions_at_bounds", actions.shape[:-1], valid=valid)
    chosen = actions[valid]
    slack = tolerance * (high - low)
    if chosen.numel() == 0 or not bool(((chosen <= low + slack) | (chosen >= high - slack)).all()):
        return None
    return (
        f"All components of all {len(chosen)} actions are at their bounds. The policy is saturated (its standard "
        "deviation or its mean is too large for the action range), or actions are scaled twice. Check the "
        "normalisation of actions and the initial standard deviation."
    )


@torch.no_grad()
def fingerprint(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[int, float]]:
    """Name -> checksum of the bits and sum of magnitudes of each trainable parameter (this rank's shard of it)."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    prints = {}
    for name, parameter in parameters:
        if parameter.requires_grad:
            data = _local(parameter).detach().contiguous()
            checksum = data.view(bits[data.element_size()]).sum(dtype=torch.int64)
            prints[name] = (int(checksum), float(data.abs().sum(dtype=torch.float64)))
    return prints


def unchanged(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Names whose `fingerprint` is the same in both."""
    return [name for name, mark in before.items() if after.get(name) == mark]


def require_change(
    before: Mapping[str, tuple[int, float]],
    after: Mapping[str, tuple[int, float]],
    ranks: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Raise CorrectnessAlarm if an optimiser step changed no trainable parameter on any rank. Every rank must call.

    before, after: `fingerprint`s. device: where the message between ranks lives (an accelerator under NCCL).
    """
    changed = torch.tensor([len(before) - len(unchanged(before, after))], device=device)
    if int(sum_over_ranks(changed, ranks)) == 0:
        raise CorrectnessAlarm(
            f"The optimiser stepped but none of {len(before)} trainable parameters changed. All advantages may be zero "
            "(see the reward warnings), the learning rate may be 0 or below the resolution of the parameters' dtype "
            "(bfloat16 needs float32 master weights), or the optimiser holds other parameters than the policy."
        )


def _gap(function: str, first: torch.Tensor, second: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    require_mask(function, mask=mask)
    require_shape(function, first.shape, second=second, mask=mask)
    return fill((first - second).abs(), mask)


def _not_finite(parts: Mapping[str, torch.Tensor]) -> str:
    bad = [f"{name} ({(~torch.isfinite(p)).sum().item()} of {p.numel()})" for name, p in parts.items()]
    bad = [text for text, p in zip(bad, parts.values(), strict=True) if not bool(torch.isfinite(p).all())]
    return ", ".join(bad) if bad else "none of those given"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a distributed tensor; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
