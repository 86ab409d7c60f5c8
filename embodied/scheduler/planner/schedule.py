"""A schedule as a tree: works that occupy devices, one after the other on the same ones or side by side on others.

`Work` is a leaf: one stage, or the stages of a cycle. `InTurn` runs two parts on the same devices, `Beside` on
different devices, and a `Pipeline` passes its body's items on in pieces, so that what is beside each other overlaps.
Times are in `bounds.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeAlias

from embodied.scheduler.planner.profile import Kind


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one stage runs. devices: accelerators, or cores, of `group`. resident: its state stays loaded between its
    turns."""

    stage: str
    kind: Kind
    group: str
    devices: int
    resident: bool = True


@dataclasses.dataclass(frozen=True)
class Work:
    """One stage, or a cycle's stages in order. blocks: the cycle's stages by the devices they share. slots: sub-batches
    served in turn."""

    placements: tuple[Placement, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    slots: int = 1

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages."""
        return tuple(p.stage for p in self.placements)


@dataclasses.dataclass(frozen=True)
class InTurn:
    """`first`, then `second`, on the same devices."""

    first: Schedule
    second: Schedule


@dataclasses.dataclass(frozen=True)
class Beside:
    """`first` and `second` on different devices."""

    first: Schedule
    second: Schedule


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """`body` handles what it is given in this many pieces."""

    pieces: int
    body: Schedule


Schedule: TypeAlias = Work | InTurn | Beside | Pipeline


def works(schedule: Schedule, pieces: int = 1) -> Iterator[tuple[Work, int]]:
    """The leaves in order, each with the number of pieces of an iteration that it handles."""
    if isinstance(schedule, Work):
        yield schedule, pieces
    elif isinstance(schedule, Pipeline):
        yield from works(schedule.body, pieces * schedule.pieces)
    else:
        yield from works(schedule.first, pieces)
        yield from works(schedule.second, pieces)


def placements(schedule: Schedule) -> dict[str, Placement]:
    """Every stage's placement by name."""
    return {p.stage: p for work, _ in works(schedule) for p in work.placements}


def describe(schedule: Schedule) -> str:
    """One line: `a > b` in turn, `a | b` side by side, `(...)/8` in eight pieces, stages of a cycle joined by `+`."""
    if isinstance(schedule, Work):
        text = " + ".join(
            f"{p.stage}[{p.devices}{' cores' if p.kind == 'cpu' else ''}{'' if p.resident else ', unloaded'}]"
            for p in schedule.placements
        )
        if not schedule.blocks:
            return text
        how = "shared" if len(schedule.blocks) == 1 else "apart"
        return f"<{text}; {how}, {schedule.slots} slot{'s' if schedule.slots > 1 else ''}>"
    if isinstance(schedule, Pipeline):
        return f"({describe(schedule.body)})" + (f"/{schedule.pieces}" if schedule.pieces > 1 else "")
    sign, same = (" > ", InTurn) if isinstance(schedule, InTurn) else (" | ", Beside)

    def inner(part: Schedule) -> str:
        return (
            f"({describe(part)})"
            if isinstance(part, InTurn | Beside) and not isinstance(part, same)
            else describe(part)
        )

    return inner(schedule.first) + sign + inner(schedule.second)
