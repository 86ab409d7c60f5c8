"""The tasks of the family: what each varies, and which of it is seen in training. Only data.

Objects, plates and tables are numbered as in the collection's own lists.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from envs.maniskill.rl4vla.places import Layout

PREFIX = "PutOnPlateInScene25"
OBJECTS, PLATES, TABLES = 25, 17, 21
STEPS = 80
SplitName = Literal["in", "out", "both"]
SPLITS: tuple[str, ...] = get_args(SplitName)
"""What training shows, what is held out, and either of them."""

PHRASES = (
    "put {object} on {plate}",
    "Place the {object} on the {plate}",
    "set {object} on {plate}",
    "move the {object} to the {plate}",
    "Take the {object} and put it on the {plate}",
    "pick up {object} and set it down on {plate}",
    "please put the {object} on the {plate}",
    "Put {object} onto {plate}.",
    "place the {object} onto the {plate} surface",
    "Make sure {object} is on {plate}.",
    "on the {plate}, put the {object}",
    "put the {object} where the {plate} is",
    "Move the {object} from the table to the {plate}",
    "Move {object} so it\u2019s on {plate}.",
    "Can you put {object} on {plate}?",
    "{object} on the {plate}, please.",
    "the {object} should be placed on the {plate}.",
)
"""The protocol's wordings: the first is that of training and of all tasks but `Instruct`."""


@dataclasses.dataclass(frozen=True)
class Sets:
    """Half-open ranges of numbers: what training shows and what is held out."""

    seen: tuple[int, int]
    unseen: tuple[int, int]

    def of(self, split: str) -> range:
        """The numbers that occur in a split."""
        if split == "both":
            return range(min(self.seen[0], self.unseen[0]), max(self.seen[1], self.unseen[1]))
        return range(*(self.seen if split == "in" else self.unseen))


def _same(first: int, last: int) -> Sets:
    return Sets((first, last), (first, last))


_FIRST, _SIXTEEN = _same(0, 1), _same(0, 16)
_OBJECTS, _PLATES, _TABLES = Sets((0, 16), (16, OBJECTS)), Sets((0, 1), (1, PLATES)), Sets((0, 16), (16, TABLES))
_PHRASES = Sets((0, 1), (1, len(PHRASES)))
_TEXTURES = Sets((0, 1), (1, 17))


@dataclasses.dataclass(frozen=True)
class Variant:
    """One task.

    textures: which tables' textures are blended in. blend: into what, by `strength` times the texture's own weight.
    layout: how places are drawn. starts: whether the arm's start varies in "out".
    """

    objects: Sets = _SIXTEEN
    plates: Sets = _FIRST
    tables: Sets = _SIXTEEN
    phrases: Sets = _FIRST
    textures: Sets = _FIRST
    blend: Literal["nothing", "things", "everything"] = "nothing"
    strength: float = 0.0
    layout: Layout = Layout.PAIR
    starts: bool = False

    @property
    def second(self) -> Literal["", "object", "plate"]:
        """What there is two of."""
        return {Layout.SECOND_OBJECT: "object", Layout.SECOND_PLATE: "plate"}.get(self.layout, "")  # type: ignore[return-value]


VARIANTS: dict[str, Variant] = {
    f"{PREFIX}{name}": variant
    for name, variant in {
        "Main-v3": Variant(objects=_OBJECTS, tables=_TABLES),
        "Single-v1": Variant(objects=_FIRST, tables=_FIRST),
        "MainCarrot-v3": Variant(objects=_OBJECTS, tables=_FIRST),
        "MainImage-v3": Variant(objects=_FIRST, tables=_TABLES),
        # what is seen
        "VisionImage-v1": Variant(tables=_TABLES),
        "VisionTexture03-v1": Variant(textures=_TEXTURES, blend="things", strength=0.3),
        "VisionTexture05-v1": Variant(textures=_TEXTURES, blend="things", strength=0.5),
        "VisionWhole03-v1": Variant(textures=_TEXTURES, blend="everything", strength=0.3),
        "VisionWhole05-v1": Variant(textures=_TEXTURES, blend="everything", strength=0.5),
        # what is meant
        "Carrot-v1": Variant(objects=_OBJECTS),
        "Plate-v1": Variant(plates=_PLATES),
        "Instruct-v1": Variant(phrases=_PHRASES),
        "MultiCarrot-v1": Variant(objects=_OBJECTS, layout=Layout.SECOND_OBJECT),
        "MultiPlate-v1": Variant(plates=_PLATES, tables=_same(0, TABLES), layout=Layout.SECOND_PLATE),
        # how it is done
        "Position-v1": Variant(layout=Layout.RING),
        "EEPose-v1": Variant(starts=True),
        "PositionChangeTo-v1": Variant(layout=Layout.MOVED),
    }.items()
}
"""By ManiSkill's id."""
