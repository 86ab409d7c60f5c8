"""A stock ManiSkill task on one CPU scene, with the one change that makes a reset independent of the past."""

from __future__ import annotations

import functools
from typing import Any

import sapien.physx as physx
from mani_skill.envs.sapien_env import BaseEnv


class _ForgetfulPhysics:
    """A CPU physics system that lists no contacts after a reset until its next step.

    The engine itself goes on listing the contacts of the last step of the previous episode.
    """

    def __init__(self, system: physx.PhysxCpuSystem) -> None:
        object.__setattr__(self, "_system", system)
        object.__setattr__(self, "_displaced", True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._system, name, value)

    def step(self) -> None:
        object.__setattr__(self, "_displaced", False)
        self._system.step()

    def displaced(self) -> None:
        object.__setattr__(self, "_displaced", True)

    def get_contacts(self) -> list[physx.PhysxContact]:
        return [] if self._displaced else self._system.get_contacts()


class _StockTask(BaseEnv):
    """Mixed in before a task class; changes nothing but the contacts that are listed after a reset."""

    def _setup_scene(self) -> None:
        super()._setup_scene()
        self.scene.px = _ForgetfulPhysics(self.scene.px)

    def _clear_sim_state(self) -> None:
        super()._clear_sim_state()
        self.scene.px.displaced()


@functools.cache
def stock_task(task: type[BaseEnv]) -> type[BaseEnv]:
    """`task` as it is, on one CPU scene, resetting to what its seed says."""
    return type(f"Stock{task.__name__}", (_StockTask, task), {"__module__": __name__})
