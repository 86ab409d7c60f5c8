"""Deadlines: how long a row of a part may take at most, or it cannot be in a schedule better than one already known.

A relaxed search that forgets memory and looks at one resource at a time, in a few steps of devices, is cheap enough to
be done in full. Upwards it gives, for every part, the least time it can take on so many devices; from the whole flow
down again, the most time that a part on so many devices may take, whatever is done with the rest.

The time of a row is its total: latency + (pieces - 1) period, which it needs from its first piece to its last. Totals
only grow from a part to a larger one that contains it:

* handled in turn with another part, the totals add up (both have one period, their latency);
* beside another part, the total is at least the larger of the two. Where data passes between the two, the first piece
  (or the last one) passes the other part besides, and its latency is at least its total divided by the pieces, because
  no period is longer than the latency;
* as a pipeline in one of fewer pieces, p (L + (s / p - 1) P) is at least L + (s - 1) P for the same reason.

Each relaxation only makes times shorter or leaves more devices, so a row beyond its deadline is in no schedule within
the bound, and dropping it loses nothing.
"""

from __future__ import annotations

import numpy as np

from embodied.scheduler.planner.leaves import Leaves
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.table import Table

STEPS = (8, 32)  # of devices: coarse ones first, so that fewer rows are left for the finer ones


def prune(problem: Problem, leaves: Leaves, bound: float) -> tuple[Leaves, Deadlines]:
    """The rows of single units that may be in a schedule of at most `bound` seconds, and the deadlines of all parts."""
    for steps in STEPS:
        deadlines = Deadlines(problem, leaves, bound, steps)
        tables = {
            (unit, pieces): None if table is None else _within(problem, deadlines, unit, pieces, table)
            for (unit, pieces), table in leaves.tables.items()
        }
        leaves = Leaves(tables, leaves.steps)
    return leaves, deadlines


def _within(problem: Problem, deadlines: Deadlines, unit: int, pieces: int, table: Table) -> Table | None:
    least = table.latency + (pieces - 1) * table.period
    # the rows of a unit that streams are also those of the stream, in however many pieces
    counts = problem.pieces if problem.streams(unit) else (pieces,)
    table = table.where(least <= np.maximum.reduce([deadlines.of(1 << unit, p, table.resources) for p in counts]))
    return table if len(table) else None


class Deadlines:
    """Deadlines of all parts for schedules of at most `bound` seconds, from the rows of single units there still are.

    A row has one by every resource; the earliest counts."""

    def __init__(self, problem: Problem, leaves: Leaves, bound: float, steps: int) -> None:
        """steps: into which the devices of a resource are divided."""
        self._index = {pieces: i for i, pieces in enumerate(problem.pieces)}
        self._columns = [_Column(problem, leaves, bound, column, steps) for column in range(len(problem.columns))]
        self.possible = all(column.least[problem.full][0, -1] <= bound for column in self._columns)

    def of(self, part: int, pieces: int, resources: np.ndarray) -> np.ndarray:
        """Deadlines of rows of a part that take these devices [rows, columns] and handle one of so many pieces."""
        return self._earliest([column.deadline[part] for column in self._columns], pieces, resources)

    def beside(self, part: int, other: int, pieces: int, resources: np.ndarray) -> np.ndarray:
        """The same, of rows that are to stand beside another part."""
        return self._earliest([column.apart[part, other] for column in self._columns], pieces, resources)

    def in_turn(self, part: int, other: int, pieces: int, resources: np.ndarray) -> np.ndarray:
        """The same, of rows that are to take turns with another part."""
        return self._earliest([column.turns[part, other] for column in self._columns], pieces, resources)

    def hopeless(self, part: int, pieces: int) -> bool:
        """Whether a part has no row at all within its deadline."""
        i = self._index[pieces]
        return any((column.least[part][i] > column.deadline[part][i]).all() for column in self._columns)

    def _earliest(self, limits: list[np.ndarray], pieces: int, resources: np.ndarray) -> np.ndarray:
        i = self._index[pieces]
        taken = resources.astype(np.intp).T
        found = [
            limit[i, column.step[devices]] for column, limit, devices in zip(self._columns, limits, taken, strict=True)
        ]
        return found[0] if len(found) == 1 else np.minimum.reduce(found)


class _Column:
    """The relaxed search by one resource, in steps: step k stands for low[k] to high[k] devices.

    least[part]: [pieces, steps], the least total on at most high[k] devices. deadline[part]: the most that a row on a
    number of devices in step k may take; turns, apart[part, other]: if it then takes turns with, stands beside another
    part."""

    def __init__(self, problem: Problem, leaves: Leaves, bound: float, column: int, steps: int) -> None:
        self.problem = problem
        capacity = int(problem.capacity[column])
        self.high = np.unique(np.linspace(0, capacity, min(capacity, steps) + 1).round().astype(int))
        self.low = np.array([0, *(self.high[:-1] + 1)])
        self.step = np.searchsorted(self.high, np.arange(capacity + 1))
        self.pieces = np.array(problem.pieces)[:, None]
        self.finer = [[j for j, s in enumerate(problem.pieces) if s > p and s % p == 0] for p in problem.pieces]
        # the step of the most that is left of high[k] devices when another part has those of step j, and of the
        # fewest that both have together; one step more than there are where that cannot be
        none = len(self.high)
        left, both = (np.add.outer(a, b) for a, b in ((self.high, -self.low), (self.low, self.low)))
        self.left = np.where(left >= 0, self.step[left.clip(0)], none)
        self.both = np.where(both <= capacity, self.step[both.clip(max=capacity)], none)
        self.least: dict[int, np.ndarray] = {}
        self.deadline: dict[int, np.ndarray] = {}
        self.turns: dict[tuple[int, int], np.ndarray] = {}
        self.apart: dict[tuple[int, int], np.ndarray] = {}
        for part in problem.parts:
            self.least[part] = self._least(part, leaves, column)
        self._set_deadlines(bound)

    def _least(self, part: int, leaves: Leaves, column: int) -> np.ndarray:
        found = np.full((len(self.pieces), len(self.high)), np.inf)
        if part.bit_count() == 1:
            self._least_of_unit(part.bit_length() - 1, leaves, column, found)
        for first, second in self.problem.cuts(part):
            a, b = self.least[first], self.least[second]
            np.minimum(found, a + b, out=found)
            a, b = a[:, None, :], np.take(_one_more(b, np.inf), self.left, axis=1)  # [pieces, devices, those of first]
            if self._joined(first, second):
                pieces = self.pieces[:, :, None]
                beside = np.maximum(a + b / pieces, b + a / pieces)
            else:
                beside = np.maximum(a, b)
            np.minimum(found, beside.min(axis=2), out=found)
        for i in reversed(range(len(found))):
            for finer in self.finer[i]:
                np.minimum(found[i], found[finer], out=found[i])
        return found

    def _least_of_unit(self, unit: int, leaves: Leaves, column: int, found: np.ndarray) -> None:
        for i, pieces in enumerate(self.problem.pieces):
            table = leaves.tables[unit, pieces]
            if table is not None:
                steps = self.step[table.resources[:, column].astype(np.intp)]
                np.minimum.at(found[i], steps, table.latency + (pieces - 1) * table.period)
        np.minimum.accumulate(found, axis=1, out=found)
        if self.problem.streams(unit):  # hands on pieces while it works on all items as one
            streamed = self.pieces[:, 0] <= self.problem.max_pieces(unit)
            found[streamed] = np.minimum(found[streamed], found[0])

    def _set_deadlines(self, bound: float) -> None:
        problem, pieces = self.problem, self.pieces[:, :, None]
        around: dict[int, list[tuple[int, int, bool]]] = {part: [] for part in problem.parts}
        for whole in problem.parts:
            for first, second in problem.cuts(whole):
                joined = self._joined(first, second)
                around[first].append((second, whole, joined))
                around[second].append((first, whole, joined))
        for part in reversed(problem.parts):
            found = np.full_like(self.least[part], bound if part == problem.full else -np.inf)
            for other, whole, joined in around[part]:
                limit, theirs = self.deadline[whole], self.least[other]
                # the other part has devices of the same step, or more
                turns = np.maximum.accumulate((limit - theirs)[:, ::-1], axis=1)[:, ::-1]
                together = np.take(_one_more(limit, -np.inf), self.both, axis=1)  # [pieces, ours, theirs]
                room = together - theirs[:, None, :]
                if joined:
                    room = np.minimum(together - theirs[:, None, :] / pieces, room * pieces)
                else:
                    room = np.where(room >= 0, together, -np.inf)
                self.turns[part, other], self.apart[part, other] = turns, room.max(axis=2)
                np.maximum(found, np.maximum(turns, self.apart[part, other]), out=found)
            for i, finer in enumerate(self.finer):
                for j in finer:
                    np.maximum(found[j], found[i], out=found[j])
            self.deadline[part] = found

    def _joined(self, first: int, second: int) -> bool:
        return self.problem.crossing(first, second, 1)[0]


def _one_more(table: np.ndarray, value: float) -> np.ndarray:
    return np.concatenate([table, np.full((len(table), 1), value)], axis=1)
