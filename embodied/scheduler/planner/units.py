"""Units of a flow, a stage or the stages of one cycle, and tables of the ways to run one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from embodied.scheduler.planner.profile import CycleProfile, Kind
from embodied.scheduler.planner.schedule import Placement, Work


@dataclasses.dataclass(frozen=True)
class Unit:
    """A stage, or the stages of one cycle in order."""

    stages: tuple[str, ...]
    cycle: CycleProfile | None

    @property
    def name(self) -> str:
        """Stage names joined by `+`."""
        return "+".join(self.stages)


@dataclasses.dataclass(frozen=True)
class Options:
    """Ways to run one unit on one piece; rows of equal length, and `work(row)` says what a row is.

    resources: [rows, columns] devices taken. seconds: [rows], switching: [rows] of it to unload and load again.
    idle, running: [rows, groups] memory fractions. apart, shared: whether stages of the unit are on different
    accelerators (cores, where there are none), or share some.
    """

    resources: np.ndarray
    seconds: np.ndarray
    switching: np.ndarray
    idle: np.ndarray
    running: np.ndarray
    apart: np.ndarray
    shared: np.ndarray
    choices: list[tuple[Options.Choice, int]]

    @dataclasses.dataclass(frozen=True)
    class Choice:
        """What many rows have in common; `devices` [rows, stages] is what differs."""

        kinds: tuple[Kind, ...]
        groups: tuple[str, ...]
        resident: tuple[bool, ...]
        blocks: tuple[tuple[str, ...], ...]
        slots: int
        devices: np.ndarray

    def work(self, unit: Unit, row: int) -> Work:
        """The placement that a row stands for."""
        choice, start = next((choice, start) for choice, start in reversed(self.choices) if row >= start)
        fields = zip(
            unit.stages, choice.kinds, choice.groups, choice.devices[row - start].tolist(), choice.resident, strict=True
        )
        return Work(tuple(Placement(*field) for field in fields), choice.blocks, choice.slots)


def bits(mask: int) -> Iterator[int]:
    """Indices of the set bits."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def contiguous_partitions(names: tuple[str, ...]) -> list[tuple[tuple[str, ...], ...]]:
    """All ways to cut a circle of names into blocks of neighbours. A block that a sub-batch enters twice a round is
    left out: nothing is known of its period."""
    count = len(names)
    found = [(names,)]
    for mask in range(1 << count):
        cuts = [i for i in range(count) if mask >> i & 1]  # a cut lies before the name at each of these places
        if len(cuts) < 2:
            continue
        turned = names[cuts[0] :] + names[: cuts[0]]
        ends = [cut - cuts[0] for cut in cuts[1:]] + [count]
        blocks = [turned[a:b] for a, b in itertools.pairwise([0, *ends])]
        found.append(tuple(sorted(blocks, key=lambda block: min(names.index(name) for name in block))))
    return found
