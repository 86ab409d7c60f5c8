"""Turns a seed into an episode of RL4VLA's tasks. Imports no simulator.

Every aspect has random numbers of its own, so two tasks show the same seed with everything equal but what they vary, as
far as their sets have the same size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.random import derive_seed
from envs.maniskill.rl4vla.places import places, starts, turns
from envs.maniskill.rl4vla.variants import Variant


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode's world; things by their number in the collection.

    second: the other object or plate, None where there is none. places: x and y of object, plate and third place, in
    metres. turn: of the object about the vertical. start: added to the arm's six joints, rad.
    """

    thing: int
    plate: int
    second: int | None
    table: int
    texture: int
    phrase: int
    places: tuple[tuple[float, float], ...]
    turn: float
    start: tuple[float, ...]


def draw_episode(seed: int, variant: Variant, split: str) -> Episode:
    """The episode of a seed: a pure function."""

    def one(purpose: str, of: Sequence[Any] | np.ndarray) -> Any:
        rng = np.random.default_rng(derive_seed(seed, "rl4vla", purpose))
        return of[int(rng.integers(len(of)))]

    objects, plates = variant.objects.of(split), variant.plates.of(split)
    thing, plate = one("object", objects), one("plate", plates)
    second = None
    if variant.second == "object":
        second = one("second", [other for other in objects if other != thing])
    elif variant.second == "plate":
        # with one plate to put things on, the others are there to distract
        others = plates if len(plates) > 1 else variant.plates.of("both")
        second = one("second", [other for other in others if other != plate])
    return Episode(
        thing=thing,
        plate=plate,
        second=second,
        table=one("table", variant.tables.of(split)),
        texture=one("texture", variant.textures.of(split)),
        phrase=one("phrase", variant.phrases.of(split)),
        places=tuple((float(x), float(y)) for x, y in one("places", places(variant.layout, split))),
        turn=one("turn", turns(variant.layout, split)),
        start=tuple(float(x) for x in one("start", starts(variant.starts, split))),
    )


def standing(place: tuple[float, float], height: float, turn: float) -> list[float]:
    """float [7]: a pose that stands upright."""
    return [*place, height, math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)]
