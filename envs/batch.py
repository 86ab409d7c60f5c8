"""The adapter contract: n environments in one process that advance one control step at a time.

This is all a simulator has to provide. It knows nothing of chunks, auto-reset, slots, processes or statistics;
`envs.stepper.ChunkStepper` adds those, and `envs.pool` runs several of them in worker processes.
"""

from __future__ import annotations

import abc
import dataclasses

import torch

from embodied.errors import SimulatorError
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


def require_sound(batch: BatchEnv, num_envs: int) -> BatchEnv:
    """`batch`, if it says of itself what every simulator must. Raises SimulatorError naming what is wrong."""
    kind = type(batch).__name__
    spec = getattr(batch, "spec", None)
    if not isinstance(spec, EnvSpec):
        raise SimulatorError(f"{kind}.spec is {spec!r}; an adapter sets it to an envs.api.EnvSpec when it is made.")
    if getattr(batch, "num_envs", None) != num_envs:
        raise SimulatorError(
            f"{kind} was asked for {num_envs} environments, but its num_envs is {getattr(batch, 'num_envs', None)!r}."
        )
    if not spec.instructions:
        raise SimulatorError(f"{kind}.spec.instructions is empty; use ('',) where there are none.")
    return batch


def check_step(result: BatchStep, num_envs: int, has_success: bool, env_id: str) -> None:
    """Raise SimulatorError where what an adapter's `step` returned is not what `BatchStep` says."""
    if not isinstance(result, BatchStep):
        raise SimulatorError(
            f"{env_id}: step() returned a {type(result).__name__}; it must return an envs.batch.BatchStep."
        )
    for name in ("reward", "terminated", "truncated", "success"):
        value = getattr(result, name)
        if name == "success" and not has_success:
            continue
        expected = f"a {'float32' if name == 'reward' else 'bool'} tensor [{num_envs}]"
        if not isinstance(value, torch.Tensor):
            raise SimulatorError(f"{env_id}: step() gave {name} as {type(value).__name__}; it must be {expected}.")
        right = value.dtype.is_floating_point if name == "reward" else value.dtype is torch.bool
        if tuple(value.shape) != (num_envs,) or not right or value.requires_grad:
            grad = " that requires gradients" if value.requires_grad else ""
            came = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{grad}"
            raise SimulatorError(f"{env_id}: step() gave {name} as {came}; it must be {expected}.")


def check_observed(observation: Observation, env_id: str) -> None:
    """Raise SimulatorError where what an adapter's `observe` returned is no `Observation` of tensors."""
    if not isinstance(observation, Observation):
        raise SimulatorError(
            f"{env_id}: observe() returned a {type(observation).__name__}; it must return an envs.api.Observation."
        )
    for name in ("state", "instruction_ids", "images", "privileged"):
        value = getattr(observation, name)
        if value is None and name in ("images", "privileged"):
            continue
        if not isinstance(value, torch.Tensor) or value.requires_grad:
            came = "a tensor that requires gradients" if isinstance(value, torch.Tensor) else type(value).__name__
            raise SimulatorError(f"{env_id}: observe() gave {name} as {came}; it must be a tensor without gradients.")
    if observation.images is not None and observation.images.dtype is not torch.uint8:
        raise SimulatorError(
            f"{env_id}: observe() gave images as {observation.images.dtype}; they must be uint8, 0 to 255. Scale "
            "floats from 0..1 and convert."
        )
