"""How old the weights were that samples were drawn with."""

from __future__ import annotations

import torch

from embodied.algorithms.statistics import Maximum, Mean, Statistic
from embodied.errors import CorrectnessAlarm


def staleness(age: torch.Tensor, allowed: int) -> dict[str, Statistic]:
    """Mean, maximum and, where any is allowed, the share of every age.

    Args:
        age: int [B]; updates between the weights a sample was drawn with and those that learn from it.
        allowed: `algorithm.max_staleness`.

    Raises CorrectnessAlarm for a sample that is older than allowed, or newer than the weights that learn from it.
    """
    if len(age) and (int(age.max()) > allowed or int(age.min()) < 0):
        raise CorrectnessAlarm(
            f"samples of weights {int(age.min())} to {int(age.max())} update(s) behind came to be learnt from, but "
            f"algorithm.max_staleness is {allowed}: weights were not published, or a rollout was handed on twice"
        )
    everyone = torch.ones_like(age, dtype=torch.bool)
    found: dict[str, Statistic] = {
        "rollout/staleness": Mean.of(age.float(), everyone),
        "rollout/staleness_max": Maximum.of(age.float(), everyone),
    }
    if allowed:
        for k in range(allowed + 1):
            found[f"rollout/staleness_share_{k}"] = Mean.of((age == k).float(), everyone)
    return found
