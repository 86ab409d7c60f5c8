"""What batched and single stepping have in common: checking what comes in and putting observations together."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
import torch

from embodied.errors import ConfigurationError
from envs.api import Assignments, Observation
from envs.batch import BatchEnv
from envs.maniskill.config import ManiSkillConfig


class ManiSkillBatch(BatchEnv):
    """n environments of one task.

    Subclasses keep `_full` (float32 [n, S], the simulator's state) and, where the policy sees images and not the full
    state, `_sensed` up to date when `_refresh` returns; and `_ids` int64 [n], what each is told to do, after resets.
    """

    _full: torch.Tensor
    _sensed: torch.Tensor | None

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        self.num_envs = num_envs
        self._config = config
        self._ids = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._sensed = None

    @property
    def _shows_sensed(self) -> bool:
        return self._config.obs == "rgb"

    @abc.abstractmethod
    def _refresh(self) -> None:
        """Bring `_full` and `_sensed` up to date after resets."""

    @abc.abstractmethod
    def _images(self, rows: Sequence[int]) -> torch.Tensor:
        """uint8 [R, V, H, W, 3] of the policy cameras."""

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        self._refresh()
        index = torch.arange(self.num_envs, device=self.device) if rows is None else rows.to(self.device)
        shown = self._full if self._sensed is None else self._sensed
        return Observation(
            state=shown[index],
            instruction_ids=self._ids[index],
            instruction=[self.spec.instructions[i] for i in self._ids[index].tolist()],
            images=self._images(index.tolist()) if self.spec.cameras else None,
            privileged=None if self._sensed is None else self._full[index],
        )

    def _check_assignments(self, assignments: Assignments) -> list[int]:
        """The assignments' seeds as numpy's legacy generator takes them: 32 bits."""
        if bool((assignments.task != 0).any()) or bool((assignments.initial_state >= 0).any()):
            raise ConfigurationError(
                f"{self.spec.id} has one task (0) and no stored initial states (-1); got task "
                f"{assignments.task.tolist()}, initial_state {assignments.initial_state.tolist()}."
            )
        return (assignments.seed.numpy().astype(np.uint64) % np.uint64(2**32)).tolist()
