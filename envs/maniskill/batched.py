"""`BatchEnv` over N CPU scenes of one task that ManiSkill's batched code path steps together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from envs.api import Assignments
from envs.batch import BatchStep
from envs.maniskill.base import ManiSkillBatch
from envs.maniskill.build import action_parts, build_task, split_action, task_reward, task_spec
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.views import Pictures, full_state, sensed_state


class BatchedManiSkill(ManiSkillBatch):
    """`num_envs` scenes of `config.task` in this process.

    A reset draws each environment's world from that environment's seed alone, with the draws of a stock single
    environment; what happens in one row depends on no other row.
    """

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self._env = build_task(config, batch=num_envs, device=self.device.type)
        self._parts = action_parts(self._env)
        info = self._env.get_info()
        self._full = full_state(self._env, info)
        self._sensed = sensed_state(self._env, info, velocities=self._config.velocities) if self._shows_sensed else None
        self.spec = task_spec(
            self._env,
            config,
            state_dim=(self._full if self._sensed is None else self._sensed).shape[1],
            privileged_dim=0 if self._sensed is None else self._full.shape[1],
            has_success="success" in info,
            exact_reset=self.device.type == "cpu",
        )
        self._pictures = Pictures(self._env, config, [camera.name for camera in self.spec.cameras])
        self._started = torch.zeros(
            num_envs, dtype=torch.bool, device=self.device
        )  # rows whose state is to be read anew

    @property
    def scene_is_drawn(self) -> bool:
        """Whether building the scene drew random numbers: its geometry is one draw, the same in every environment."""
        return self._env.scene_is_drawn

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        seeds = self._check_assignments(assignments)
        if len(rows) > 0:
            self._env.start_episodes(rows.tolist(), seeds)
            self._ids = getattr(self._env, "instruction_ids", self._ids).clone()
            self._started[rows] = True

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        actions = torch.where(active[:, None], actions, 0.0).to(self.device)
        self._set_active(active)
        full, reward, terminated, truncated, info = self._env.step(split_action(actions, self._parts))
        self._full = full.float()
        if self._sensed is not None:
            self._sensed = sensed_state(self._env, info, velocities=self._config.velocities)
        self._started[:] = False
        success = info.get("success", torch.zeros(self.num_envs)).bool()
        return BatchStep(
            reward=task_reward(self._env, self._config, reward, success).to("cpu", copy=True),
            terminated=terminated.bool().to("cpu", copy=True),
            truncated=truncated.bool().to("cpu", copy=True),
            success=success.to("cpu", copy=True),
        )

    def _set_active(self, active: torch.Tensor) -> None:
        self._env.scene.px.active = active.numpy().copy()

    def _refresh(self) -> None:
        """Take the state of rows that were reset since the last step; all others keep what the step showed."""
        if not bool(self._started.any()):
            return
        info = self._env.get_info()
        started = self._started[:, None]
        self._full = torch.where(started, full_state(self._env, info), self._full)
        if self._sensed is not None:
            self._sensed = torch.where(
                started, sensed_state(self._env, info, velocities=self._config.velocities), self._sensed
            )
        self._started[:] = False

    def _images(self, rows: Sequence[int]) -> torch.Tensor:
        return self._pictures.of_policy_cameras(rows)

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        return self._pictures.for_people(rows.tolist())

    def close(self) -> None:
        if self._env.scene is not None:
            self._env.close()
