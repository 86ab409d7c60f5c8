"""Draws a robot by its collision shapes instead of its visual meshes.

With a software renderer the cost of a picture is its vertices, and most of a scene's are the robot's visual meshes.
Physics, state and camera poses are unchanged; the robot looks coarser and has one colour.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sapien
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.scene import ManiSkillScene
from sapien.wrapper.actor_builder import CollisionShapeRecord, VisualShapeRecord

_COLOUR = (0.85, 0.86, 0.88, 1.0)
_MESHES = ("convex_mesh", "nonconvex_mesh", "multiple_convex_meshes")


class _LowpolyTask(BaseEnv):
    """Mixed in before a task class: only what is loaded as a robot is concerned."""

    def _load_agent(self, *args: Any, **options: Any) -> None:
        with _collision_shapes_as_visuals(self.scene):
            super()._load_agent(*args, **options)


@functools.cache
def lowpoly_task(task: type[BaseEnv]) -> type[BaseEnv]:
    """A subclass of `task` whose robots are drawn by their collision shapes."""
    return type(f"Lowpoly{task.__name__}", (_LowpolyTask, task), {"__module__": __name__})


@contextlib.contextmanager
def _collision_shapes_as_visuals(scene: ManiSkillScene) -> Iterator[None]:
    """Loaders that `scene` hands out in this scope replace what they parse."""
    names = ("create_urdf_loader", "create_mjcf_loader")
    for name in names:
        setattr(scene, name, functools.partial(_loader, getattr(scene, name), scene.can_render()))
    try:
        yield
    finally:
        for name in names:
            delattr(scene, name)


def _loader(create: Callable[[], Any], drawn: bool) -> Any:
    loader = create()
    parse = loader.parse

    def parse_lowpoly(*args: Any, **options: Any) -> dict[str, Any]:
        parsed = parse(*args, **options)
        if drawn:
            material = sapien.render.RenderMaterial(base_color=_COLOUR, roughness=0.6)
            for articulation in parsed["articulation_builders"]:
                for link in articulation.link_builders:
                    shapes = [_visual(record, material) for record in link.collision_records if record.type != "plane"]
                    link.visual_records = shapes or link.visual_records
        return parsed

    loader.parse = parse_lowpoly
    return loader


def _visual(shape: CollisionShapeRecord, material: sapien.render.RenderMaterial) -> VisualShapeRecord:
    return VisualShapeRecord(
        type="file" if shape.type in _MESHES else shape.type,
        filename=shape.filename,
        scale=shape.scale,
        radius=shape.radius,
        length=shape.length,
        material=material,
        pose=shape.pose,
    )
