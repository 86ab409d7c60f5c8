"""What environment workers and policy workers say to each other."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from tensordict import TensorDict

from envs.api import Observation
from policies.api import PolicyOutput, Sampling


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One round of acting.

    iteration: counts rounds over the whole run. decisions: T, decisions per environment. purpose: what the noise is
    for. sampling: how actions are drawn.
    """

    iteration: int
    decisions: int
    purpose: str
    sampling: Sampling


@dataclasses.dataclass(frozen=True)
class FinishedEpisode:
    """One finished episode: its assignment (task, initial state, seed), length in control steps, sum of rewards,
    and whether it succeeded at any step and at its last."""

    task: int
    initial_state: int
    seed: int
    length: int
    returns: float
    success_once: bool
    success_at_end: bool


@dataclasses.dataclass(frozen=True)
class Collected:
    """What a rollout amounted to: the episodes that finished in it, and control steps executed within episodes."""

    episodes: tuple[FinishedEpisode, ...]
    steps: int


@dataclasses.dataclass(frozen=True)
class Question:
    """What B environments of one slot show, for the policy to decide on.

    streams, steps int [B]: where each row's noise comes from (see RowNoise).
    final_observation: last observations of the E episodes that ended in the previous chunk, whose value is wanted.
    decide: False when only the value is wanted (the end of a rollout).
    """

    observation: Observation
    streams: np.ndarray
    steps: np.ndarray
    final_observation: Observation | None = None
    decide: bool = True


@dataclasses.dataclass(frozen=True)
class Decision:
    """The policy's answer.

    output: None where only the value was wanted. inputs: what the policy prepared from the observation, [B].
    value float32 [B, V] or None: of the observation. final_values float32 [E, V] or None. version: of the weights.
    """

    output: PolicyOutput | None
    inputs: TensorDict | None
    value: torch.Tensor | None
    final_values: torch.Tensor | None
    version: int
