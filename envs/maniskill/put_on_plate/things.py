"""What there is in put-on-plate scenes: shapes, plates, colours, table looks and phrases, seen in training or held out.

Lengths in metres, angles in radians. Only data: nothing here imports the simulator.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

SplitName = Literal[
    "in",
    "out_object",
    "out_plate",
    "out_layout",
    "out_texture",
    "out_instruction",
    "out_distractor",
    "out_robot_start",
]
SPLITS: tuple[str, ...] = get_args(SplitName)
"""`in`, and what each other split has that training has not: unseen objects and colours; unseen plates; places and
turns outside the trained area; unseen patterns on the table; unseen wordings; a second object that is not meant; the
arm starting further from its usual pose."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A box (half sizes x, y, z) or an upright cylinder (radius, half height) of a shape, in the shape's frame.

    shade: factor on the object's colour, so that a shape's parts can be told apart.
    """

    kind: Literal["box", "cylinder"]
    size: tuple[float, ...]
    at: tuple[float, float, float] = (0.0, 0.0, 0.0)
    turn: float = 0.0
    shade: float = 1.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """An object to grasp. rest: height of its origin above what it stands on. outline: radius of its footprint."""

    name: str
    parts: tuple[Part, ...]
    rest: float
    outline: float


@dataclasses.dataclass(frozen=True)
class Plate:
    """A plate. top: height of its surface. radius: of the disc around its middle that counts as being on it."""

    name: str
    parts: tuple[Part, ...]
    top: float
    radius: float
    outline: float
    colours: tuple[str, ...]


COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.08, 0.08),
    "green": (0.08, 0.60, 0.12),
    "blue": (0.10, 0.20, 0.85),
    "yellow": (0.90, 0.78, 0.05),
    "purple": (0.45, 0.10, 0.65),
    "orange": (0.95, 0.42, 0.03),
    "cyan": (0.05, 0.70, 0.75),
    "pink": (0.95, 0.45, 0.65),
    "white": (0.92, 0.92, 0.90),
    "grey": (0.50, 0.50, 0.52),
    "brown": (0.38, 0.22, 0.10),
    "black": (0.05, 0.05, 0.06),
}


def _ring(radius: float, height: float, thickness: float, pieces: int) -> tuple[Part, ...]:
    """An upright ring of boxes around the origin, with outer radius `radius`."""
    middle = radius - thickness / 2
    half_length = middle * math.tan(math.pi / pieces) + thickness / 4
    return tuple(
        Part(
            "box",
            (thickness / 2, half_length, height / 2),
            (middle * math.cos(angle), middle * math.sin(angle), 0.0),
            angle,
        )
        for angle in (2 * math.pi * piece / pieces for piece in range(pieces))
    )


def _hexagon(radius: float, half_height: float) -> tuple[Part, ...]:
    """A regular hexagonal prism: three boxes over its three pairs of opposite sides."""
    size = (radius / 2, radius * math.sqrt(3) / 2, half_height)
    return tuple(Part("box", size, turn=math.pi * k / 3) for k in range(3))


SEEN_SHAPES = (
    Shape("cube", (Part("box", (0.02, 0.02, 0.02)),), 0.02, 0.0283),
    Shape("cylinder", (Part("cylinder", (0.019, 0.03)),), 0.03, 0.019),
    Shape(
        "can",
        (
            Part("cylinder", (0.025, 0.018)),
            Part("cylinder", (0.022, 0.002), (0, 0, 0.02), shade=0.5),
            Part("cylinder", (0.022, 0.002), (0, 0, -0.02), shade=0.5),
        ),
        0.022,
        0.025,
    ),
    Shape("brick", (Part("box", (0.018, 0.03, 0.02)),), 0.02, 0.035),
)
UNSEEN_SHAPES = (
    Shape(
        "bowl",
        (*_ring(0.032, 0.036, 0.006, 10), Part("cylinder", (0.029, 0.003), (0, 0, -0.015), shade=0.6)),
        0.018,
        0.033,
    ),
    Shape(
        "bottle",
        (Part("cylinder", (0.02, 0.018)), Part("cylinder", (0.009, 0.008), (0, 0, 0.026), shade=0.6)),
        0.018,
        0.02,
    ),
    Shape("nut", (*_hexagon(0.026, 0.018), Part("cylinder", (0.012, 0.0185), shade=0.4)), 0.018, 0.026),
    Shape(
        "corner",
        (Part("box", (0.016, 0.03, 0.02)), Part("box", (0.012, 0.014, 0.02), (0.028, -0.016, 0.0), shade=0.8)),
        0.02,
        0.045,
    ),
)
SEEN_COLOURS = ("red", "green", "blue", "yellow")
UNSEEN_COLOURS = ("purple", "orange", "cyan", "pink")

SEEN_PLATES = (
    Plate(
        "plate",
        (Part("cylinder", (0.075, 0.004)), Part("cylinder", (0.058, 0.0042), shade=0.85)),
        0.008,
        0.06,
        0.075,
        ("white", "grey", "brown"),
    ),
)
UNSEEN_PLATES = (
    Plate(
        "tray",
        (Part("box", (0.075, 0.06, 0.004)), Part("box", (0.06, 0.045, 0.0042), shade=0.8)),
        0.008,
        0.05,
        0.096,
        ("black", "orange"),
    ),
    Plate(
        "saucer",
        (Part("cylinder", (0.055, 0.004)), Part("cylinder", (0.02, 0.0042), shade=0.6)),
        0.008,
        0.042,
        0.055,
        ("cyan", "pink"),
    ),
)

SEEN_PHRASES = ("put the {object} on the {plate}", "place the {object} on the {plate}")
UNSEEN_PHRASES = (
    "set the {object} down on top of the {plate}",
    "take the {object} and lay it onto the {plate}",
    "the {plate} should carry the {object}",
    "move the {object} over until it rests on the {plate}",
)

SEEN_LOOKS = ("oak", "walnut", "slate", "linen", "sand", "sage")
UNSEEN_LOOKS = ("checkers", "stripes", "dots", "marble")


@dataclasses.dataclass(frozen=True)
class Contents:
    """What the scenes of one split are made of. starts: standard deviation of the arm's joints at the start, rad."""

    shapes: tuple[Shape, ...] = SEEN_SHAPES
    colours: tuple[str, ...] = SEEN_COLOURS
    plates: tuple[Plate, ...] = SEEN_PLATES
    phrases: tuple[str, ...] = SEEN_PHRASES
    looks: tuple[str, ...] = SEEN_LOOKS
    wide_layout: bool = False
    distractor: bool = False
    starts: float = 0.02

    def instructions(self) -> tuple[str, ...]:
        """Every text that can occur, in the order of `instruction_index`."""
        return tuple(
            phrase.format(object=f"{colour} {shape.name}", plate=plate.name)
            for phrase in self.phrases
            for shape in self.shapes
            for colour in self.colours
            for plate in self.plates
        )

    def instruction_index(self, phrase: int, shape: int, colour: int, plate: int) -> int:
        """The place of a text in `instructions`."""
        return ((phrase * len(self.shapes) + shape) * len(self.colours) + colour) * len(self.plates) + plate


_CONTENTS = {
    "in": Contents(),
    "out_object": Contents(shapes=UNSEEN_SHAPES, colours=UNSEEN_COLOURS),
    "out_plate": Contents(plates=UNSEEN_PLATES),
    "out_layout": Contents(wide_layout=True),
    "out_texture": Contents(looks=UNSEEN_LOOKS),
    "out_instruction": Contents(phrases=UNSEEN_PHRASES),
    "out_distractor": Contents(distractor=True),
    "out_robot_start": Contents(starts=0.1),
}


def contents(split: str) -> Contents:
    """What a split's scenes are made of."""
    return _CONTENTS[split]


INSTRUCTIONS = tuple(dict.fromkeys(text for split in SPLITS for text in contents(split).instructions()))
"""The texts of all splits. Environments of every split list them all, so that an index means the same text in each, and
a policy that makes room for the longest can be asked any."""
