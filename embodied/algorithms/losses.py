"""Losses as per-entry terms: policy-gradient surrogates, the value loss and imitation.

A loss function never averages. It returns terms in the shape of its inputs, which `aggregation.aggregate` weighs by a
denominator of the whole batch, together with mergeable statistics. All inputs of one call are at one level
(`embodied.algorithms.levels`), and what they hold under the mask is never read, so it may be NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pydantic
import torch

from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.algorithms.statistics import ExplainedVariance, Maximum, Mean, Statistic
from embodied.config import config
from embodied.errors import ConfigurationError


@dataclass(frozen=True)
class Terms:
    """terms: float, differentiable, 0 where `mask` (bool, same shape) is False."""

    terms: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Loss:
    """What a loss function returns.

    policy: terms of the actor. value: terms of the critic, at the level of the values; None where there is no critic.
    statistics: detached, of the valid entries; merge them over micro-batches and reduce them over ranks.
    """

    policy: Terms
    value: Terms | None = None
    statistics: dict[str, Statistic] = field(default_factory=dict)


@config
class Clip:
    """Options of the clipped surrogate; refuses what cannot be meant.

    low, high: the ratio is clipped to [1 - low, 1 + high] (DAPO's "clip higher" has high > low).
    dual: c > 1; where the advantage is negative the term is at most c * |advantage| (Ye et al., 2020); None is off.
    log_ratio: (minimum, maximum) that the log-ratio is clamped to before it is exponentiated; None is off.
    """

    low: float = 0.2
    high: float = 0.2
    dual: Annotated[float, pydantic.AllowInfNan(True)] | None = None  # refused below, as whoever calls this expects
    log_ratio: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.low <= 1 and self.high >= 0):
            raise ConfigurationError(f"clip is low {self.low}, high {self.high}; expected 0 <= low <= 1 and high >= 0.")
        if self.dual is not None and not self.dual > 1:
            raise ConfigurationError(f"dual clip is {self.dual}; expected a number above 1, or null to switch it off.")
        if self.log_ratio is not None and not self.log_ratio[0] < 0 < self.log_ratio[1]:
            raise ConfigurationError(f"log-ratio clamp is {self.log_ratio}; expected (below 0, above 0), or null.")


def ppo(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, *, clip: Clip
) -> Loss:
    """Clipped surrogate (Schulman et al., PPO, 2017, eq. 7): max(-A r, -A clip(r, 1 - low, 1 + high)).

    r = exp(current - old log-probability).

    logprobs (with gradient), old_logprobs, advantages: float, mask: bool, all of one shape, any number of dimensions.
    At r == 1 the gradient is that of the plain policy gradient, -A * grad logprob.
    Statistics: see docs/metrics.md, `policy/*`. Raises CorrectnessAlarm on shapes that disagree.
    """
    _check("ppo", logprobs, mask, old_logprobs=old_logprobs, advantages=advantages)
    terms, statistics = _surrogate(logprobs, old_logprobs, advantages, mask, clip)
    return Loss(Terms(terms, mask), statistics=statistics)


def ppo_actor_critic(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    value_mask: torch.Tensor,
    *,
    clip: Clip,
    value_clip: float | None = None,
    huber_delta: float | None = None,
) -> Loss:
    """`ppo` for the actor and `value_terms` for the critic, each at its own level and with its own mask.

    The critic's terms need their own denominator: `loss_denominator(value_mask, ...)`.
    """
    actor = ppo(logprobs, old_logprobs, advantages, mask, clip=clip)
    critic, statistics = value_terms(
        values, old_values, returns, value_mask, value_clip=value_clip, huber_delta=huber_delta
    )
    return Loss(actor.policy, critic, {**actor.statistics, **statistics})


def check_value_options(value_clip: float | None, huber_delta: float | None) -> None:
    """Raises ConfigurationError for what `value_terms` cannot mean."""
    for name, option in (("value_clip", value_clip), ("huber_delta", huber_delta)):
        if option is not None and not option > 0:
            raise ConfigurationError(f"{name} is {option}; expected a number above 0, or null to switch it off.")


def check_weight_cap(cap: float | None) -> None:
    """Raises ConfigurationError for what `decoupled_ppo` cannot mean."""
    if cap is not None and not cap >= 1:
        raise ConfigurationError(f"behaviour_weight_cap is {cap}; expected at least 1, or null.")


def value_terms(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    *,
    value_clip: float | None = None,
    huber_delta: float | None = None,
) -> tuple[Terms, dict[str, Statistic]]:
    """Value regression: the larger of h(returns - values) and h(returns - clipped values), per entry.

    values (with gradient), old_values, returns: float, mask: bool, all of one shape. Clipped values stay within
    `value_clip` of old_values; None does not clip. h is e^2 / 2, or Huber's loss with `huber_delta`: e^2 / 2 up to
    delta, delta * (|e| - delta / 2) beyond.
    """
    check_value_options(value_clip, huber_delta)
    _check("value_terms", values, mask, old_values=old_values, returns=returns)
    values, old_values, returns = fill(values, mask), fill(old_values, mask).detach(), fill(returns, mask).detach()
    terms = _huber(returns - values, huber_delta)
    moved = values - old_values
    if value_clip is not None:
        clipped = old_values + moved.clamp(-value_clip, value_clip)
        terms = torch.maximum(terms, _huber(returns - clipped, huber_delta))
    statistics: dict[str, Statistic] = {
        "value/loss": Mean.of(terms, mask),
        "value/mean": Mean.of(values, mask),
        "value/return_mean": Mean.of(returns, mask),
        "value/clip_fraction": Mean.of(moved.abs() > (math.inf if value_clip is None else value_clip), mask),
        "value/explained_variance": ExplainedVariance.of(values, returns, mask),
    }
    return Terms(terms, mask), statistics


def decoupled_ppo(
    logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: Clip,
    behaviour_weight_cap: float | None = None,
    beyond_cap: Literal["drop", "truncate"] = "drop",
) -> Loss:
    """PPO for samples of an older policy (Hilton et al., "Batch size-invariance for policy optimization", 2022).

    The surrogate clips around the proximal policy (the one before this update); each term is weighted by
    w = exp(proximal - behaviour), without gradient. With proximal == behaviour it is `ppo`.

    logprobs (with gradient), behaviour_logprobs (of the policy that drew), proximal_logprobs, advantages: float, mask:
    bool, all of one shape. behaviour_weight_cap: terms with w above it are too far off-policy; beyond_cap says what
    becomes of them: `drop` makes them 0 (Fu et al., AReaL, 2025), and they still count in the denominator, so dropping
    samples never makes the others weigh more; `truncate` gives them the weight of the cap (truncated importance
    sampling, Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025).
    """
    check_weight_cap(behaviour_weight_cap)
    _check(
        "decoupled_ppo",
        logprobs,
        mask,
        behaviour_logprobs=behaviour_logprobs,
        proximal_logprobs=proximal_logprobs,
        advantages=advantages,
    )
    terms, statistics = _surrogate(logprobs, proximal_logprobs, advantages, mask, clip)
    lag = fill(proximal_logprobs - behaviour_logprobs, mask).detach()
    weights = lag.exp()
    cap = math.inf if behaviour_weight_cap is None else behaviour_weight_cap
    capped = weights > cap
    terms = terms * (fill(weights, ~capped) if beyond_cap == "drop" else weights.clamp(max=cap))
    statistics["policy/loss"] = Mean.of(terms, mask)
    statistics["policy/behaviour_weight"] = Mean.of(weights, mask)
    statistics["policy/behaviour_weight_max"] = Maximum.of(weights, mask)
    statistics["policy/behaviour_capped_fraction"] = Mean.of(capped, mask)
    statistics["policy/behaviour_kl"] = Mean.of(_k3(lag), mask)
    return Loss(Terms(terms, mask), statistics=statistics)


def bc(logprobs: torch.Tensor, mask: torch.Tensor) -> Loss:
    """Behaviour cloning of action tokens: cross-entropy, -log pi(demonstrated token), per entry.

    logprobs (with gradient): float, of the demonstrated tokens; mask: bool; one shape.
    """
    _check("bc", logprobs, mask)
    terms = -fill(logprobs, mask)
    return Loss(Terms(terms, mask), statistics={"bc/loss": Mean.of(terms, mask)})


def bc_l1(actions: torch.Tensor, demonstrated: torch.Tensor, mask: torch.Tensor) -> Loss:
    """Behaviour cloning of continuous actions: |action - demonstrated| per dimension, in the units of the actions.

    actions (with gradient), demonstrated: float [..., C, A], mask: bool, all of one shape.
    """
    _check("bc_l1", actions, mask, demonstrated=demonstrated)
    terms = (fill(actions, mask) - fill(demonstrated, mask).detach()).abs()
    return Loss(Terms(terms, mask), statistics={"bc/l1": Mean.of(terms, mask)})


def entropy_terms(entropy: torch.Tensor, mask: torch.Tensor) -> tuple[Terms, dict[str, Statistic]]:
    """Terms that minimising makes the policy more random: -entropy per entry, to be weighed by a coefficient.

    entropy (with gradient): float, in nats; mask: bool; one shape, at the entropy's own level and with its own
    denominator.
    """
    _check("entropy_terms", entropy, mask)
    terms = -fill(entropy, mask)
    return Terms(terms, mask), {"policy/entropy": Mean.of(-terms, mask)}


def kl_terms(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    mask: torch.Tensor,
    *,
    estimator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[Terms, dict[str, Statistic]]:
    """Divergence from a reference policy per entry, to be weighed by a coefficient.

    logprobs (with gradient), reference_logprobs: float, mask: bool, one shape; estimator: from `registry.kl`.
    """
    _check("kl_terms", logprobs, mask, reference_logprobs=reference_logprobs)
    terms = fill(estimator(fill(logprobs, mask), fill(reference_logprobs, mask).detach()), mask)
    return Terms(terms, mask), {"policy/reference_kl": Mean.of(terms, mask)}


def _surrogate(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: Clip
) -> tuple[torch.Tensor, dict[str, Statistic]]:
    """Clipped surrogate terms and their statistics; inputs are blanked under the mask before anything else."""
    advantages = fill(advantages, mask).detach()
    raw = fill(logprobs, mask) - fill(old_logprobs, mask).detach()
    log_ratio = raw if clip.log_ratio is None else raw.clamp(*clip.log_ratio)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    terms = torch.maximum(unclipped, clipped)
    capped = torch.zeros_like(mask)
    if clip.dual is not None:
        ceiling = torch.where(advantages < 0, -clip.dual * advantages, torch.full_like(advantages, math.inf))
        capped = terms > ceiling
        terms = torch.minimum(terms, ceiling)
    statistics: dict[str, Statistic] = {
        "policy/loss": Mean.of(terms, mask),
        "policy/ratio": Mean.of(ratio, mask),
        "policy/ratio_max": Maximum.of(ratio, mask),
        "policy/clip_fraction": Mean.of(clipped > unclipped, mask),
        "policy/dual_clip_fraction": Mean.of(capped, mask),
        "policy/log_ratio_clamp_fraction": Mean.of(log_ratio != raw, mask),
        "policy/approx_kl": Mean.of(_k3(raw.detach()), mask),
    }
    return terms, statistics


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Schulman's low-variance estimate of KL(old, current) for draws of the old policy: ratio - 1 - log ratio, >= 0."""
    return torch.expm1(log_ratio) - log_ratio


def _huber(error: torch.Tensor, delta: float | None) -> torch.Tensor:
    if delta is None:
        return 0.5 * error.square()
    small = error.abs() <= delta
    return torch.where(small, 0.5 * error.square(), delta * (error.abs() - 0.5 * delta))


def _check(function: str, first: torch.Tensor, mask: torch.Tensor, **others: torch.Tensor) -> None:
    require_mask(function, mask=mask)
    require_shape(function, first.shape, mask=mask, **others)
