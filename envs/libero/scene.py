"""Compiled scenes: one MuJoCo model with its arm, controller and pictures, shared by all tasks whose XML is the same.

All tasks of libero_spatial share one scene, and so do all of libero_goal. A model takes 130 to 260 MB, so those that no
environment uses are kept only up to a small number.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from envs.libero.arm import ArmIndices, Controller, ExactController, FastController
from envs.libero.decimate import shrink_textures, simplify_visual_meshes
from envs.libero.pictures import Pictures
from envs.libero.simulator import Simulator

_KEPT_IDLE = 4


class Scene:
    """A compiled model. Fixture poses, and whatever else `bind` sets, are those of the environment whose turn it is."""

    def __init__(self, xml: str, fast: bool, picture_size: int) -> None:
        self._picture_size = picture_size
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.fast = fast
        if fast:
            simplify_visual_meshes(self.model)
            shrink_textures(self.model)
        self.body_pos = self.model.body_pos.copy()
        self.body_quat = self.model.body_quat.copy()
        self.users = 0
        self.bound: object | None = None
        self._controller: Controller | None = None
        self._pictures: Pictures | None = None
        self._drawn: mujoco.MjData | None = None

    def controller(self, robot: Any, simulator: Simulator) -> Controller:
        """The arm's controller; `robot` is any robosuite robot that was built on this model."""
        if self._controller is None:
            arm = ArmIndices.of(robot, self.model)
            self._controller = (
                FastController(self.model, arm) if self.fast else ExactController(self.model, arm, simulator)
            )
        return self._controller

    def draw(self, qpos: np.ndarray, cameras: list[int], out: np.ndarray) -> None:
        """Write what the cameras show with the joints at `qpos` into `out` uint8 [V, H, W, 3], top row first.

        H and W are at most `picture_size`.
        """
        if self._drawn is None:
            self._drawn = mujoco.MjData(self.model)
        data = self._drawn
        data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, data)
        mujoco.mj_comPos(self.model, data)
        mujoco.mj_camlight(self.model, data)
        if self._pictures is None:
            self._pictures = Pictures(self.model, self._picture_size, simplified=self.fast)
        self._pictures.make_current()
        for picture, camera in zip(out, cameras, strict=True):
            self._pictures.draw(data, camera, picture)

    def close(self) -> None:
        """Free the graphics memory."""
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None


class SceneCache:
    """Scenes by XML; those without `users` are dropped beyond a small number, least recently used first.

    Args:
        fast: simplify what is drawn.
        picture_size: height and width of the largest picture that will be drawn.
        prepare: changes a scene's XML before it is compiled.
    """

    def __init__(self, fast: bool, picture_size: int, prepare: Callable[[str], str]) -> None:
        self._fast = fast
        self._picture_size = picture_size
        self._prepare = prepare
        self._scenes: collections.OrderedDict[bytes, Scene] = collections.OrderedDict()

    def get(self, xml: str) -> Scene:
        """The scene of an XML text, compiled if need be (0.2 to 1 s)."""
        key = hashlib.sha256(xml.encode()).digest()
        if key not in self._scenes:
            self._scenes[key] = Scene(self._prepare(xml), self._fast, self._picture_size)
        self._scenes.move_to_end(key)
        return self._scenes[key]

    def drop_idle(self) -> list[Scene]:
        """Close and forget the idle scenes beyond the number kept; returns them."""
        idle = [key for key, scene in self._scenes.items() if not scene.users]
        dropped = [self._scenes.pop(key) for key in idle[: max(0, len(idle) - _KEPT_IDLE)]]
        for scene in dropped:
            scene.close()
        return dropped

    def close(self) -> None:
        """Free everything."""
        for scene in self._scenes.values():
            scene.close()
        self._scenes.clear()
