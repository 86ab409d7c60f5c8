"""Builds the bodies of put-on-plate scenes from primitives, and colours them anew in every episode.

Each scene has materials of its own: one that scenes share would show one episode's colours in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import sapien
import sapien.render
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.building.actor_builder import ActorBuilder
from mani_skill.utils.building.ground import build_ground
from mani_skill.utils.scene_builder.table import TableSceneBuilder
from mani_skill.utils.structs import Actor

from envs.maniskill.put_on_plate.looks import table_image
from envs.maniskill.put_on_plate.things import Part

TABLE_HEIGHT = 0.9196429
# as ManiSkill's own table: half sizes in its frame, which lies turned by a quarter on the floor
_TABLE_HALF = (2.418 / 2, 1.209 / 2, TABLE_HEIGHT / 2)
_TABLE_POSE = sapien.Pose(p=(-0.12, 0.0, -TABLE_HEIGHT), q=(math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)))
_DENSITY = 500.0  # kg/m3, of light wood: a cube weighs 32 g
_UPRIGHT = (math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0)  # the engine's cylinders lie along x


def build_thing(scene: ManiSkillScene, name: str, parts: Sequence[Part], pose: sapien.Pose, *, fixed: bool) -> Actor:
    """One body in every scene, at `pose` for a start. fixed: it can be placed, and nothing moves it."""
    builder = _own_materials(scene.create_actor_builder())
    builder.initial_pose = pose
    for part in parts:
        local = sapien.Pose(part.at, (math.cos(part.turn / 2), 0.0, 0.0, math.sin(part.turn / 2)))
        if part.kind == "box":
            builder.add_box_collision(local, part.size, density=_DENSITY)
            builder.add_box_visual(local, part.size)
        else:
            local = local * sapien.Pose(q=_UPRIGHT)
            builder.add_cylinder_collision(local, *part.size, density=_DENSITY)
            builder.add_cylinder_visual(local, *part.size)
    return builder.build_kinematic(name) if fixed else builder.build(name)


def _own_materials(builder: ActorBuilder) -> ActorBuilder:
    """`builder`, giving the bodies it builds in several scenes materials of their own."""
    build_entity = builder.build_entity

    def build_entity_with_own_materials() -> sapien.Entity:
        for record in builder.visual_records:
            record.material = sapien.render.RenderMaterial(base_color=(1.0,) * 4, roughness=0.8, specular=0.1)
        return build_entity()

    builder.build_entity = build_entity_with_own_materials
    return builder


class PlainTable(TableSceneBuilder):
    """ManiSkill's table scene with a plain block for a table, whose surface can be given any look.

    Robots start as they do at ManiSkill's own.
    """

    def build(self) -> None:
        """The table and the floor."""
        builder = _own_materials(self.scene.create_actor_builder())
        builder.initial_pose = _TABLE_POSE
        local = sapien.Pose((0.0, 0.0, TABLE_HEIGHT / 2))
        builder.add_box_collision(local, _TABLE_HALF)
        builder.add_box_visual(local, _TABLE_HALF)
        self.table = builder.build_kinematic("table-workspace")
        self.ground = build_ground(self.scene, floor_width=100, altitude=-TABLE_HEIGHT)
        self.scene_objects = [self.table, self.ground]
        self._textures: dict[str, sapien.render.RenderTexture2D] = {}

    def show(self, row: int, look: str, tint: Sequence[float]) -> None:
        """Give the table of environment `row` a look."""
        if look not in self._textures:
            image = np.ascontiguousarray(table_image(look))
            self._textures[look] = sapien.render.RenderTexture2D(image, "R8G8B8A8Unorm", srgb=True)
        for material in materials(self.table, row):
            material.set_base_color_texture(self._textures[look])
            material.set_base_color([*tint, 1.0])


def materials(actor: Actor, row: int) -> list[Any]:
    """The materials of an actor in one environment, in the order of its parts."""
    body = actor._objs[row].find_component_by_type(sapien.render.RenderBodyComponent)
    return [] if body is None else [part.material for shape in body.render_shapes for part in shape.parts]


def paint(actor: Actor, row: int, colour: Sequence[float], parts: Sequence[Part]) -> None:
    """Give an actor a colour in one environment, each part in its shade."""
    for material, part in zip(materials(actor, row), parts, strict=True):
        material.set_base_color([*(channel * part.shade for channel in colour), 1.0])
