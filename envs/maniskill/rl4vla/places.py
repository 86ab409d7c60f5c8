"""Where things stand and how the arm starts, as numbered lists of the protocol. Metres and radians; no simulator.

Places lie on grids around the middle of the working area: 6 x 6 points 3 cm apart, and a ring around them.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math

import numpy as np

_MIDDLE, _HALF = (-0.16, 0.0), 0.075  # of the working area, in the scene's x and y
_INNER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # in units of the working area's side
_OUTER = (-0.2, *_INNER, 1.2)
_CLEAR, _FAR = 0.070, 0.150  # what two things are apart at least; two of a kind
_JOINT_STEPS = (-0.15, -0.08, 0.0, 0.08, 0.15)
_WRIST_STEPS = (-0.6, -0.3, 0.0, 0.3, 0.6)
_MOST_LEAN = 0.25  # of shoulder and elbow together


class Layout(enum.Enum):
    """What stands on the table, and which places are seen in training."""

    PAIR = "object and plate"
    RING = "object and plate; held out: on the ring and in other turns"
    SECOND_OBJECT = "and another object"
    SECOND_PLATE = "and another plate"
    MOVED = "held out: the object is moved in the fifth step"


def _points(grid: list[tuple[float, float]]) -> np.ndarray:
    return (np.array(grid) * 2 - 1) * _HALF + np.array(_MIDDLE)


@functools.cache
def _distances(ring: bool) -> tuple[np.ndarray, np.ndarray]:
    """float64 [P, 2] points and [P, P] what they are apart."""
    if ring:
        points = _points([p for p in itertools.product(_OUTER, repeat=2) if not set(p) <= set(_INNER)])
    else:
        points = _points(list(itertools.product(_INNER, repeat=2)))
    return points, np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=-1))


@functools.cache
def places(layout: Layout, split: str) -> np.ndarray:
    """float64 [K, 2 or 3, 2]: x and y of object, plate and, where there is one, the third place.

    The third is the second object's, the second plate's, or where the object is moved to.
    """
    if layout is Layout.RING and split == "both":
        return np.concatenate([places(layout, "in"), places(layout, "out")])
    points, apart = _distances(layout is Layout.RING and split == "out")
    clear, far = apart > _CLEAR, apart > _FAR
    if layout in (Layout.PAIR, Layout.RING):
        return points[np.argwhere(clear)]
    if layout is Layout.SECOND_PLATE:  # axes: object, plate, second plate
        fits = clear[:, :, None] & far[None, :, :] & clear[:, None, :]
    else:
        fits = clear[:, :, None] & clear[None, :, :] & far[:, None, :]
    return points[np.argwhere(fits)]


def turns(layout: Layout, split: str) -> tuple[float, ...]:
    """How the object is turned about the vertical."""
    seen = tuple(math.pi * k / 4 for k in range(4))
    unseen = tuple(-math.pi * (2 * k + 1) / 8 for k in range(4)) if layout is Layout.RING else seen
    return {"in": seen, "out": unseen, "both": tuple(dict.fromkeys(seen + unseen))}[split]


@functools.cache
def starts(varied: bool, split: str) -> np.ndarray:
    """float64 [K, 6]: what is added to the arm's six joints at the start."""
    usual = np.zeros((1, 6))
    if not varied or split == "in":
        return usual
    steps = itertools.product(*[_JOINT_STEPS] * 5, _WRIST_STEPS)
    unusual = np.array([step for step in steps if abs(step[1] + step[2]) <= _MOST_LEAN])
    return unusual if split == "out" else np.concatenate([usual, unusual])
