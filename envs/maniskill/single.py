"""`BatchEnv` over stock single CPU environments stepped one after the other: for tasks that cannot be batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from envs.api import Assignments
from envs.batch import BatchStep
from envs.maniskill.base import ManiSkillBatch
from envs.maniskill.build import action_parts, build_task, construction, split_action, task_reward, task_spec
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.quiet import without_noise
from envs.maniskill.views import Pictures, full_state, sensed_state


class StockManiSkill(ManiSkillBatch):
    """`num_envs` stock environments; a reset seeds one of them, and rebuilds its scene where the task wants it."""

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self._envs = [build_task(config, batch=None) for _ in range(num_envs)]
        first = self._envs[0]
        self._parts = action_parts(first)
        infos = [env.get_info() for env in self._envs]
        self._full = torch.cat([full_state(env, info) for env, info in zip(self._envs, infos, strict=True)])
        if self._shows_sensed:
            self._sensed = torch.cat(
                [
                    sensed_state(env, info, velocities=self._config.velocities)
                    for env, info in zip(self._envs, infos, strict=True)
                ]
            )
        self.spec = task_spec(
            first,
            config,
            state_dim=(self._full if self._sensed is None else self._sensed).shape[1],
            privileged_dim=0 if self._sensed is None else self._full.shape[1],
            has_success="success" in infos[0],
            exact_reset=True,
        )

    def _show(self, row: int, full: torch.Tensor, info: dict[str, Any]) -> None:
        self._full[row] = full[0].float()
        if self._sensed is not None:
            self._sensed[row] = sensed_state(self._envs[row], info, velocities=self._config.velocities)[0]

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        seeds = self._check_assignments(assignments)
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            with construction(self._config):
                full, info = self._envs[row].reset(seed=seed)
            if hasattr(self._envs[row], "instruction_ids"):
                self._ids[row] = self._envs[row].instruction_ids[0]
            self._show(row, full, info)

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        reward = torch.zeros(self.num_envs)
        terminated, truncated, success = torch.zeros(3, self.num_envs, dtype=torch.bool)
        for row in active.nonzero().flatten().tolist():
            env = self._envs[row]
            with without_noise():
                full, earned, ended, cut, info = env.step(split_action(actions[row : row + 1], self._parts))
            self._show(row, full, info)
            succeeded = torch.as_tensor(info.get("success", torch.zeros(1))).bool().reshape(1)
            success[row] = succeeded[0]
            reward[row] = task_reward(env, self._config, torch.as_tensor(earned).reshape(1), succeeded)[0]
            terminated[row], truncated[row] = bool(ended), bool(cut)
        return BatchStep(reward=reward, terminated=terminated, truncated=truncated, success=success)

    def _refresh(self) -> None:
        """Nothing to do: every reset and step reads its own row."""

    def _pictures(self, row: int) -> Pictures:
        # made anew each time: a reset may have rebuilt the scene
        return Pictures(self._envs[row], self._config, [camera.name for camera in self.spec.cameras])

    def _images(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.cat([self._pictures(row).of_policy_cameras([0]) for row in rows])

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._pictures(row).for_people([0]) for row in rows.tolist()])

    def close(self) -> None:
        for env in self._envs:
            if env.scene is not None:
                env.close()
