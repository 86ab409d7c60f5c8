"""ManiSkill on GPU physics: all environments of one process in one simulation, behind the same contract.

GPU physics cannot forget the past to the bit, so `spec.exact_reset` is False, and its end-effector control takes one
damped step where the CPU's iterates; success, partial resets, elapsed steps and seeds mean the same on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mani_skill.sensors.camera import Camera

from embodied.errors import SimulatorError
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.gpu import require_gpu_physics


class CudaManiSkill(BatchedManiSkill):
    """`num_envs` environments in one GPU simulation; observations live on the GPU."""

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        require_gpu_physics()
        self.device = torch.device("cuda")
        super().__init__(config, num_envs)

    def _set_active(self, active: torch.Tensor) -> None:
        """Nothing to do: the GPU advances all environments at once."""

    def _images(self, rows: Sequence[int]) -> torch.Tensor:
        env = self._env
        hidden = self._pictures.hidden
        for item in hidden:
            item.hide_visual()
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        images = torch.stack(
            [self._capture(env.scene.sensors[camera.name], rows) for camera in self.spec.cameras], dim=1
        )
        for item in hidden:
            item.show_visual()
        return images

    def render(self, rows: torch.Tensor) -> torch.Tensor:
        cameras = list(self._env.scene.human_render_cameras.values())
        if self._config.rendering == "never" or not cameras:
            raise SimulatorError(f"{self.spec.id} has no camera for videos, or was made with env.rendering=never.")
        self._env.scene.update_render(update_sensors=False, update_human_render_cameras=True)
        return self._capture(cameras[0], rows.tolist()).cpu()

    def _capture(self, camera: Camera, rows: Sequence[int]) -> torch.Tensor:
        camera.capture()
        outputs = camera.get_obs(
            rgb=True, depth=False, position=False, segmentation=hasattr(self._env, "finish_picture")
        )
        pictures = outputs["rgb"][torch.tensor(list(rows), device=self.device)]
        if "segmentation" not in outputs:
            return pictures
        name, seen = camera.config.uid, outputs["segmentation"][..., 0]
        return torch.stack([self._env.finish_picture(name, row, pictures[k], seen[row]) for k, row in enumerate(rows)])
