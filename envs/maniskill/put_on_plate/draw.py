"""Turns a seed into an episode. Imports no simulator.

Every aspect has random numbers of its own, so two splits show the same seed with everything equal but what they vary:
results on splits can be compared episode by episode.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from embodied.random import derive_seed
from envs.maniskill.put_on_plate.things import Contents

# x is away from the robot, y to its left; metres around the middle of the working area
_SEEN_OBJECT = ((-0.09, 0.05), (-0.16, -0.03))
_SEEN_PLATE = ((-0.08, 0.04), (0.07, 0.17))
_WIDE = ((-0.15, 0.11), (-0.23, 0.23))
_SEEN_TURN = 0.3
_GAP = 0.02  # between the outlines of two things
_TRIES = 500


@dataclasses.dataclass(frozen=True)
class Place:
    """Where something stands: x, y in metres, turned by `turn` radians."""

    x: float
    y: float
    turn: float


@dataclasses.dataclass(frozen=True)
class Thing:
    """Which shape, in which colour (indices into the split's contents), and where."""

    shape: int
    colour: int
    place: Place


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode's world.

    instruction: index into the split's instructions. look: index into its table looks; tint: factors on its colour.
    """

    target: Thing
    plate: int
    plate_colour: int
    plate_place: Place
    instruction: int
    look: int
    tint: tuple[float, float, float]
    distractor: Thing | None


def draw_episode(seed: int, contents: Contents) -> Episode:
    """The episode of a seed in a split with these contents: a pure function."""

    def rng(purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(seed, "put_on_plate", purpose))

    kind = rng("object")
    shape, colour = int(kind.integers(len(contents.shapes))), int(kind.integers(len(contents.colours)))
    dish = rng("plate")
    plate = int(dish.integers(len(contents.plates)))
    plate_colour = int(dish.integers(len(contents.plates[plate].colours)))
    place, plate_place = _layout(rng("layout"), contents, shape, plate)
    phrase = int(rng("instruction").integers(len(contents.phrases)))
    table = rng("texture")
    look, tint = int(table.integers(len(contents.looks))), tuple(table.uniform(0.9, 1.1, 3).tolist())
    distractor = None
    if contents.distractor:
        distractor = _distractor(rng("distractor"), contents, shape, colour, (place, plate_place), plate)
    return Episode(
        target=Thing(shape, colour, place),
        plate=plate,
        plate_colour=plate_colour,
        plate_place=plate_place,
        instruction=contents.instruction_index(phrase, shape, colour, plate),
        look=look,
        tint=tint,
        distractor=distractor,
    )


def _layout(rng: np.random.Generator, contents: Contents, shape: int, plate: int) -> tuple[Place, Place]:
    """Places of the object and the plate that leave room between them; a wide layout lies outside the trained one."""
    apart = contents.shapes[shape].outline + contents.plates[plate].outline + _GAP
    for _ in range(_TRIES):
        if contents.wide_layout:
            thing, dish = _within(rng, _WIDE, math.pi), _within(rng, _WIDE, math.pi)
            if _inside(thing, _SEEN_OBJECT) or _inside(dish, _SEEN_PLATE):
                continue
        else:
            thing, dish = _within(rng, _SEEN_OBJECT, _SEEN_TURN), _within(rng, _SEEN_PLATE, _SEEN_TURN)
        if math.dist((thing.x, thing.y), (dish.x, dish.y)) >= apart:
            return thing, dish
    raise AssertionError(f"no room for shape {shape} and plate {plate} in {_TRIES} tries")


def _distractor(
    rng: np.random.Generator,
    contents: Contents,
    shape: int,
    colour: int,
    taken: tuple[Place, Place],
    plate: int,
) -> Thing:
    """Another shape in another colour, clear of the object and the plate."""
    other = int((shape + 1 + rng.integers(len(contents.shapes) - 1)) % len(contents.shapes))
    shade = int((colour + 1 + rng.integers(len(contents.colours) - 1)) % len(contents.colours))
    own = contents.shapes[other].outline + 2 * _GAP
    outlines = (contents.shapes[shape].outline + own, contents.plates[plate].outline + own)
    for _ in range(_TRIES):
        place = _within(rng, _WIDE, _SEEN_TURN)
        if all(
            math.dist((place.x, place.y), (item.x, item.y)) >= apart
            for item, apart in zip(taken, outlines, strict=True)
        ):
            return Thing(other, shade, place)
    raise AssertionError(f"no room for a distractor in {_TRIES} tries")


def _within(rng: np.random.Generator, area: tuple[tuple[float, float], tuple[float, float]], turn: float) -> Place:
    (x0, x1), (y0, y1) = area
    return Place(float(rng.uniform(x0, x1)), float(rng.uniform(y0, y1)), float(rng.uniform(-turn, turn)))


def _inside(place: Place, area: tuple[tuple[float, float], tuple[float, float]]) -> bool:
    (x0, x1), (y0, y1) = area
    return x0 <= place.x <= x1 and y0 <= place.y <= y1
