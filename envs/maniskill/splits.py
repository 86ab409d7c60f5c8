"""Which tasks can show something else than what training shows, by `env.split`. Imports no simulator."""

from __future__ import annotations

from typing import Literal

from envs.maniskill.put_on_plate import things
from envs.maniskill.rl4vla import variants

PUT_ON_PLATE, RL4VLA = things.SPLITS, variants.SPLITS
SplitName = Literal[things.SplitName, variants.SplitName]
"""What `env.split` may be, of all tasks together."""


def splits_of(task: str) -> tuple[str, ...]:
    """The splits of a ManiSkill task id, that of training first; none for a task without."""
    if task == "PutOnPlate-v1":
        return PUT_ON_PLATE
    return RL4VLA if task in variants.VARIANTS else ()
