"""Reads the objects, plates and tables of RL4VLA's tasks from the folder that `sim_assets` finds.

Layout: `carrot/more_carrot`, `carrot/more_plate` and `carrot/more_table`, each with a `model_db.json` that lists its
things in order. A model has a folder with `collision.obj` and `textured.obj`, `.dae` or `.glb`; a table has a picture
in `imgs/` and a texture in `textures/`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from embodied.errors import AssetError
from envs.maniskill.rl4vla.variants import OBJECTS, PHRASES, PLATES, TABLES

_VISUALS = ("textured.obj", "textured.dae", "textured.glb")


@dataclasses.dataclass(frozen=True)
class Model:
    """An object or a plate. words: what instructions call it. density: kg/m3. low, high: the corners of its box, float
    [3] in metres, scaled."""

    folder: Path
    words: str
    density: float
    scale: float
    low: tuple[float, float, float]
    high: tuple[float, float, float]

    @property
    def collision(self) -> Path:
        """Its convex parts."""
        return self.folder / "collision.obj"

    @property
    def visual(self) -> Path:
        """What is drawn."""
        return next(self.folder / name for name in _VISUALS if (self.folder / name).is_file())


@dataclasses.dataclass(frozen=True)
class Table:
    """A photograph of a scene without robot, a texture, and how strongly that texture is blended where one is."""

    picture: Path
    texture: Path
    mix: float


@dataclasses.dataclass(frozen=True)
class Collection:
    """All of them, in the order of their lists."""

    objects: tuple[Model, ...]
    plates: tuple[Model, ...]
    tables: tuple[Table, ...]

    def instruction(self, phrase: int, thing: int, plate: int) -> str:
        """The text for a wording, an object and a plate."""
        return PHRASES[phrase].format(object=self.objects[thing].words, plate=self.plates[plate].words)

    @functools.cached_property
    def instructions(self) -> tuple[str, ...]:
        """Every text that a task of the family can ask, each once; the same for all tasks and splits."""
        usual = [(0, thing, plate) for plate in range(PLATES) for thing in range(OBJECTS)]
        reworded = [(phrase, thing, 0) for phrase in range(1, len(PHRASES)) for thing in range(OBJECTS)]
        return tuple(dict.fromkeys(self.instruction(*which) for which in usual + reworded))


@functools.cache
def read_collection(folder: Path) -> Collection:
    """What lies in `folder`, which holds `carrot/` or is it. Raises AssetError for what is missing or damaged."""
    root = folder / "carrot" if (folder / "carrot").is_dir() else folder
    return Collection(
        _models(root / "more_carrot", OBJECTS),
        _models(root / "more_plate", PLATES),
        _tables(root / "more_table"),
    )


def _models(folder: Path, count: int) -> tuple[Model, ...]:
    models = []
    for name, entry in _listed(folder, count).items():
        place = folder / name
        try:
            scale = float(np.atleast_1d(entry.get("scale", 1.0))[0])
            low, high = (
                tuple(float(x) * scale for x in np.broadcast_to(entry["bbox"][end], 3)) for end in ("min", "max")
            )
            model = Model(place, str(entry["name"]), float(entry.get("density", 1000)), scale, low, high)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _damaged(folder, f"{name!r} has no usable {error}") from None
        if not model.collision.is_file() or not any((place / visual).is_file() for visual in _VISUALS):
            raise _damaged(folder, f"{name!r} lacks collision.obj or one of {', '.join(_VISUALS)}")
        models.append(model)
    return tuple(models)


def _tables(folder: Path) -> tuple[Table, ...]:
    tables = []
    for name, entry in _listed(folder, TABLES).items():
        try:
            table = Table(folder / "imgs" / name, folder / "textures" / entry["texture"], float(entry["mix"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder, f"{name!r} has no usable {error}") from None
        if not (table.picture.is_file() and table.texture.is_file()):
            raise _damaged(folder, f"{name!r} lacks its picture or its texture")
        tables.append(table)
    return tuple(tables)


def _listed(folder: Path, count: int) -> dict[str, Any]:
    file = folder / "model_db.json"
    try:
        entries = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"model_db.json cannot be read ({error})") from None
    if not isinstance(entries, dict) or len(entries) != count:
        found = len(entries) if isinstance(entries, dict) else "no"
        raise _damaged(folder, f"model_db.json lists {found} entries where the protocol has {count}")
    return entries


def _damaged(folder: Path, what: str) -> AssetError:
    return AssetError(
        f"RL4VLA's assets in {folder} are not as expected: {what}. Fetch them anew with "
        "`embodied assets fetch rl4vla-put-on-plate`, or see `embodied assets where rl4vla-put-on-plate`."
    )


def read_picture(path: Path, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3], resized between the nearest pixels. Raises AssetError for a file that is no picture."""
    try:
        with Image.open(path) as image:
            # not PIL's resize, which averages over what a smaller picture leaves out: the protocol does not
            return _interpolated(np.asarray(image.convert("RGB")), height, width)
    except OSError as error:
        raise _damaged(path.parent.parent, f"{path.name} is no picture ({error})") from None


def _interpolated(image: np.ndarray, height: int, width: int) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image.copy()
    rows, columns = (
        np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        for new, old in ((height, image.shape[0]), (width, image.shape[1]))
    )
    top, left = rows.astype(int), columns.astype(int)
    bottom, right = np.minimum(top + 1, image.shape[0] - 1), np.minimum(left + 1, image.shape[1] - 1)
    down, across = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = image[top][:, left] * (1 - across) + image[top][:, right] * across
    lower = image[bottom][:, left] * (1 - across) + image[bottom][:, right] * across
    return np.round(upper * (1 - down) + lower * down).astype(np.uint8)
