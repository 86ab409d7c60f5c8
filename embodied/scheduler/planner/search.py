"""Exact search for the schedule with the smallest closed-form time, over all schedules of `schedule.py`.

Bottom-up over sets of units and numbers of pieces: a set's schedules are those of one unit, of two parts in turn, and
of two parts beside each other in pieces, for every cut of the set. Parts are kept as tables of rows (see `table.py`).
Four rules prune, each with its argument where it is applied: what does not fit, what another row beats, what cannot
be part of a schedule better than one already known, and equal bracketings.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np

from embodied.errors import ConfigurationError
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.advice import combination_advice
from embodied.scheduler.planner.leaves import Effort, Leaves, Style, leaves_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import Cluster
from embodied.scheduler.planner.pruning import Deadlines, prune
from embodied.scheduler.planner.schedule import Beside, InTurn, Pipeline, Schedule
from embodied.scheduler.planner.table import MANY, Table, stack, unbeaten, whole
from embodied.scheduler.planner.units import bits

TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A schedule and its closed-form seconds."""

    schedule: Schedule
    seconds: float


def search(problem: Problem, style: Style = Style.ANY, known: float = math.inf) -> list[Candidate]:
    """The best schedule first, then the best ones that end in another last step, by rising time.

    known: seconds of a schedule that the caller has; only better ones are wanted, and the list may be empty.
    Raises ConfigurationError when nothing of this style fits the cluster's devices and memory.
    """
    if math.isfinite(known):
        leaves, deadlines = prune(problem, leaves_of(problem, style), known * (1 + TOLERANCE))
        return _Search(problem, style, leaves, deadlines, problem.pieces[-1]).run()
    found = _in_steps(problem, style)
    if not found:
        raise ConfigurationError(_nothing_fits(problem, style))
    return found


def _in_steps(problem: Problem, style: Style) -> list[Candidate]:
    """Few device counts and pieces first, then more: the best schedule so far bounds the next search, which drops most
    of its rows early. Only the last one has all rows."""
    leaves, deadlines = leaves_of(problem, style), None
    found: list[Candidate] = []
    for effort in Effort:
        most = 1 if effort is Effort.GLANCE else problem.pieces[-1]
        better = _Search(problem, style, leaves.sparse(problem, effort), deadlines, most).run()
        if better and (not found or better[0].seconds < found[0].seconds) and effort is not Effort.ALL:
            leaves, deadlines = prune(problem, leaves, better[0].seconds * (1 + TOLERANCE))
        found = better or found
    return found


def _nothing_fits(problem: Problem, style: Style) -> str:
    kinds = ", ".join(f"{int(n)} {k}s of {g}" for (g, k), n in zip(problem.columns, problem.capacity, strict=True))
    named = "" if style is Style.ANY else f" {style.value}"
    said = f"no{named} plan exists for this flow that fits {kinds}"
    if not problem.memory_groups or style is not Style.ANY:
        return said

    def suffices(cluster: Cluster) -> bool:
        """Whether a plan exists for another cluster."""
        other = Problem(dataclasses.replace(problem.profile, cluster=cluster), problem.pieces, checked=False)
        return bool(_in_steps(other, style))

    return f"{said}:\n{combination_advice(problem, suffices)}"


class _Search:
    """One run."""

    def __init__(self, problem: Problem, style: Style, leaves: Leaves, deadlines: Deadlines | None, most: int) -> None:
        """deadlines: by a schedule already known. most: pieces that are looked at."""
        self.problem, self.style, self.deadlines = problem, style, deadlines
        self.pieces = [p for p in problem.pieces if p <= most]
        self.divided = np.array([kind == problem.divided for _, kind in problem.columns])
        self.steps = list(leaves.steps)
        self.leaves = leaves.tables
        self._prepare_memory()
        self.leaves = {
            (unit, pieces): None if table is None else self._unbeaten(1 << unit, table)
            for (unit, pieces), table in self.leaves.items()
        }
        self.done: dict[tuple[int, int], Table | None] = {}
        self.bodies: dict[tuple[int, int, bool], Table | None] = {}

    def _promising(self, part: int, pieces: int, table: Table) -> Table:
        if self.deadlines is None:
            return table
        least = table.latency + (pieces - 1) * table.period
        return table.where(least <= self.deadlines.of(part, pieces, table.resources))

    # -- memory that can matter

    def _prepare_memory(self) -> None:
        """How much the units outside a part can keep on a device, and have on it at most, whatever their rows.

        A row's idle and running fractions only matter above what the outside leaves free in the worst case; below it
        they are compared as equal (and kept as they are)."""
        problem = self.problem
        groups = len(problem.memory_groups)
        kept = np.zeros((len(problem.units), groups))
        extra = np.zeros((len(problem.units), groups))
        for (unit, _), table in self.leaves.items():
            if table is not None and len(table):
                kept[unit] = np.maximum(kept[unit], table.idle.max(axis=0))
                extra[unit] = np.maximum(extra[unit], table.running.max(axis=0))
        self.free_idle: dict[int, np.ndarray] = {}
        self.free_running: dict[int, np.ndarray] = {}
        for part in problem.parts:
            others = [u for u in range(len(problem.units)) if not part >> u & 1]
            if not others:
                self.free_idle[part] = self.free_running[part] = np.full(groups, np.inf)
                continue
            keeps = kept[others].sum(axis=0)
            self.free_running[part] = 1.0 - keeps
            # while one outside unit runs, the other outside ones keep what they keep
            self.free_idle[part] = 1.0 - (keeps + (extra[others] - kept[others]).max(axis=0))

    def _best(self, pieces: int, table: Table) -> Table:
        """Of rows of all units: the one with the smallest time, for nothing larger is made of them."""
        if self.style is Style.MIXED:
            table = table.where((table.missing == 0).all(axis=1))
        if len(table) < 2:
            return table
        return table.take(np.array([int(np.argmin(table.latency + (pieces - 1) * table.period))]))

    def _unbeaten(self, part: int, table: Table) -> Table:
        if len(table) < 2:
            return table
        times = [table.latency]
        if not np.array_equal(table.period, table.latency):
            times.append(table.period)
        columns = whole(table.resources, 1)
        columns += whole(np.maximum(table.idle, self.free_idle[part]))
        columns += whole(np.maximum(table.running, self.free_running[part]))
        if self.style is Style.MIXED:
            columns += whole(table.missing, 1)
        return table.take(unbeaten(times, columns))

    # -- rows of several units

    def run(self) -> list[Candidate]:
        """The best schedule of each last step."""
        problem = self.problem
        if self.deadlines is not None and not self.deadlines.possible:
            return []  # even the relaxed search finds nothing within the bound
        # smaller pieces can save time or memory only through these terms: with affine times, p calls for ceil(m / p)
        # items never take less than one for m, and without bytes of items no piece needs less memory
        repeat = any(
            cost.time.per_item_squared > 0
            or (kind == "accelerator" and cost.memory.item_bytes + cost.memory.item_state_bytes > 0)
            for stage in problem.profile.stages.values()
            for kind, cost in stage.on.items()
        )
        last: list[Table] = []
        for pieces in reversed(self.pieces):
            for part in problem.parts:
                rows = []
                if self.deadlines is not None and self.deadlines.hopeless(part, pieces):
                    self.done[part, pieces] = None
                    continue
                if part.bit_count() == 1:
                    leaf = self.leaves[part.bit_length() - 1, pieces]
                    if leaf is not None:
                        rows.append(dataclasses.replace(leaf, period=leaf.latency))
                cuts = problem.cuts(part)
                if self.style is not Style.SPLIT or len(self.divided) > self.divided.sum():
                    rows += [self._in_turn(a, b, pieces) for a, b in cuts]
                self.bodies[part, pieces, False] = self._body(part, cuts, pieces, streaming=False)
                if any(problem.streams(u) for u in bits(part)):
                    self.bodies[part, pieces, True] = self._body(part, cuts, pieces, streaming=True)
                for smaller in self.pieces:
                    if smaller >= pieces and smaller % pieces == 0:
                        rows.append(self._pipeline(part, pieces, smaller))
                        if repeat and smaller > pieces:
                            rows.append(self._repeat(part, pieces, smaller))
                if pieces == 1:
                    # a pipeline of one piece has no period: these rows are among the part's own now
                    for streaming in (False, True):
                        self.bodies.pop((part, pieces, streaming), None)
                found = [table for table in rows if table is not None and len(table)]
                if part == problem.full and pieces == 1:
                    last = found
                merged = self._unbeaten(part, self._promising(part, pieces, stack(found))) if found else None
                self.done[part, pieces] = merged
        return self._candidates(last)

    def _in_turn(self, first: int, second: int, pieces: int) -> Table | None:
        a, b = self.done[first, pieces], self.done[second, pieces]
        if a is None or b is None or not len(a) or not len(b):
            return None
        part = first | second
        limits = self.deadlines
        if limits is not None:
            a = a.where(pieces * a.latency <= limits.in_turn(first, second, pieces, a.resources))
            b = b.where(pieces * b.latency <= limits.in_turn(second, first, pieces, b.resources))
            if not len(a) or not len(b):
                return None
        i, j = (x.ravel() for x in np.indices((len(a), len(b))))
        latency = a.latency[i] + b.latency[j]
        resources = np.maximum(a.resources[i], b.resources[j])
        if limits is not None:
            keep = pieces * latency <= limits.of(part, pieces, resources)
            i, j, latency, resources = i[keep], j[keep], latency[keep], resources[keep]
        running = np.maximum(a.running[i] + b.idle[j], b.running[j] + a.idle[i])
        together = a.resources[i][:, self.divided].any(axis=1) & b.resources[j][:, self.divided].any(axis=1)
        missing = a.missing[i] * b.missing[j]
        missing[together, 0] = 0
        origin = self._origin(("in turn", a, b), i, j)
        table = Table(resources, latency, latency, a.idle[i] + b.idle[j], running, missing, origin)
        # sums of memory only grow: what exceeds a device now fits into no schedule
        return self._kept(part, pieces, table.where((running <= 1.0).all(axis=1) & self.style.allows(missing)))

    def _body(self, part: int, cuts: list[tuple[int, int]], pieces: int, *, streaming: bool) -> Table | None:
        tables = [self._beside(a, b, pieces, streaming=streaming) for a, b in cuts]
        tables = [table for table in tables if table is not None and len(table)]
        return self._unbeaten(part, stack(tables)) if tables else None

    def _sides(self, part: int, pieces: int, *, streaming: bool, bodies: bool) -> Table | None:
        """Rows that may stand in a pipeline of this many pieces: a part handled piece by piece, a streaming stage, and
        what is itself divided among devices."""
        single = part.bit_count() == 1
        if streaming and single and self.problem.streams(part.bit_length() - 1):
            tables = [self._stream(part.bit_length() - 1, pieces)]
        else:
            tables = [self.done[part, pieces], self.leaves[part.bit_length() - 1, pieces] if single else None]
        if bodies and not single:
            tables.append(self.bodies.get((part, pieces, streaming), self.bodies.get((part, pieces, False))))
        tables = [table for table in tables if table is not None and len(table)]
        return stack(tables) if tables else None

    def _stream(self, unit: int, pieces: int) -> Table | None:
        whole = self.leaves[unit, 1]
        if whole is None or pieces > self.problem.max_pieces(unit):
            return None
        lag = costs.arrival_lag(self.problem.profile.stages[self.problem.units[unit].stages[0]].arrivals, pieces)
        switching = whole.latency - whole.period
        latency = (1 / pieces + lag) * whole.period + switching
        return dataclasses.replace(whole, latency=latency, period=whole.period / pieces)

    def _beside(self, first: int, second: int, pieces: int, *, streaming: bool) -> Table | None:
        part = first | second
        # latency is a sum over a chain of parts and the period a maximum, whatever the brackets: where every unit feeds
        # on the one before it, all bracketings of the same parts are equal, and one with a single first part is enough
        a = self._sides(first, pieces, streaming=streaming, bodies=not self._is_chain(part))
        b = self._sides(second, pieces, streaming=streaming, bodies=True)
        if a is None or b is None:
            return None
        joined, hand_on, weights = self.problem.crossing(first, second, pieces)
        limits = self.deadlines
        if limits is not None:
            least = a.latency + (pieces - 1) * a.period
            a = a.where(least <= limits.beside(first, second, pieces, a.resources))
            least = b.latency + (pieces - 1) * b.period
            b = b.where(least <= limits.beside(second, first, pieces, b.resources))
            if not len(a) or not len(b):
                return None
        i, j = (x.ravel() for x in np.indices((len(a), len(b))))
        resources = a.resources[i] + b.resources[j]
        latency = a.latency[i] + b.latency[j] + hand_on if joined else np.maximum(a.latency[i], b.latency[j])
        latency = latency + weights
        # the period of a pipeline of one piece is never looked at; one number less to compare
        period = latency if pieces == 1 else np.maximum(np.maximum(a.period[i], b.period[j]), hand_on)
        keep = (resources <= self.problem.capacity).all(axis=1)
        i, j, latency, period, resources = i[keep], j[keep], latency[keep], period[keep], resources[keep]
        if limits is not None:
            keep = latency + (pieces - 1) * period <= limits.of(part, pieces, resources)
            i, j, latency, period, resources = i[keep], j[keep], latency[keep], period[keep], resources[keep]
        both = a.resources[i][:, self.divided].any(axis=1) & b.resources[j][:, self.divided].any(axis=1)
        missing = a.missing[i] * b.missing[j]
        missing[both, 1] = 0
        table = Table(
            resources,
            latency,
            period,
            np.maximum(a.idle[i], b.idle[j]),
            np.maximum(a.running[i], b.running[j]),
            missing,
            self._origin(("beside", a, b), i, j),
        )
        return self._kept(part, pieces, table.where(self.style.allows(missing)))

    @functools.cache  # noqa: B019 - a search does not outlive its result
    def _is_chain(self, part: int) -> bool:
        """Whether each unit of a part directly feeds on the one before it, and their hand-overs cost the same however
        they are bracketed (only neighbours exchange data, and no weights pass inside)."""
        inside = list(bits(part))
        pairs = {(a, b) for a, b in self.problem.edges if part >> a & 1 and part >> b & 1}
        neighbours = set(itertools.pairwise(inside))
        return pairs == neighbours

    def _pipeline(self, part: int, pieces: int, smaller: int) -> Table | None:
        body = self.bodies.get((part, smaller, pieces == 1), self.bodies.get((part, smaller, False)))
        if body is None or not len(body):
            return None
        latency = body.latency + (smaller // pieces - 1) * body.period
        rows = np.arange(len(body))
        origin = self._origin(("pipeline", smaller // pieces, body), rows, rows)
        return self._promising(part, pieces, dataclasses.replace(body, latency=latency, period=latency, origin=origin))

    def _repeat(self, part: int, pieces: int, smaller: int) -> Table | None:
        single = part.bit_count() == 1
        table = self.leaves[part.bit_length() - 1, smaller] if single else self.done[part, smaller]
        if table is None or not len(table):
            return None
        latency = table.latency + (smaller // pieces - 1) * table.period
        rows = np.arange(len(table))
        origin = self._origin(("pipeline", smaller // pieces, table), rows, rows)
        return dataclasses.replace(table, latency=latency, period=latency, origin=origin)

    def _kept(self, part: int, pieces: int, table: Table) -> Table:
        if part == self.problem.full:
            return self._best(pieces, table)
        return self._unbeaten(part, table) if len(table) > MANY else table

    def _origin(self, step: tuple, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        self.steps.append(step)
        return np.stack([np.full(len(i), len(self.steps) - 1), i, j], axis=1)

    # -- back to schedules

    def _candidates(self, tables: list[Table]) -> list[Candidate]:
        found = []
        for table in tables:
            if self.style is Style.MIXED:
                table = table.where((table.missing == 0).all(axis=1))
            if len(table):
                row = int(np.argmin(table.latency))
                found.append(Candidate(self._schedule(table, row), float(table.latency[row])))
        return sorted(found, key=lambda candidate: candidate.seconds)

    def _schedule(self, table: Table, row: int) -> Schedule:
        step, i, j = (int(value) for value in table.origin[row])
        kind, *rest = self.steps[step]
        if kind == "work":
            unit, pieces = rest
            return self.problem.options(unit, pieces).work(self.problem.units[unit], i)
        if kind == "pipeline":
            return Pipeline(rest[0], self._schedule(rest[1], i))
        parts = self._schedule(rest[0], i), self._schedule(rest[1], j)
        return InTurn(*parts) if kind == "in turn" else Beside(*parts)
