"""`BatchEnv` over N CPU scenes of one task that ManiSkill's batched code path steps together."""

from __future__ import annotations

import numpy as np
import torch

from embodied.errors import ConfigurationError, SimulatorError
from envs.api import Assignments, Observation
from envs.batch import BatchEnv, BatchStep
from envs.maniskill.build import action_parts, build_task, split_action, task_spec
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.scene import episode_seed
from envs.maniskill.views import Pictures, full_state, sensed_state


class BatchedManiSkill(BatchEnv):
    """`num_envs` scenes of `config.task` in this process.

    A reset draws each environment's world from that environment's seed alone, with the draws of a stock single
    environment; what happens in one row depends on no other row.
    """

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        self.num_envs = num_envs
        self._config = config
        self._env = build_task(config, batch=num_envs)
        self._parts = action_parts(self._env)
        info = self._env.get_info()
        self._full = full_state(self._env, info)
        self._sensed = sensed_state(self._env, info) if config.obs == "rgb" else None
        state_dim = self._full.shape[1] if self._sensed is None else self._sensed.shape[1]
        self.spec = task_spec(
            self._env,
            config,
            state_dim=state_dim,
            privileged_dim=0 if self._sensed is None else self._full.shape[1],
            has_success="success" in info,
            exact_reset=True,
        )
        self._pictures = Pictures(self._env, config, [camera.name for camera in self.spec.cameras])
        self._started = torch.zeros(num_envs, dtype=torch.bool)  # rows whose state is to be read anew
        self._ids = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, rows: torch.Tensor, assignments: Assignments) -> None:
        if bool((assignments.task != 0).any()) or bool((assignments.initial_state >= 0).any()):
            raise ConfigurationError(
                f"{self.spec.id} has one task (0) and no stored initial states (-1); got task "
                f"{assignments.task.tolist()}, initial_state {assignments.initial_state.tolist()}."
            )
        if len(rows) == 0:
            return
        seeds = [episode_seed(seed) for seed in assignments.seed.tolist()]
        self._env.start_episodes(rows.tolist(), seeds)
        self._started[rows] = True

    def step(self, actions: torch.Tensor, active: torch.Tensor) -> BatchStep:
        if not bool(torch.isfinite(actions[active]).all()):
            bad = (~torch.isfinite(actions).all(dim=1) & active).nonzero().flatten().tolist()
            raise SimulatorError(f"Actions for environments {bad} of {self.spec.id} are not finite numbers.")
        actions = torch.where(active[:, None], actions, 0.0)
        self._env.scene.px.active = active.numpy().astype(np.bool_)
        full, reward, terminated, truncated, info = self._env.step(split_action(actions, self._parts))
        self._full = full.float()
        if self._sensed is not None:
            self._sensed = sensed_state(self._env, info)
        self._started[:] = False
        success = info.get("success", torch.zeros(self.num_envs, dtype=torch.bool))
        return BatchStep(
            reward=reward.float().clone(),
            terminated=terminated.bool().clone(),
            truncated=truncated.bool().clone(),
            success=success.bool().clone(),
        )

    def _read_started(self) -> None:
        """Take the state of rows that were reset since the last step; all others keep what the step showed."""
        if not bool(self._started.any()):
            return
        info = self._env.get_info()
        self._full = torch.where(self._started[:, None], full_state(self._env, info), self._full)
        if self._sensed is not None:
            self._sensed = torch.where(self._started[:, None], sensed_state(self._env, info), self._sensed)
        self._started[:] = False

    def observe(self, rows: torch.Tensor | None = None) -> Observation:
        self._read_started()
        index = torch.arange(self.num_envs) if rows is None else rows
        shown = self._full if self._sensed is None else self._sensed
        return Observation(
            state=shown[index],
            instruction_ids=self._ids[index],
            instruction=[self.spec.instructions[0]] * len(index),
            images=self._pictures.of_policy_cameras(index.tolist()) if self.spec.cameras else None,
            privileged=None if self._sensed is None else self._full[index],
        )

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        return self._pictures.for_people(rows.tolist())

    def close(self) -> None:
        if self._env.scene is not None:
            self._env.close()
