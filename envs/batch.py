"""The adapter contract: n environments in one process that advance one control step at a time.

This is all a simulator has to provide. It knows nothing of chunks, auto-reset, slots, processes or statistics;
`envs.stepper.ChunkStepper` adds those, and `envs.pool` runs several of them in worker processes.
"""

from __future__ import annotations

import abc
import dataclasses

import torch

from envs.api import Assignments, EnvSpec, Observation


@dataclasses.dataclass(frozen=True)
class BatchStep:
    """One control step of n environments; rows that were not active hold anything.

    reward float32 [n]; terminated, truncated, success bool [n]. `truncated` is for limits the simulator itself has
    besides `EnvSpec.episode_steps` (which the stepper applies).
    """

    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor


class BatchEnv(abc.ABC):
    """n environments of one kind, in this process.

    device: where the tensors of `observe` live. Actions come from the CPU whatever it is.
    """

    spec: EnvSpec
    num_envs: int
    device: torch.device = torch.device("cpu")

    @abc.abstractmethod
    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        """Start new episodes in the environments `rows` (int64 [R]), as the R assignments say; touch no other.

        The world after a reset is a function of the assignment alone.
        """

    @abc.abstractmethod
    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        """Advance by one control step with `actions` float32 [n, A].

        Rows outside `active` (bool [n]) need not advance; what they do is never looked at, and they are reset before
        they become active again.
        """

    @abc.abstractmethod
    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        """What the environments `rows` (int64 [R]; all if None) show now. Called only when it is needed, at chunk ends
        and episode ends, so cameras render here and nowhere else. The tensors must be fresh: not aliases of live
        simulator state."""

    @abc.abstractmethod
    def render(self, rows: torch.Tensor) -> torch.Tensor:
        """uint8 [R, H, W, 3]: pictures for people. Raises SimulatorError with the reason where rendering is
        impossible."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the simulator; safe to call twice."""
