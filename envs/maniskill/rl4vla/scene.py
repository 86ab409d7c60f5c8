"""Builds what RL4VLA's scenes are made of: BridgeData's stage, objects, plates, and a shelf for what is not in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sapien
import sapien.physx as physx
from mani_skill.envs.scene import ManiSkillScene
from mani_skill.utils.structs import Actor

from envs.maniskill.rl4vla.collection import Model

_STAGE = "stages/bridge_table_1_v1.glb"
_STAGE_POSE = sapien.Pose(q=(0.707, 0.707, 0.0, 0.0))
_STAGE_AT = sapien.Pose(p=(2.0634, 2.8313, 0.0))
_FRICTION = 1.0
_SHELF = (20.0, 0.0)  # x and y of its middle, far behind the camera
_APART, _COLUMNS = 0.6, 7  # metres between things on the shelf
_GAP = 0.002  # metres above the shelf at which a thing is put down


def build_stage(scene: ManiSkillScene, folder: Path) -> None:
    """The table and what surrounds it, from the BridgeData digital twins in `folder`."""
    builder = scene.create_actor_builder()
    file = str(folder / _STAGE)
    builder.add_nonconvex_collision_from_file(file, pose=_STAGE_POSE)
    builder.add_visual_from_file(file, pose=_STAGE_POSE)
    builder.initial_pose = _STAGE_AT
    builder.build_static(name="arena")


def build_shelf(scene: ManiSkillScene) -> None:
    """Where what an episode does not use stands, its surface at height 0."""
    builder = scene.create_actor_builder()
    builder.add_box_collision(half_size=(5.0, 5.0, 0.5))
    builder.initial_pose = sapien.Pose(p=(*_SHELF, -0.5))
    builder.build_static(name="shelf")


def build_model(scene: ManiSkillScene, model: Model, name: str, at: Sequence[float]) -> Actor:
    """One body in every scene, at the pose `at` (position, quaternion) for a start."""
    builder = scene.create_actor_builder()
    scale = (model.scale,) * 3
    builder.add_multiple_convex_collisions_from_file(
        str(model.collision),
        scale=scale,
        material=physx.PhysxMaterial(_FRICTION, _FRICTION, 0.0),
        density=model.density,
    )
    builder.add_visual_from_file(str(model.visual), scale=scale)
    builder.initial_pose = sapien.Pose(p=at[:3], q=at[3:])
    return builder.build(name)


def on_shelf(number: int, model: Model) -> list[float]:
    """float [7]: the pose of a thing that is not in use."""
    row, column = divmod(number, _COLUMNS)
    middle = (_COLUMNS - 1) / 2
    x, y = _SHELF[0] + (row - middle) * _APART, _SHELF[1] + (column - middle) * _APART
    return [x, y, _GAP - model.low[2], 1.0, 0.0, 0.0, 0.0]
