"""What a ManiSkill task shows: its full state, what the robot itself senses, and pictures.

Pictures are taken through the cameras' native components one environment at a time, so that only environments
somebody asks for are rendered, whatever the backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.utils.observations import parse_obs_mode_to_struct
from mani_skill.utils import common
from mani_skill.utils.structs import Actor, Articulation

from embodied.errors import ConfigurationError, SimulatorError, suggest
from envs.maniskill.config import ManiSkillConfig


def full_state(env: BaseEnv, info: dict[str, Any]) -> torch.Tensor:
    """float32 [n, S]: ManiSkill's state observation."""
    return env.get_obs(info).float()


def sensed_state(env: BaseEnv, info: dict[str, Any], *, velocities: bool) -> torch.Tensor:
    """float32 [n, S]: what ManiSkill's image observation contains besides images: proprioception, with or without the
    joints' velocities, and goals."""
    mode, struct = env._obs_mode, env.obs_mode_struct
    env._obs_mode, env.obs_mode_struct = "rgb", parse_obs_mode_to_struct("rgb")
    try:
        parts = {"agent": env._get_obs_agent(), "extra": env._get_obs_extra(info)}
    finally:
        env._obs_mode, env.obs_mode_struct = mode, struct
    if not velocities:
        _drop(parts["agent"], "qvel")
    return common.flatten_state_dict(parts, use_torch=True, device=env.device).float()


def _drop(parts: dict[str, Any], name: str) -> None:
    """Remove `name` from nested dictionaries: tasks with several robots have one of each robot's parts."""
    parts.pop(name, None)
    for part in parts.values():
        if isinstance(part, dict):
            _drop(part, name)


class Pictures:
    """Takes pictures of single environments of `env`, for the policy and for people."""

    def __init__(self, env: BaseEnv, config: ManiSkillConfig, cameras: Sequence[str]) -> None:
        self._env = env
        self._cameras = list(cameras)
        self._task = config.task
        self._rendering = config.rendering
        for name in config.hidden:
            if name not in env.scene.actors:
                raise ConfigurationError(
                    f"Task {config.task} has no object {name!r} to hide (env.hidden). "
                    + suggest(name, env.scene.actors, noun="objects")
                )
        self.hidden: list[Actor | Articulation] = [
            *env._hidden_objects,
            *(env.scene.actors[name] for name in config.hidden),
        ]

    def of_policy_cameras(self, rows: Sequence[int]) -> torch.Tensor:
        """uint8 [R, V, H, W, 3]: what the policy's cameras see in the environments `rows`."""
        taken = []
        with self._out_of_sight(rows):
            self._update(rows)
            for name in self._cameras:
                pictures = self._take(self._env.scene.sensors[name], rows)
                taken.append(self._finished(name, pictures, rows))
        return torch.stack(taken, dim=1)

    def for_people(self, rows: Sequence[int]) -> torch.Tensor:
        """uint8 [R, H, W, 3] from the task's own camera for videos. Raises SimulatorError where there is none."""
        if self._rendering == "never":
            raise SimulatorError(
                f"{self._task} was made with env.rendering=never and cannot be pictured; set env.rendering=on_demand."
            )
        cameras = list(self._env.scene.human_render_cameras.values())
        if not cameras:
            raise SimulatorError(f"{self._task} has no camera for videos.")
        self._update(rows)
        return self._take(cameras[0], rows)

    def _update(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._env.scene.sub_scenes[row].update_render()

    def _take(self, camera: Any, rows: Sequence[int]) -> torch.Tensor:
        natives = [camera.camera._render_cameras[row] for row in rows]
        for native in natives:
            native.take_picture()
        return _output(camera, natives, "rgb").contiguous()

    def _finished(self, name: str, pictures: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """What a task that has its own idea of a policy's picture (`finish_picture`) makes of those just taken."""
        if not hasattr(self._env, "finish_picture"):
            return pictures
        camera = self._env.scene.sensors[name]
        natives = [camera.camera._render_cameras[row] for row in rows]
        segmentation = _output(camera, natives, "segmentation")[..., 0]
        return torch.stack(
            [self._env.finish_picture(name, row, pictures[k], segmentation[k]) for k, row in enumerate(rows)]
        )

    @contextlib.contextmanager
    def _out_of_sight(self, rows: Sequence[int]) -> Iterator[None]:
        bodies = [body for item in self.hidden for row in rows for body in _render_bodies(item, row)]
        for body in bodies:
            body.visibility = 0.0
        try:
            yield
        finally:
            for body in bodies:
                body.visibility = 1.0


def _output(camera: Any, natives: Sequence[Any], output: str) -> torch.Tensor:
    """[R, H, W, C]: one output, "rgb" or "segmentation", of pictures that `natives` have just taken."""
    shader = camera.config.shader_config
    texture = next(name for name, outputs in shader.texture_names.items() if output in outputs)
    raw = common.to_tensor(np.stack([native.get_picture(texture) for native in natives]))
    return shader.texture_transforms[texture](raw)[output]


def _render_bodies(item: Actor | Articulation, row: int) -> Iterator[sapien.render.RenderBodyComponent]:
    """The visual parts of an object in one environment."""
    for place, scene in enumerate(item._scene_idxs.tolist()):
        if scene != row:
            continue
        native = item._objs[place]
        entities = [link.entity for link in native.links] if isinstance(item, Articulation) else [native]
        for entity in entities:
            body = entity.find_component_by_type(sapien.render.RenderBodyComponent)
            if body is not None:
                yield body
