"""Bounds: what a row of a part implies for the whole schedule, and which rows cannot be part of a better one.

Each bound holds for every schedule that contains the row, so dropping a row whose bound exceeds the time of a schedule
already known loses nothing.
"""

from __future__ import annotations

import math

import numpy as np

from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.table import Table
from embodied.scheduler.planner.units import bits


class Bounds:
    """Lower bounds from the rows of single units that are still possible."""

    def __init__(self, problem: Problem, leaves: dict[tuple[int, int], Table | None], bound: float) -> None:
        """leaves: rows of single units by (unit, pieces). bound: seconds of a schedule already known."""
        self.problem, self.bound, self.leaves = problem, bound, leaves
        # area: device-seconds of an iteration that a unit takes at least, by resource. shortest: its least seconds
        count = len(problem.units)
        area = np.full((count, len(problem.columns)), np.inf)
        shortest = np.full(count, np.inf)
        for (unit, pieces), table in leaves.items():
            if table is not None and len(table):
                times = table.latency + (pieces - 1) * table.period
                area[unit] = np.minimum(area[unit], (table.resources * times[:, None]).min(axis=0))
                shortest[unit] = min(shortest[unit], times.min())
        self.possible = bool(np.isfinite(shortest).all())
        self.reach = reach = [0] * count
        for unit in range(count):
            for earlier in bits(problem.before[unit]):
                reach[unit] |= reach[earlier] | 1 << earlier
        self.area_outside: dict[int, np.ndarray] = {}
        self.spread: dict[int, float] = {}
        self.linear: dict[int, bool] = {}
        self.alone = [problem.max_pieces(unit) == 1 for unit in range(count)]
        self.partners: dict[int, list[tuple[int, bool]]] = {}
        for part in problem.parts:
            others = [u for u in range(count) if not part >> u & 1]
            self.area_outside[part] = area[others].sum(axis=0) if others else np.zeros(len(problem.columns))
            related = [u for u in others if all(self._ordered(u, m) for m in bits(part))]
            self.spread[part] = (area[related].sum(axis=0) / problem.capacity).max() if related else 0.0
            self.partners[part] = [(u, u in related) for u in others]
            self.linear[part] = all(self._ordered(a, b) for a in related for b in related if a < b)
        self.shortest = shortest
        self.chains: dict[tuple[int, int, int | None], float] = {}
        self.limits = [self._limits(unit) for unit in range(count)]

    def _limits(self, unit: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """By resource: device counts of a unit's rows, rising, and the least total time and latency up to each."""
        tables = [(p, t) for (u, p), t in self.leaves.items() if u == unit and t is not None and len(t)]
        if not tables:
            return []
        resources = np.concatenate([t.resources for _, t in tables])
        total = np.concatenate([t.latency + (p - 1) * t.period for p, t in tables])
        # a stream's latency is at least its time divided by the pieces it hands on
        shrink = self.problem.max_pieces(unit) if self.problem.streams(unit) else 1
        latency = np.concatenate([t.period / shrink if shrink > 1 else t.latency for _, t in tables])
        found = []
        for column in resources.T:
            order = np.argsort(column, kind="stable")
            best = (np.minimum.accumulate(total[order]), np.minimum.accumulate(latency[order]))
            found.append((column[order], *(np.concatenate([[np.inf], b]) for b in best)))
        return found

    def outside(self, part: int, pieces: int) -> float:
        """Seconds that the units outside add at least to latency + (pieces - 1) period of rows of `part`.

        Units that come before or after all of the part, and before or after each other, are passed by a piece one after
        another: latencies add up, in turn and along data beside each other. Such a unit meets the part at some pipeline
        of at most `pieces` pieces, or in turn with it, so it adds its least time for a piece of that many; one that
        needs all items together is in no pipeline and adds all of its time. Together, the units of one side need at
        least their area on all devices for a piece."""
        return max(self.chain(part, pieces, None), self.spread[part] / pieces)

    def chain(self, part: int, pieces: int, without: int | None) -> float:
        """The longest such chain of units outside a part; of those before or after one of them, without it."""
        if self.linear[part]:
            # all units related to the part are: the chain is the sum
            key = (part, pieces, None)
            if key not in self.chains:
                self.chains[key] = sum(self._share(u, pieces) for u, related in self.partners[part] if related)
            total = self.chains[key]
            # infinite: a unit has no row left, and so nothing is possible
            return total if without is None or math.isinf(total) else total - self._share(without, pieces)
        key = (part, pieces, without)
        if key not in self.chains:
            longest: dict[int, float] = {}
            for unit, related in self.partners[part]:  # units are in topological order
                if related and (without is None or (unit != without and self._ordered(unit, without))):
                    before = (longest[u] for u in longest if self.reach[unit] >> u & 1)
                    longest[unit] = max(before, default=0.0) + self._share(unit, pieces)
            self.chains[key] = max(longest.values(), default=0.0)
        return self.chains[key]

    def _share(self, unit: int, pieces: int) -> float:
        """The least that a unit adds to the way of one of at most `pieces` pieces."""
        return self.shortest[unit] / (1 if self.alone[unit] else pieces)

    def _ordered(self, a: int, b: int) -> bool:
        return bool(self.reach[a] >> b & 1 or self.reach[b] >> a & 1)

    def promising(self, part: int, pieces: int, table: Table, *, streams: bool = False) -> Table:
        """Rows that may be part of a schedule within the bound. streams: the rows are also those of a stream.

        A row handles all pieces one after another, so the iteration takes at least latency + (pieces - 1) period. Its
        devices are its own for that long, and the units outside take at least their area: together no more than all
        devices for the bound.
        """
        if math.isinf(self.bound):
            return table
        least = table.latency + (pieces - 1) * table.period
        finest = self.problem.pieces[-1] if streams else pieces
        keep = least + self.outside(part, finest) <= self.bound
        area = table.resources * least[:, None] + self.area_outside[part]
        keep &= (area <= self.problem.capacity * self.bound).all(axis=1)
        if not keep.all():
            table, least = table.take(keep), least[keep]
        keep = self._leaves_room(part, finest, table, least, np.zeros(len(table)) if streams else table.latency)
        return table.take(keep) if not keep.all() else table

    def _leaves_room(self, part: int, pieces: int, table: Table, least: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Rows that leave every unit outside either the time to run in turn with them, or the devices to run beside.

        In turn, its least time comes on top. Beside, it has the devices that the row leaves; with data passing between
        the two, the row's latency (`first`) comes on top of its time, and its latency on top of the row's time. A piece
        passes the other units outside besides, see `outside`."""
        keep = np.ones(len(table), bool)
        for unit, related in self.partners[part]:
            in_turn = least + self.shortest[unit]
            beside = least
            for column, (counts, total, latency) in enumerate(self.limits[unit]):
                left = np.searchsorted(counts, self.problem.capacity[column] - table.resources[:, column], side="right")
                if related:
                    beside = np.maximum(beside, np.maximum(least + latency[left], total[left] + first))
                else:
                    beside = np.maximum(beside, total[left])
            others = self.chain(part, pieces, unit) if related else 0.0
            keep &= np.minimum(in_turn, beside) + others <= self.bound
        return keep
