"""Bounds: what a row of a part implies for the whole schedule, and which rows cannot be part of a better one.

Each bound holds for every schedule that contains the row, so dropping a row whose bound exceeds the time of a schedule
already known loses nothing.
"""

from __future__ import annotations

import math

import numpy as np

from embodied.scheduler.planner.problem import Problem, bits
from embodied.scheduler.planner.table import Table


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
        reach = [0] * count
        for unit in range(count):
            for earlier in bits(problem.before[unit]):
                reach[unit] |= reach[earlier] | 1 << earlier
        self.area_outside: dict[int, np.ndarray] = {}
        self.serial_outside: dict[int, float] = {}
        self.related: dict[int, float] = {}
        self.partners: dict[int, list[tuple[int, bool]]] = {}
        for part in problem.parts:
            others = [u for u in range(count) if not part >> u & 1]
            self.area_outside[part] = area[others].sum(axis=0) if others else np.zeros(len(problem.columns))
            # a unit that needs all items together never overlaps what comes before or after it
            alone = [
                u
                for u in others
                if problem.max_pieces(u) == 1 and all(reach[u] >> m & 1 or reach[m] >> u & 1 for m in bits(part))
            ]
            chain = all(reach[b] >> a & 1 or reach[a] >> b & 1 for a in alone for b in alone if a < b)
            times = [shortest[u] for u in alone]
            self.serial_outside[part] = sum(times) if chain else max(times, default=0.0)
            related = [u for u in others if all(reach[u] >> m & 1 or reach[m] >> u & 1 for m in bits(part))]
            spread = (area[related].sum(axis=0) / problem.capacity).max() if related else 0.0
            self.related[part] = max([spread, *(shortest[u] for u in related)])
            self.partners[part] = [(u, u in related) for u in others]
        self.shortest = shortest
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

        A unit that comes before or after all of the part meets it at some pipeline of at most `pieces` pieces, or in
        turn with it; there a piece passes one side after the other, and the units of the other side need at least their
        area on all devices, or the shortest of their times, for a piece."""
        return max(self.serial_outside[part], self.related[part] / pieces)

    def promising(self, part: int, pieces: int, table: Table, *, streams: bool = False) -> Table:
        """Rows that may be part of a schedule within the bound. streams: the rows are also those of a stream.

        A row handles all pieces one after another, so the iteration takes at least latency + (pieces - 1) period. Its
        devices are its own for that long, and the units outside take at least their area: together no more than all
        devices for the bound.
        """
        if math.isinf(self.bound):
            return table
        least = table.latency + (pieces - 1) * table.period
        keep = least + self.outside(part, self.problem.pieces[-1] if streams else pieces) <= self.bound
        area = table.resources * least[:, None] + self.area_outside[part]
        keep &= (area <= self.problem.capacity * self.bound).all(axis=1)
        if not keep.all():
            table, least = table.take(keep), least[keep]
        keep = self._leaves_room(part, table, least, np.zeros(len(table)) if streams else table.latency)
        return table.take(keep) if not keep.all() else table

    def _leaves_room(self, part: int, table: Table, least: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Rows that leave every unit outside either the time to run in turn with them, or the devices to run beside.

        In turn, its least time comes on top. Beside, it has the devices that the row leaves; with data passing between
        the two, the row's latency (`first`) comes on top of its time, and its latency on top of the row's time."""
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
            keep &= np.minimum(in_turn, beside) <= self.bound
        return keep
