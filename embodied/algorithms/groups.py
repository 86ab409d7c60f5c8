"""Advantages from scores of whole trajectories: GRPO, RLOO, REINFORCE++ and the filters that go with them.

A score is one number a trajectory, [N]; `group_ids` [N] says which trajectories were attempts at the same thing (one
prompt, or one task, initial state and world seed). Members of a group need not be neighbours, but all must be present:
with groups spread over ranks call `statistics.gather_rows` on scores and ids first, then take this rank's slice.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from embodied.algorithms.advantages import discounted_returns
from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.algorithms.statistics import Deviation, whiten
from embodied.errors import ConfigurationError, CorrectnessAlarm, suggest


@torch.no_grad()
def grpo(
    scores: torch.Tensor,
    group_ids: torch.Tensor,
    *,
    deviation: Deviation | str = Deviation.SAMPLE,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Group relative advantage (Shao et al., DeepSeekMath, 2024): (score - group mean) / (group std + epsilon), [N].

    Args:
        scores: float [N]. group_ids: int [N], any numbers.
        deviation: `sample` divides squared deviations by n - 1, `population` by n, `none` leaves the difference as
            it is (Liu et al., "Understanding R1-Zero-like training", 2025).

    A group of one, and a group whose scores are all equal, get exactly 0. Invariant to a shift of a group's scores and,
    but for epsilon, to their scale.
    """
    kind = parse_deviation(deviation)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigurationError(f"epsilon is {epsilon}; expected a finite number of at least 0.")
    group, count = _index_groups("grpo", scores, group_ids)
    centred, size = _centre(scores, group, count)
    if kind is not Deviation.NONE:
        squares = torch.zeros(count, dtype=torch.float64, device=scores.device).index_add_(0, group, centred.square())
        degrees = (size - 1 if kind is Deviation.SAMPLE else size).clamp(min=1)
        scale = (squares / degrees).sqrt() + epsilon
        centred = centred / torch.where(scale > 0, scale, 1.0)[group]
    return centred.to(scores.dtype)


@torch.no_grad()
def rloo(scores: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Leave-one-out advantage (Ahmadian et al., "Back to basics", 2024), [N]: score minus the mean of the others.

    Exactly 0 for a group of one (there is nobody to compare with) and for equal scores.
    """
    group, count = _index_groups("rloo", scores, group_ids)
    centred, size = _centre(scores, group, count)
    return (centred * (size / (size - 1).clamp(min=1))[group]).to(scores.dtype)


@torch.no_grad()
def reinforce_pp(
    scores: torch.Tensor,
    valid: torch.Tensor,
    *,
    kl: torch.Tensor | None = None,
    kl_coefficient: float = 0.0,
    gamma: float = 1.0,
    epsilon: float = 1e-8,
    ranks: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """REINFORCE++ (Hu et al., 2025): return to go of the per-step reward, whitened over the whole batch, [S, B].

    Args:
        scores: float [B]; one a trajectory, paid at its last valid step, never on padding.
        valid: bool [S, B]; a trajectory's steps (for language models its tokens, time-major).
        kl: float [S, B]; per-step divergence from the reference policy, subtracted as a penalty.
        kl_coefficient: weight of that penalty; needs `kl` when it is not 0.
        epsilon: added to the deviation (of the population, as in the authors' code).
        ranks: process group that the whitening spans, see `statistics.whiten`. Every rank must call.

    0 where not valid; a trajectory without a valid step contributes nothing.
    """
    require_mask("reinforce_pp", valid=valid)
    require_shape("reinforce_pp", valid.shape[1:], scores=scores)
    if kl_coefficient and kl is None:
        raise ConfigurationError(f"kl_coefficient is {kl_coefficient} but no kl was given; pass both or neither.")
    last = last_valid(valid)
    rewards = fill(scores.expand(valid.shape), last)
    if kl is not None:
        require_shape("reinforce_pp", valid.shape, kl=kl)
        rewards = rewards - kl_coefficient * fill(kl, valid)
    returns = discounted_returns(rewards, last, valid, gamma=gamma)
    return whiten(returns, valid, epsilon=epsilon, deviation=Deviation.POPULATION, ranks=ranks)


@torch.no_grad()
def reinforce_pp_baseline(
    scores: torch.Tensor,
    group_ids: torch.Tensor,
    valid: torch.Tensor,
    *,
    kl: torch.Tensor | None = None,
    kl_coefficient: float = 0.0,
    gamma: float = 1.0,
    epsilon: float = 1e-8,
    ranks: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """REINFORCE++ with baseline (Hu et al., 2025): the group's mean score is subtracted before `reinforce_pp`, [S, B].

    scores float [B], group_ids int [B], the rest as in `reinforce_pp`. The scale is the batch's, not the group's.
    """
    group, count = _index_groups("reinforce_pp_baseline", scores, group_ids)
    centred = _centre(scores, group, count)[0].to(scores.dtype)
    return reinforce_pp(centred, valid, kl=kl, kl_coefficient=kl_coefficient, gamma=gamma, epsilon=epsilon, ranks=ranks)


def first_episode(terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """bool [S, B]: the valid steps up to and including the first end; all bool [S, B], time-major.

    The loss mask of algorithms that score one trajectory an environment, whatever the simulator did afterwards.
    """
    require_mask("first_episode", terminated=terminated, truncated=truncated, valid=valid)
    require_shape("first_episode", valid.shape, terminated=terminated, truncated=truncated)
    ended = ((terminated | truncated) & valid).int()
    return valid & (ended.cumsum(0) - ended == 0)


def cut_short(terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """bool [B]: whether a step before the first end never happened, as where a simulator died or was left behind. What
    such a column shows afterwards is another attempt. All bool [S, B], time-major."""
    require_mask("cut_short", terminated=terminated, truncated=truncated, valid=valid)
    require_shape("cut_short", valid.shape, terminated=terminated, truncated=truncated)
    ended = ((terminated | truncated) & valid).int()
    return (~valid & (ended.cumsum(0) == 0)).any(0)


def in_whole_groups(whole: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """bool [N]: the trajectories of groups all of whose members are `whole` (bool [N])."""
    require_mask("in_whole_groups", whole=whole)
    group, count = _index_groups("in_whole_groups", whole, group_ids)
    lost = torch.zeros(count, dtype=torch.bool, device=whole.device)
    lost[group[~whole]] = True
    return ~lost[group]


def first_episode_return(
    rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """Undiscounted return of each environment's first episode, [B]; rewards float [S, B], the rest bool [S, B]."""
    require_shape("first_episode_return", valid.shape, rewards=rewards)
    return fill(rewards, first_episode(terminated, truncated, valid)).sum(0)


def last_valid(valid: torch.Tensor) -> torch.Tensor:
    """bool [S, B]: the last valid step of each column of `valid` [S, B]; nowhere in a column without one."""
    remaining = valid.flip(0).cumsum(0).flip(0)
    return valid & (remaining == 1)


def broadcast_to_steps(advantages: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """One advantage a trajectory [B] on every valid step [S, B] of it; 0 elsewhere."""
    require_mask("broadcast_to_steps", valid=valid)
    require_shape("broadcast_to_steps", valid.shape[1:], advantages=advantages)
    return fill(advantages.expand(valid.shape), valid)


def check_groups(group_ids: torch.Tensor, group_size: int) -> None:
    """Raise CorrectnessAlarm unless every group of `group_ids` [N] has exactly `group_size` members, in any order."""
    ids, counts = group_ids.unique(return_counts=True)
    broken = counts != group_size
    if bool(broken.any()):
        shown = [f"{i} has {n}" for i, n in zip(ids[broken].tolist(), counts[broken].tolist(), strict=True)]
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        raise CorrectnessAlarm(
            f"Broken group: every group must have {group_size} members, but group {', group '.join(shown[:5])}{more} "
            f"({len(ids)} groups, {len(group_ids)} trajectories). A shuffle, a shard or a sampler separated attempts "
            "that share one prompt or initial state, or gave one of them another's id; their advantages would be wrong."
        )


@torch.no_grad()
def filter_rewards(scores: torch.Tensor, group_ids: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    """bool [N]: keep the trajectories of groups whose mean score lies within [low, high]; whole groups stay or go.

    Intersect the loss mask with it before the loss denominators are computed: dropped groups then count nowhere.
    """
    if not low <= high:
        raise ConfigurationError(f"filter_rewards is [{low}, {high}]; expected two numbers in ascending order.")
    group, count = _index_groups("filter_rewards", scores, group_ids)
    size = torch.bincount(group, minlength=count)
    mean = torch.zeros(count, dtype=torch.float64, device=scores.device).index_add_(0, group, scores.double()) / size
    # the mean of equal scores must not miss a bound by its own rounding
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    return ((mean >= low - slack) & (mean <= high + slack))[group]


@torch.no_grad()
def informative_groups(scores: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """bool [N]: the trajectories of groups whose scores differ; the others carry no gradient.

    Dynamic sampling (DAPO, Yu et al., 2025) draws until enough of them are there. A group of one is never informative.
    """
    group, count = _index_groups("informative_groups", scores, group_ids)
    return _varies(scores, group, count)[group]


def parse_deviation(deviation: Deviation | str) -> Deviation:
    """The enum member of that name; raises ConfigurationError for any other."""
    try:
        return Deviation(deviation)
    except ValueError:
        raise ConfigurationError(f"deviation is {deviation!r}. " + suggest(deviation, Deviation)) from None


def _index_groups(function: str, scores: torch.Tensor, group_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Dense group numbers int64 [N] and how many groups there are."""
    if scores.dim() != 1:
        raise CorrectnessAlarm(f"{function}: scores has shape {list(scores.shape)}, expected one a trajectory, [N].")
    require_shape(function, scores.shape, group_ids=group_ids)
    ids, group = group_ids.unique(return_inverse=True)
    return group, len(ids)


def _varies(scores: torch.Tensor, group: torch.Tensor, count: int) -> torch.Tensor:
    """bool [G]: the group's scores are not all equal."""
    largest = scores.new_zeros(count).scatter_reduce_(0, group, scores, "amax", include_self=False)
    smallest = scores.new_zeros(count).scatter_reduce_(0, group, scores, "amin", include_self=False)
    return largest != smallest


def _centre(scores: torch.Tensor, group: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [N] scores minus their group's mean, exactly 0 where the group does not vary; float64 [G] group sizes."""
    size = torch.bincount(group, minlength=count).double()
    mean = torch.zeros(count, dtype=torch.float64, device=scores.device).index_add_(0, group, scores.double()) / size
    return fill(scores.double() - mean[group], _varies(scores, group, count)[group]), size
