"""Turns a ManiSkill task class into one that runs N CPU scenes as a batch, by subclassing and without global patches.

The subclass overrides how the scene is set up (N sub-scenes, each with its own CPU physics, and a renderer only where
one is needed) and tells ManiSkill's batched code path that it is on a batched backend. Tasks themselves are unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import sapien
import sapien.physx as physx
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.envs.utils.randomization.batched_rng import BatchedRNG
from mani_skill.envs.utils.system.backend import BackendInfo
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.structs import Link

from envs.maniskill.episodes import SeededEpisodes
from envs.maniskill.kinematics import controllers_of, solve_like_stock
from envs.maniskill.physics import BatchedPhysics
from envs.maniskill.renewal import renewed


class _BatchedDevice:
    """The simulation device as ManiSkill asks about it: not the GPU, but stepped through the GPU's interface."""

    def is_cuda(self) -> bool:
        return True

    def is_cpu(self) -> bool:
        return False


class BatchedScene(ManiSkillScene):
    """Sub-scenes with one `BatchedPhysics` over them."""

    def __init__(self, sub_scenes: list[sapien.Scene], **options: Any) -> None:
        super().__init__(sub_scenes, **options)
        self.px = BatchedPhysics(sub_scenes)
        self.gpu_sim_enabled = True

    def create_actor_builder(self) -> ActorBuilder:
        """A builder that gives every sub-scene the planes it asks for; on a GPU the first one's serve all."""
        return super().create_actor_builder().set_allow_overlapping_plane_collisions(True)

    def replace_sub_scene(self, number: int, scene: sapien.Scene) -> None:
        """Go on with `scene`, which holds the same bodies in the same order, in the place of a sub-scene."""
        self.sub_scenes[number] = scene
        self.px.replace_scene(number, scene)

    def update_render(self, update_sensors: bool = True, update_human_render_cameras: bool = True) -> None:
        """Hand the current poses of all sub-scenes to their renderers."""
        for scene in self.sub_scenes:
            scene.update_render()


class _BatchedTask(SeededEpisodes):
    """Mixed in before a task class; see `batched_task`.

    scene_is_drawn: building the scene used random numbers, so that its geometry is drawn, once, from `scene_seed`; it
        is then the same in every environment.
    """

    scene_is_drawn: bool

    def __init__(self, *args: Any, scene_seed: int, **options: Any) -> None:
        self._scene_seed = scene_seed
        super().__init__(*args, **options)

    @property
    def backend(self) -> BackendInfo:
        return self._backend

    @backend.setter
    def backend(self, info: BackendInfo) -> None:
        # BaseEnv refuses several environments on the backends that it knows to be single
        self._backend = dataclasses.replace(info, sim_backend="physx_cpu_batched", sim_device=_BatchedDevice())

    def _setup_scene(self) -> None:
        self._set_scene_config()
        scenes = []
        for _ in range(self.num_envs):
            systems: list[sapien.System] = [physx.PhysxCpuSystem()]
            if self._render_device is not None:
                systems.append(sapien.render.RenderSystem(self._render_device))
            scenes.append(sapien.Scene(systems))
        self.scene = BatchedScene(scenes, sim_config=self.sim_config, device=self.device, backend=self.backend)
        self.scene.px.timestep = 1.0 / self._sim_freq

    def _reconfigure(self, options: dict | None = None) -> None:
        generators = BatchedRNG.from_seeds([self._scene_seed] * self.num_envs)
        self._batched_episode_rng, self._episode_rng = generators, generators.rngs[0]
        torch.manual_seed(self._scene_seed)
        before = _generator_states(generators)
        super()._reconfigure(options or {})
        self.scene_is_drawn = before != _generator_states(generators)

    def _load_scene(self, options: dict) -> None:
        super()._load_scene(options)
        # velocities of inner links are read from the engine only when a link is asked for them
        for link in _links(self.scene, vars(self)):
            link._body_data_name = "link_data"

    def _after_reconfigure(self, options: dict) -> None:
        super()._after_reconfigure(options)
        solve_like_stock(self.agent)
        positions: list[tuple[int, int]] = []
        velocities: list[tuple[int, int]] = []
        self._interpolates = False
        for controller in controllers_of(self.agent):
            rows = controller.articulation._data_index.tolist()
            joints = [(row, int(joint)) for row in rows for joint in controller.active_joint_indices]
            positions += joints if controller.sets_target_qpos else []
            velocities += joints if controller.sets_target_qvel else []
            self._interpolates |= bool(getattr(controller.config, "interpolate", False))
        self.scene.px.drive(positions, velocities)

    def _before_simulation_step(self) -> None:
        super()._before_simulation_step()
        if self._interpolates:
            self.scene.px.gpu_apply_articulation_target_position()

    def _advance(self, env_idx: torch.Tensor, steps: int) -> None:
        """Physics steps of the environments `env_idx` alone, for tasks in which things come to rest during a reset."""
        physics, active = self.scene.px, self.scene.px.active
        physics.active = np.isin(np.arange(self.num_envs), env_idx.numpy())
        self.scene._gpu_apply_all()
        for _ in range(steps):
            self.scene.step()
        physics.active = active
        self.scene._gpu_fetch_all()

    def _forget(self, rows: list[int]) -> None:
        for row in rows:
            self.scene.replace_sub_scene(row, renewed(self, self.scene.sub_scenes[row]))


def _generator_states(generators: BatchedRNG) -> list[tuple[bytes, int]]:
    states = [rng.get_state() for rng in generators.rngs]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return [*((state[1].tobytes(), state[2]) for state in states), (torch_state, 0)]


def _links(scene: ManiSkillScene, attributes: dict[str, Any]) -> Iterator[Link]:
    """Links of all articulations, and merged views of links that a task keeps among its attributes."""
    for articulation in [*scene.articulations.values(), *scene.articulation_views.values()]:
        yield articulation.root
        yield from articulation.links or ()
    for value in attributes.values():
        yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Link))


@functools.cache
def batched_task(task: type[BaseEnv]) -> type[BaseEnv]:
    """A subclass of `task` whose instances step `num_envs` CPU scenes as one batch."""
    return type(f"Batched{task.__name__}", (_BatchedTask, task), {"__module__": __name__})
