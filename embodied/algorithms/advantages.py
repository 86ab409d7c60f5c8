"""Advantages from rewards and values along time: generalised advantage estimation and discounted returns.

Step tensors are time-major [S, B]: S steps in time order, B environments side by side. At action level S = T * C (the
chunks' actions one after another), at chunk level S = T; `embodied.algorithms.levels` makes one from the other. For
language models a step is a token. Nothing is normalised here: see `embodied.algorithms.statistics.whiten`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.errors import ConfigurationError, CorrectnessAlarm, suggest


class Bootstrap(enum.StrEnum):
    """Where an episode's end is followed by the value of its true final observation."""

    STANDARD = "standard"  # where it was truncated; a terminated episode earns nothing more
    ALWAYS = "always"  # at both ends, as published ManiSkill recipes do


@dataclass(frozen=True)
class Advantages:
    """advantages [S, B] and returns [S, B], the regression target of the values; both 0 where not valid."""

    advantages: torch.Tensor
    returns: torch.Tensor


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    final_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    valid: torch.Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    bootstrap: Bootstrap | str = Bootstrap.STANDARD,
) -> Advantages:
    """Generalised advantage estimation (Schulman et al., 2016, eq. 16): A_t = d_t + gamma * lambda * A_{t+1} with
    d_t = r_t + gamma * V_{t+1} - V_t, within one episode.

    Args:
        rewards: float [S, B].
        values: float [S + 1, B]; values[t] belongs to the observation that step t acted on, values[S] to the one after
            the last step.
        final_values: float [S, B]; V of the true last observation, read only where an episode ended.
        terminated, truncated: bool [S, B]; the episode ended at this step. A recorded success that did not end the
            episode (`ignore_terminations`) is not passed here.
        valid: bool [S, B]; the step was executed and belongs to an episode. What other tensors hold where it is False
            is never read, NaN included.
        gamma, gae_lambda: discount and lambda, both per step of S.

    The next value of a step that ended its episode is 0 if terminated, final_values if truncated; where both are set,
    terminated wins under `standard`. Under `always` it is final_values at either end. Nothing flows back across an end.
    Holes in `valid` follow an end; should a step that ended nothing be followed by a hole all the same (an episode lost
    with its simulator), that step is treated as truncated before the observation values[t + 1].

    Returns `Advantages`; returns are advantages + values. Raises CorrectnessAlarm on shapes or dtypes that disagree,
    ConfigurationError on options out of range.
    """
    kind = parse_bootstrap(bootstrap)
    for name, option in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0 <= option <= 1:
            raise ConfigurationError(f"{name} is {option}; expected a number from 0 to 1.")
    steps, batch = _check_steps("gae", rewards, valid)
    require_shape("gae", (steps + 1, batch), values=values)
    require_shape("gae", (steps, batch), final_values=final_values, terminated=terminated, truncated=truncated)
    require_mask("gae", terminated=terminated, truncated=truncated)

    ended = terminated | truncated
    at_end = final_values if kind is Bootstrap.ALWAYS else fill(final_values, ~terminated)
    next_values = torch.where(ended, at_end, values[1:])
    deltas = fill(torch.add(rewards, next_values, alpha=gamma).sub_(values[:-1]), valid)
    advantages = _reverse_scan(deltas, fill(torch.full_like(deltas, gamma * gae_lambda), valid & ~ended))
    return Advantages(advantages, fill(advantages + values[:-1], valid))


@torch.no_grad()
def discounted_returns(
    rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, *, gamma: float = 1.0
) -> torch.Tensor:
    """Return to go G_t = r_t + gamma * G_{t+1} within one episode, [S, B]; 0 where not valid, no bootstrap.

    rewards float, ended (at this step) and valid bool, all [S, B]; gamma is per valid step, and steps that are not
    valid are skipped as if they were absent.
    """
    steps, batch = _check_steps("discounted_returns", rewards, valid)
    require_shape("discounted_returns", (steps, batch), ended=ended)
    require_mask("discounted_returns", ended=ended)
    # a hole hands the return on undiscounted; its own entry is blanked at the end
    decay = torch.where(valid, fill(torch.full_like(rewards, gamma), ~ended), torch.ones_like(rewards))
    return fill(_reverse_scan(fill(rewards, valid), decay), valid)


def parse_bootstrap(bootstrap: Bootstrap | str) -> Bootstrap:
    """The enum member of that name; raises ConfigurationError for any other."""
    try:
        return Bootstrap(bootstrap)
    except ValueError:
        raise ConfigurationError(f"bootstrap is {bootstrap!r}. " + suggest(bootstrap, Bootstrap)) from None


def _check_steps(function: str, rewards: torch.Tensor, valid: torch.Tensor) -> tuple[int, int]:
    if rewards.dim() != 2:
        raise CorrectnessAlarm(f"{function}: rewards has shape {list(rewards.shape)}, expected [S, B].")
    require_shape(function, rewards.shape, valid=valid)
    require_mask(function, valid=valid)
    return rewards.shape[0], rewards.shape[1]


def _reverse_scan(terms: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """x_t = terms_t + decay_t * x_{t+1} from the last row up; one fused operation a row, all columns at once."""
    result = torch.empty_like(terms)
    if len(terms) == 0:
        return result
    rows, term_rows, decay_rows = result.unbind(0), terms.unbind(0), decay.unbind(0)
    rows[-1].copy_(term_rows[-1])
    for t in range(len(rows) - 2, -1, -1):
        torch.addcmul(term_rows[t], decay_rows[t], rows[t + 1], out=rows[t])
    return result
