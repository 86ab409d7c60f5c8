"""Decisions in forward passes of one fixed shape, so that they do not depend on who else is decided for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from tensordict import TensorDict

from embodied.random import RowNoise
from envs.api import Observation
from policies.api import Policy, PolicyOutput, Sampling


@torch.no_grad()
def decide(
    policy: Policy,
    observation: Observation,
    streams: np.ndarray,
    steps: np.ndarray,
    sampling: Sampling,
    *,
    seed: int,
    forward_rows: int | None,
    device: str,
) -> tuple[PolicyOutput, TensorDict]:
    """What `policy` does about B observations, and the inputs [B] it prepared for that, both on the CPU.

    streams, steps: int [B], where each row's noise comes from, with `seed` (see RowNoise). forward_rows: rows of every
    forward pass; None takes all at once.
    """
    outputs, inputs, count = [], [], len(streams)
    for rows in row_blocks(count, forward_rows):
        prepared = policy.prepare(observation.select(rows)).to(device)
        noise = RowNoise(seed, streams[rows.numpy()], steps[rows.numpy()], device)
        outputs.append(policy.act(prepared, sampling, noise))
        inputs.append(prepared)

    def joined(part: Callable[[PolicyOutput], torch.Tensor]) -> torch.Tensor:
        return torch.cat([part(output) for output in outputs])[:count].cpu()

    output = PolicyOutput(
        actions=joined(lambda o: o.actions),
        tokens=joined(lambda o: o.tokens),
        logprobs=joined(lambda o: o.logprobs),
        value=None if outputs[0].value is None else joined(lambda o: o.value),
    )
    return output, torch.cat(inputs)[:count].cpu()


def row_blocks(count: int, forward_rows: int | None) -> list[torch.Tensor]:
    """Row numbers of each forward pass over `count` rows; the last row is repeated where rows run out."""
    size = forward_rows or count
    return [torch.arange(begin, begin + size).clamp(max=count - 1) for begin in range(0, count, size)]
