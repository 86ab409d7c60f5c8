"""Token, action and chunk level: where log-probabilities, entropies, rewards and values are summed, and which may meet.

Shape letters as in the contracts: T decisions in time, B environments, C actions of a chunk, D tokens of an action.
`valid` [..., C] marks the actions that were executed; what others hold is never read. Step tensors [S, B] have
S = T * C at action level and S = T at chunk level.
"""

from __future__ import annotations

import enum
from typing import Literal

import torch

from embodied.algorithms.masked import fill, require_mask, require_shape
from embodied.errors import ConfigurationError, CorrectnessAlarm, suggest


class Level(enum.StrEnum):
    """Granularity of a quantity, finest first."""

    TOKEN = "token"
    ACTION = "action"
    CHUNK = "chunk"


def check_levels(*, reward: str, logprob: str, entropy: str, value: Literal["none", "chunk", "action"] | str) -> None:
    """Refuse combinations that have no meaning, with the reason.

    reward: action or chunk; advantages are at its level. logprob, entropy: token, action or chunk. value: what the
    policy's value head gives, none, chunk (one a chunk) or action (one an action).

    Raises ConfigurationError.
    """
    for name, given, allowed in (
        ("reward level", reward, (Level.ACTION, Level.CHUNK)),
        ("logprob level", logprob, tuple(Level)),
        ("entropy level", entropy, tuple(Level)),
        ("value", value, ("none", Level.CHUNK, Level.ACTION)),
    ):
        if given not in allowed:
            raise ConfigurationError(f"{name} is {str(given)!r}. " + suggest(given, allowed))
    if reward == Level.ACTION and logprob == Level.CHUNK:
        raise ConfigurationError(
            "reward level action cannot go with logprob level chunk: there is one advantage an action but one ratio "
            "for the whole chunk, so an advantage has no log-probability of its own. Use logprob level action or "
            "token, or reward level chunk."
        )
    if reward == Level.ACTION and value == Level.CHUNK:
        raise ConfigurationError(
            "reward level action cannot go with one value a chunk: the states between a chunk's actions have no value "
            "to estimate advantages from. Give the policy one value an action (value: action), or use reward level "
            "chunk."
        )
    if reward == Level.CHUNK and value == Level.ACTION:
        raise ConfigurationError(
            "reward level chunk cannot go with one value an action: returns exist only where a chunk begins, so all "
            "values but the first would never be trained. Use value: chunk, or reward level action."
        )


def sum_to(values: torch.Tensor, valid: torch.Tensor, level: Level | str) -> torch.Tensor:
    """Log-probabilities or entropies [..., C, D] summed to `level`: token [..., C, D], action [..., C], chunk [...].

    Independent factors multiply, so their logarithms and entropies add. Actions that are not valid add nothing (0).
    """
    _check_valid("sum_to", valid, values.shape[:-1])
    kept = fill(values, valid.unsqueeze(-1))
    kind = parse_level(level)
    if kind is Level.TOKEN:
        return kept
    return kept.sum(-1) if kind is Level.ACTION else kept.sum((-2, -1))


def mask_to(valid: torch.Tensor, level: Level | str, tokens: int) -> torch.Tensor:
    """bool mask in exactly the shape that `sum_to` gives at `level`; `tokens` is D. A chunk needs one valid action."""
    require_mask("mask_to", valid=valid)
    kind = parse_level(level)
    if kind is Level.TOKEN:
        return valid.unsqueeze(-1).expand(*valid.shape, tokens)
    return valid if kind is Level.ACTION else valid.any(-1)


def reward_to(rewards: torch.Tensor, valid: torch.Tensor, level: Level | str) -> torch.Tensor:
    """Rewards [..., C] at action level [..., C] or summed over the valid actions of the chunk [...]; undiscounted."""
    _check_valid("reward_to", valid, rewards.shape)
    kept = fill(rewards, valid)
    return kept if _step_level("reward_to", level) is Level.ACTION else kept.sum(-1)


def ends_to(flags: torch.Tensor, valid: torch.Tensor, level: Level | str) -> torch.Tensor:
    """terminated or truncated bool [..., C] at action level [..., C], or whether it happened within the chunk [...]."""
    require_mask("ends_to", flags=flags)
    _check_valid("ends_to", valid, flags.shape)
    kept = flags & valid
    return kept if _step_level("ends_to", level) is Level.ACTION else kept.any(-1)


def flatten_steps(values: torch.Tensor) -> torch.Tensor:
    """[T, B, C] -> [T * C, B]: the actions of consecutive chunks one after another in time.

    A quantity of the chunk, such as the value of its episode's final observation, is expanded over C first.
    """
    if values.dim() != 3:
        raise CorrectnessAlarm(f"flatten_steps: got shape {list(values.shape)}, expected [T, B, C].")
    return values.transpose(1, 2).flatten(0, 1)


def flatten_values(values: torch.Tensor) -> torch.Tensor:
    """[T + 1, B, V] values of a policy -> [T * V + 1, B], as `advantages.gae` takes them; V is 1 (chunk) or C (action).

    Of the decision after the last one only the first value is kept: it is the state the last step led to.
    """
    return flatten_steps(values)[: (len(values) - 1) * values.shape[-1] + 1]


def flatten_final_values(final_values: torch.Tensor) -> torch.Tensor:
    """[T, B, V] values of true final observations -> [T * V, B], as `advantages.gae` takes them; V is 1 or C.

    An episode that ended anywhere in a chunk ended in one state: the first value of its final observation.
    """
    return flatten_steps(final_values[..., :1].expand_as(final_values))


def unflatten_steps(steps: torch.Tensor, chunk: int) -> torch.Tensor:
    """[T * C, B] -> [T, B, C], the inverse of `flatten_steps`; `chunk` is C."""
    if steps.dim() != 2 or steps.shape[0] % chunk:
        raise CorrectnessAlarm(f"unflatten_steps: got shape {list(steps.shape)}, expected [T * {chunk}, B].")
    return steps.unflatten(0, (-1, chunk)).transpose(1, 2)


def spread(
    advantages: torch.Tensor, source: Level | str, target: Level | str, *, chunk: int, tokens: int
) -> torch.Tensor:
    """Advantages at `source` level repeated for every entry of the equal or finer `target` level.

    chunk [...] -> action [..., C] -> token [..., C, D]; `chunk` is C and `tokens` is D. Raises ConfigurationError when
    the target is coarser: an advantage cannot be taken back from its actions.
    """
    at, to = parse_level(source), parse_level(target)
    order = [Level.CHUNK, Level.ACTION, Level.TOKEN]
    if order.index(to) < order.index(at):
        raise ConfigurationError(
            f"Advantages at {at} level cannot be spread to the coarser {to} level; see check_levels."
        )
    for level, size in ((Level.ACTION, chunk), (Level.TOKEN, tokens)):
        if order.index(at) < order.index(level) <= order.index(to):
            advantages = advantages.unsqueeze(-1).expand(*advantages.shape, size)
    return advantages


def parse_level(level: Level | str) -> Level:
    """The enum member of that name; raises ConfigurationError for any other."""
    try:
        return Level(level)
    except ValueError:
        raise ConfigurationError(f"level is {level!r}. " + suggest(level, Level)) from None


def _step_level(function: str, level: Level | str) -> Level:
    kind = parse_level(level)
    if kind is Level.TOKEN:
        raise ConfigurationError(f"{function}: rewards and episode ends exist at action or chunk level, not per token.")
    return kind


def _check_valid(function: str, valid: torch.Tensor, shape: torch.Size) -> None:
    require_mask(function, valid=valid)
    require_shape(function, shape, valid=valid)
