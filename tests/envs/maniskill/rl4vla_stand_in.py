"""Assets with the layout of RL4VLA's and of ManiSkill's, made of boxes and plain pictures, for tests without downloads.

The arm has the joints and about the lengths of a WidowX 250S.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import trimesh
from PIL import Image

TABLE_TOP = 0.87  # metres
OBJECT = (0.05, 0.03, 0.03)  # metres; the last ones are longer
PLATE = (0.08, 0.08, 0.012)


def colour_of(table: int) -> tuple[int, int, int]:
    """The colour of a table's photograph."""
    return 10 + 10 * table, 200 - 8 * table, 60


TEXTURE = (240, 20, 220)
"""The colour of every texture."""


def write_assets(folder: Path) -> dict[str, str]:
    """Put everything into `folder`; the environment variables under which it is found."""
    _write_robot(folder / "maniskill" / "data" / "robots" / "widowx")
    stages = folder / "maniskill" / "data" / "tasks" / "bridge_v2_real2sim_dataset" / "stages"
    stages.mkdir(parents=True)
    _stage().export(stages / "bridge_table_1_v1.glb")
    carrot = folder / "rl4vla" / "carrot"
    _write_models(carrot / "more_carrot", "thing", 25, OBJECT)
    _write_models(carrot / "more_plate", "plate", 17, PLATE)
    _write_tables(carrot / "more_table")
    return {
        "MS_ASSET_DIR": str(folder / "maniskill"),
        "EMBODIED_ASSET_RL4VLA_PUT_ON_PLATE": str(folder / "rl4vla"),
    }


def _stage() -> trimesh.Trimesh:
    # the scene lays the stage down by a quarter turn and moves it by (2.0634, 2.8313, 0)
    middle = (-0.16 - 2.0634, TABLE_TOP - 0.02, 2.8313)
    return trimesh.creation.box((0.8, 0.04, 0.8), trimesh.transformations.translation_matrix(middle))


def _write_models(folder: Path, word: str, count: int, size: tuple[float, float, float]) -> None:
    listed = {}
    for number in range(count):
        name = f"{number + 1:03d}_{word}"
        place = folder / name
        place.mkdir(parents=True)
        own = np.array(size) * (1 + 0.01 * number, 1, 1)
        box = trimesh.creation.box(own)
        (place / "collision.obj").write_text(trimesh.exchange.obj.export_obj(box))
        box.visual.vertex_colors = (200, 30 + 5 * number, 30, 255)
        box.export(place / "textured.glb")
        listed[name] = {
            "name": f"{word} {number}",
            "bbox": {"min": (-own / 2).tolist(), "max": (own / 2).tolist()},
            "density": 600,
            "scale": [1.0],
        }
    (folder / "model_db.json").write_text(json.dumps(listed))


def _write_tables(folder: Path) -> None:
    listed = {}
    for part in ("imgs", "textures"):
        (folder / part).mkdir(parents=True)
    for number in range(21):
        name = f"{number:03d}.png"
        Image.new("RGB", (64, 48), colour_of(number)).save(folder / "imgs" / name)
        Image.new("RGB", (64, 48), TEXTURE).save(folder / "textures" / name)
        listed[name] = {"texture": name, "mix": 1.0 if number else 0.0}
    (folder / "model_db.json").write_text(json.dumps(listed))


_LINKS = [  # link, half sizes of its box, where that is
    ("base_link", (0.05, 0.05, 0.035), (0, 0, 0.035)),
    ("shoulder_link", (0.03, 0.03, 0.015), (0, 0, 0.015)),
    ("upper_arm_link", (0.02, 0.02, 0.12), (0.02, 0, 0.125)),
    ("upper_forearm_link", (0.08, 0.02, 0.02), (0.085, 0, 0)),
    ("lower_forearm_link", (0.03, 0.02, 0.02), (0.035, 0, 0)),
    ("wrist_link", (0.025, 0.02, 0.02), (0.03, 0, 0)),
    ("gripper_link", (0.02, 0.02, 0.02), (0.02, 0, 0)),
    ("ee_gripper_link", None, None),
    ("left_finger_link", (0.03, 0.004, 0.008), (0.02, 0, 0)),
    ("right_finger_link", (0.03, 0.004, 0.008), (0.02, 0, 0)),
]
_JOINTS = [  # name, kind, parent, child, where, axis, limits
    ("waist", "revolute", "base_link", "shoulder_link", (0, 0, 0.072), (0, 0, 1), (-3.1, 3.1)),
    ("shoulder", "revolute", "shoulder_link", "upper_arm_link", (0, 0, 0.03865), (0, 1, 0), (-1.88, 1.99)),
    ("elbow", "revolute", "upper_arm_link", "upper_forearm_link", (0.04975, 0, 0.25), (0, 1, 0), (-2.15, 1.6)),
    ("forearm_roll", "revolute", "upper_forearm_link", "lower_forearm_link", (0.175, 0, 0), (1, 0, 0), (-3.1, 3.1)),
    ("wrist_angle", "revolute", "lower_forearm_link", "wrist_link", (0.075, 0, 0), (0, 1, 0), (-1.75, 2.15)),
    ("wrist_rotate", "revolute", "wrist_link", "gripper_link", (0.065, 0, 0), (1, 0, 0), (-3.1, 3.1)),
    ("ee_gripper", "fixed", "gripper_link", "ee_gripper_link", (0.1365, 0, 0), None, None),
    ("left_finger", "prismatic", "gripper_link", "left_finger_link", (0.109, 0, 0), (0, 1, 0), (0.015, 0.037)),
    ("right_finger", "prismatic", "gripper_link", "right_finger_link", (0.109, 0, 0), (0, -1, 0), (0.015, 0.037)),
]


def _write_robot(folder: Path) -> None:
    folder.mkdir(parents=True)
    parts = ['<robot name="wx250s">']
    for name, half, at in _LINKS:
        inertia = '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
        parts.append(f'<link name="{name}"><inertial><mass value="0.2"/>{inertia}</inertial>')
        if half is not None:
            shape = f'<origin xyz="{_text(at)}"/><geometry><box size="{_text(2 * np.array(half))}"/></geometry>'
            parts.append(f"<visual>{shape}</visual><collision>{shape}</collision>")
        parts.append("</link>")
    for name, kind, parent, child, at, axis, limits in _JOINTS:
        parts.append(f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>')
        parts.append(f'<origin xyz="{_text(at)}"/>')
        if axis is not None:
            low, high = limits
            parts.append(f'<axis xyz="{_text(axis)}"/><limit lower="{low}" upper="{high}" effort="99" velocity="9"/>')
        parts.append("</joint>")
    (folder / "wx250s.urdf").write_text("".join([*parts, "</robot>"]))


def _text(numbers) -> str:
    return " ".join(str(float(number)) for number in numbers)
