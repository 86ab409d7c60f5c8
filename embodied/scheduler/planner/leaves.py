"""Tables of single units: what a search begins with, and how many of their rows it looks at."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.table import Table, unbeaten, whole


class Style(enum.Enum):
    """Which schedules are searched, by how accelerators are used (cores, where there are none). Stages on different
    kinds of resources overlap in every style."""

    ANY = "any"
    SHARED = "shared"  # accelerators are used by one part after the other
    SPLIT = "split"  # every stage has accelerators of its own
    MIXED = "mixed"  # both occur

    def allows(self, missing: np.ndarray) -> np.ndarray:
        """Mask of the rows that may be part of such a schedule; missing: see `Table`."""
        if self is Style.SHARED:
            return missing[:, 1] == 1
        if self is Style.SPLIT:
            return missing[:, 0] == 1
        return np.ones(len(missing), bool)


class Effort(enum.Enum):
    """How many of the rows of single units a search looks at."""

    GLANCE = "all, half and a quarter of the devices; one piece"
    SPARSE = "powers of two and eighths"
    ALL = "all"


@dataclasses.dataclass(frozen=True)
class Leaves:
    """Rows of single units by (unit, pieces), None where there are none. steps[origin[row, 0]] says what a row is."""

    tables: dict[tuple[int, int], Table | None]
    steps: list[tuple]

    def rows(self) -> int:
        """How many there are."""
        return sum(len(table) for table in self.tables.values() if table is not None)

    def sparse(self, problem: Problem, effort: Effort) -> Leaves:
        """Those rows that an effort looks at."""
        if effort is Effort.ALL:
            return self
        tables = {
            key: None if table is None else table.where(_sparse(problem, table.resources, effort))
            for key, table in self.tables.items()
        }
        return Leaves(tables, self.steps)


def leaves_of(problem: Problem, style: Style) -> Leaves:
    """All rows of single units in a style, without those that another one beats."""
    found = Leaves({}, [])
    for unit in range(len(problem.units)):
        for pieces in problem.pieces:
            found.tables[unit, pieces] = _leaf(problem, unit, pieces, style, len(found.steps))
            found.steps.append(("work", unit, pieces))
    return found


def _leaf(problem: Problem, unit: int, pieces: int, style: Style, step: int) -> Table | None:
    options = problem.options(unit, pieces)
    if options is None:
        return None
    rows = np.arange(len(options.seconds))
    missing = np.stack([~options.shared, ~options.apart], axis=1).astype(float)
    origin = np.stack([np.full_like(rows, step), rows, rows], axis=1)
    seconds = options.seconds
    # as a row of its own in a pipeline: loaded once, see `bounds.py`. In turn, the period is the latency again
    period = seconds - options.switching
    table = Table(options.resources, seconds, period, options.idle, options.running, missing, origin)
    table = table.where(style.allows(missing))
    if not len(table):
        return None
    steps = whole(table.resources, 1) + whole(table.idle) + whole(table.running)
    steps += whole(table.missing, 1) if style is Style.MIXED else []
    return table.take(unbeaten([table.latency, table.period], steps))


def _sparse(problem: Problem, resources: np.ndarray, effort: Effort) -> np.ndarray:
    keep = np.ones(len(resources), bool)
    for column, capacity in enumerate(problem.capacity):
        there = np.unique(resources[:, column])
        wanted = capacity // 2.0 ** np.arange(3)
        if effort is Effort.SPARSE:
            powers = 2.0 ** np.arange(1 + int(np.log2(capacity)))
            wanted = np.concatenate([wanted, powers, capacity * np.arange(1, 9) // 8])
        index = np.maximum(np.searchsorted(there, wanted, side="right") - 1, 0)
        keep &= np.isin(resources[:, column], there[index])
    return keep
