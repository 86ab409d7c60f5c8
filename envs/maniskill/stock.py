"""A stock ManiSkill task on one CPU scene, with the one change that makes a reset independent of the past."""

from __future__ import annotations

import functools

from mani_skill.envs.sapien_env import BaseEnv

from envs.maniskill.renewal import renewed


class _StockTask(BaseEnv):
    """Mixed in before a task class."""

    def _clear_sim_state(self) -> None:
        scene = renewed(self, self.scene.sub_scenes[0])
        self.scene.sub_scenes[0] = scene
        self.scene.px = scene.physx_system
        super()._clear_sim_state()


@functools.cache
def stock_task(task: type[BaseEnv]) -> type[BaseEnv]:
    """`task` as it is, on one CPU scene, resetting to what its seed says."""
    return type(f"Stock{task.__name__}", (_StockTask, task), {"__module__": __name__})
