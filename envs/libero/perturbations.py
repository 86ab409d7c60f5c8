"""Changes to a loaded scene that a robust policy should not mind, drawn from the episode's seed, in five severities.

The kinds are those of LIBERO-Plus (camera, light, texture, noise, robot start, distractors, wording); the magnitudes
are this project's, in `envs.libero.magnitudes`. A draw is a pure function of (kind, severity, seed): it is the same in
every process, and the same seed meets the same changes under every policy. Physics is untouched but for where the robot
and the things start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from typing import Any

import mujoco
import numpy as np

from embodied.random import derive_seed
from envs.libero.magnitudes import LEVELS

_SWAP_TEXTURES_FROM = 3  # severity from which backgrounds also trade their textures
_WALL_CAMERAS = ("agentview", "frontview", "sideview", "birdview", "galleryview")
_BACKGROUND = ("table", "floor", "wall")  # parts of the names of their materials, in every LIBERO scene
_OUT_OF_SIGHT = (0.0, 0.0, -10.0)
_CLEARANCE = 0.06  # metres between a distractor's middle and the outline of anything else
_REACH = 0.28  # metres from the scene's middle to where distractors may stand
_SHAPES = (
    ("box", "0.02 0.03 0.025"),
    ("cylinder", "0.022 0.04"),
    ("ellipsoid", "0.03 0.03 0.03"),
    ("capsule", "0.015 0.03"),
    ("box", "0.035 0.02 0.015"),
    ("cylinder", "0.035 0.012"),
)

Edit = tuple[Any, Any, Any]  # array, index, value


@dataclasses.dataclass(frozen=True)
class World:
    """What is different in one episode.

    edits: values to put into the model while pictures are drawn. joint_offset [7]: added to the arm's start, or None.
    noise: standard deviation of the pictures' noise in grey levels, with the seed it is drawn from.
    """

    edits: tuple[Edit, ...] = ()
    joint_offset: np.ndarray | None = None
    noise: float = 0.0
    noise_seed: int = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model with this episode's edits, and without them again afterwards."""
        before = [np.copy(array[index]) for array, index, _ in self.edits]
        try:
            for array, index, value in self.edits:
                array[index] = value
            yield
        finally:
            for (array, index, _), value in zip(self.edits, before, strict=True):
                array[index] = value

    def add_noise(self, images: np.ndarray, step: int) -> None:
        """Disturb uint8 pictures in place; the noise depends on the seed and on the step of the episode alone."""
        if self.noise:
            drawn = np.random.default_rng([self.noise_seed, step]).normal(0.0, self.noise, images.shape)
            images[:] = np.clip(images + drawn, 0, 255).astype(np.uint8)


UNCHANGED = World()


def draw_shift(perturb: Mapping[str, int], seed: int) -> np.ndarray:
    """float64 [2]: metres that everything on the table is moved by, together, so that nothing collides."""
    if "layout" not in perturb:
        return np.zeros(2)
    most = LEVELS["layout"][perturb["layout"] - 1]
    return np.random.default_rng(derive_seed(seed, "perturb", "layout")).uniform(-most, most, 2)


def with_distractor_bodies(xml: str) -> str:
    """The scene with things to clutter it that nothing collides with, out of sight until an episode wants them."""
    root = ET.fromstring(xml)
    world = root.find("worldbody")
    for index, (shape, size) in enumerate(_SHAPES):
        body = ET.SubElement(world, "body", name=_distractor(index), pos=" ".join(map(str, _OUT_OF_SIGHT)))
        ET.SubElement(
            body,
            "geom",
            name=_distractor(index),
            type=shape,
            size=size,
            group="1",
            contype="0",
            conaffinity="0",
            mass="0",
        )
    return ET.tostring(root, encoding="unicode")


def draw_world(
    perturb: Mapping[str, int], seed: int, model: mujoco.MjModel, occupied: np.ndarray, ground: float
) -> World:
    """What the seed changes.

    Args:
        perturb: kind -> severity.
        seed: the assignment's.
        model: the compiled scene, in its unperturbed state.
        occupied: [N, 3] circles (x, y, radius in metres) that distractors keep out of.
        ground: height of the surface that distractors stand on, in metres.
    """
    edits: list[Edit] = []
    offset, noise = None, 0.0
    for kind, severity in perturb.items():
        if kind not in LEVELS:
            continue
        rng = np.random.default_rng(derive_seed(seed, "perturb", kind))
        level = LEVELS[kind][severity - 1]
        match kind:
            case "camera":
                edits += _camera(rng, level, model)
            case "light":
                edits += _light(rng, level, model)
            case "texture":
                edits += _texture(rng, level, severity, model)
            case "distractors":
                edits += _distractors(rng, int(level), model, occupied, ground)
            case "robot_start":
                offset = rng.normal(0.0, level, 7)
            case "noise":
                noise = level
    return World(tuple(edits), offset, noise, derive_seed(seed, "perturb", "noise"))


def _distractor(index: int) -> str:
    return f"distractor_{index}"


def _camera(rng: np.random.Generator, level: float, model: mujoco.MjModel) -> list[Edit]:
    """Cameras on the walls move and turn by `level`; the one on the wrist stays."""
    edits: list[Edit] = []
    for name in _WALL_CAMERAS:
        camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        if camera < 0:
            continue
        turn = np.zeros(4)
        mujoco.mju_axisAngle2Quat(turn, _direction(rng), level)
        turned = np.zeros(4)
        mujoco.mju_mulQuat(turned, turn, model.cam_quat[camera])
        edits.append((model.cam_pos, camera, model.cam_pos[camera] + level * _direction(rng)))
        edits.append((model.cam_quat, camera, turned))
    return edits


def _light(rng: np.random.Generator, level: float, model: mujoco.MjModel) -> list[Edit]:
    """All lights become brighter or darker, each colour a little differently, and the lamps move."""
    gain = (1.0 + level * rng.choice([-1.0, 1.0])) * (1.0 + 0.3 * level * rng.uniform(-1, 1, 3))
    edits: list[Edit] = []
    for array in (model.light_diffuse, model.light_ambient, model.light_specular):
        edits.append((array, slice(None), np.clip(array * gain, 0.0, 1.5)))
    for array in (model.vis.headlight.diffuse, model.vis.headlight.ambient):
        edits.append((array, slice(None), np.clip(array * gain, 0.0, 1.5)))
    moved = model.light_pos + level * np.stack([_direction(rng) for _ in range(model.nlight)])
    edits.append((model.light_pos, slice(None), moved))
    return edits


def _texture(rng: np.random.Generator, level: float, severity: int, model: mujoco.MjModel) -> list[Edit]:
    """Table, floor and walls are tinted, and at high severity trade their textures among themselves."""
    background = [
        material
        for material in range(model.nmat)
        if any(word in model.material(material).name.lower() for word in _BACKGROUND)
    ]
    edits: list[Edit] = []
    for material in background:
        tint = rng.uniform(0.0, 1.0, 3)
        colour = (1.0 - level) * model.mat_rgba[material, :3] + level * tint
        edits.append((model.mat_rgba, (material, slice(0, 3)), colour))
    if severity >= _SWAP_TEXTURES_FROM:
        # a texture on a face and one around a cube are not interchangeable
        by_kind: dict[int, list[int]] = {}
        for material in background:
            textures = model.mat_texid[material]
            used = textures[textures >= 0]
            if len(used):
                by_kind.setdefault(int(model.tex_type[used[0]]), []).append(material)
        for materials in by_kind.values():
            for material, source in zip(materials, rng.permutation(materials).tolist(), strict=True):
                edits.append((model.mat_texid, material, model.mat_texid[source].copy()))
    return edits


def _distractors(
    rng: np.random.Generator, count: int, model: mujoco.MjModel, occupied: np.ndarray, ground: float
) -> list[Edit]:
    """Things of random colour on the table, clear of what is there; fewer where there is no room for all."""
    edits: list[Edit] = []
    taken = [*occupied]
    for index in rng.permutation(len(_SHAPES))[:count]:
        body, geom = model.body(_distractor(index)).id, model.geom(_distractor(index)).id
        colour = np.array([*rng.uniform(0.1, 1.0, 3), 1.0])
        for _ in range(200):
            spot = rng.uniform(-_REACH, _REACH, 2)
            if all(np.linalg.norm(spot - other[:2]) > other[2] + _CLEARANCE for other in taken):
                taken.append(np.array([*spot, 0.03]))
                edits.append((model.body_pos, body, np.array([*spot, ground + model.geom_size[geom].max()])))
                edits.append((model.geom_rgba, geom, colour))
                break
    return edits


def _direction(rng: np.random.Generator) -> np.ndarray:
    """A random unit vector."""
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)
