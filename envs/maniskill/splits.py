"""Which tasks can show something else than what training shows, by `env.split`. Imports no simulator."""

from __future__ import annotations

from typing import Literal

from envs.maniskill.put_on_plate.things import SPLITS as PUT_ON_PLATE
from envs.maniskill.rl4vla.variants import SPLITS as RL4VLA
from envs.maniskill.rl4vla.variants import VARIANTS

SplitName = Literal[
    "in",
    "out_object",
    "out_plate",
    "out_layout",
    "out_texture",
    "out_instruction",
    "out_distractor",
    "out_robot_start",
    "out",
    "both",
]


def splits_of(task: str) -> tuple[str, ...]:
    """The splits of a ManiSkill task id, that of training first; none for a task without."""
    if task == "PutOnPlate-v1":
        return PUT_ON_PLATE
    return RL4VLA if task in VARIANTS else ()
