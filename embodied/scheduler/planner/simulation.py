"""A discrete-event simulation of one iteration of a schedule: who occupies which devices from when to when.

It knows what the closed formula rounds away: parts that start as soon as their input and devices are there, channels
that hold a few pieces and then hold up their producer, streams whose long tail arrives late, episodes that end early,
loads that are needed only where another stage had the device. With the modelled times it is never above the formula;
with a random source every call deviates by its model's stated error.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Iterator

import numpy as np

from embodied.scheduler.planner import bounds, costs
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import CycleProfile
from embodied.scheduler.planner.schedule import Beside, Pipeline, Schedule, Work

CHANNEL_PIECES = 2  # pieces that wait between two stages of a pipeline before the producer is held up


@dataclasses.dataclass(frozen=True)
class Span:
    """A stage at work on devices first ... first + count - 1 of a resource. what: run, load, unload, or held up."""

    stage: str
    group: str
    kind: str
    first: int
    count: int
    begin: float
    end: float
    what: str


@dataclasses.dataclass(frozen=True)
class Execution:
    """A simulated iteration. capacity: devices by (group, kind)."""

    seconds: float
    spans: list[Span]
    capacity: dict[tuple[str, str], int]

    def busy(self, stage: str) -> float:
        """Device-seconds that a stage runs."""
        return sum((s.end - s.begin) * s.count for s in self.spans if s.stage == stage and s.what == "run")

    def idle_share(self, stage: str, devices: int) -> float:
        """Share of the iteration in which `devices` devices of a stage do not run it."""
        return 1.0 - self.busy(stage) / (devices * self.seconds) if self.seconds else 0.0


@dataclasses.dataclass
class _Task:
    """One piece of one work. places: (column, first, count) of each of its blocks. streams: pieces it hands on one by
    one while it runs as a whole; 0 otherwise."""

    leaf: int
    work: Work
    piece: int
    pieces: int
    streams: int
    places: list[tuple[int, int, int]]
    load: float = 0.0
    unload: float = 0.0
    begin: float = 0.0
    end: float = 0.0


def simulate(problem: Problem, schedule: Schedule, source: random.Random | None = None) -> Execution:
    """Simulate one iteration. source: draws deviations; None takes the modelled times exactly."""
    return _Simulation(problem, schedule, source).run()


def simulated_seconds(problem: Problem, schedule: Schedule, draws: int, seed: int) -> float:
    """Mean seconds of an iteration over simulations with random deviations."""
    source = random.Random(seed)
    return sum(simulate(problem, schedule, source).seconds for _ in range(draws)) / draws


class _Simulation:
    def __init__(self, problem: Problem, schedule: Schedule, source: random.Random | None) -> None:
        self.problem, self.schedule, self.source = problem, schedule, source
        self.columns = [int(c) for c in problem.capacity]
        self.leaves: list[Work] = []
        self.places: list[list[tuple[int, int, int]]] = []
        self.ways: list[list[tuple[int, bool]]] = []  # to each leaf: (node, whether its sides are apart)
        self.leaf_of: dict[int, int] = {}
        self._place(schedule, [0] * len(self.columns), [])
        unit = {self.unit(work): leaf for leaf, work in enumerate(self.leaves)}
        self.producers = {unit[b]: [unit[a] for a, c in problem.edges if c == b] for b in unit}
        self.consumers = {unit[a]: [unit[b] for c, b in problem.edges if c == a] for a in unit}
        self.done: dict[int, list[float]] = {leaf: [] for leaf in unit.values()}  # when each piece is handed on
        self.started: dict[int, list[float]] = {leaf: [] for leaf in unit.values()}
        self.pieces: dict[int, int] = {}
        self.spans: list[Span] = []

    def unit(self, work: Work) -> int:
        """Index of a work's unit."""
        return bounds.units_of(self.problem, work).bit_length() - 1

    # -- places

    def _place(self, node: Schedule, at: list[int], way: list[tuple[int, bool]]) -> list[int]:
        """Give devices from `at` on; returns how many of each resource the node takes."""
        if isinstance(node, Work):
            taken, places = [0] * len(at), []
            number = {p.stage: p for p in node.placements}
            for block in node.blocks or (node.stages,):
                p = number[block[0]]
                column = self.problem.column(p.group, p.kind)
                count = max(number[stage].devices for stage in block)
                places.append((column, at[column] + taken[column], count))
                taken[column] += count
            self.leaf_of[id(node)] = len(self.leaves)
            self.leaves.append(node)
            self.places.append(places)
            self.ways.append(way)
            return taken
        if isinstance(node, Pipeline):
            return self._place(node.body, at, way)
        apart = isinstance(node, Beside)
        way = [*way, (id(node), apart)]
        first = self._place(node.first, at, way)
        second = self._place(node.second, [a + f for a, f in zip(at, first, strict=True)] if apart else at, way)
        return [a + b if apart else max(a, b) for a, b in zip(first, second, strict=True)]

    def _apart(self, a: int, b: int) -> bool:
        """Whether two leaves are on different sides of a `Beside`."""
        common = [x for x, y in zip(self.ways[a], self.ways[b], strict=False) if x == y]
        return common[-1][1]

    # -- the order in which every device serves its tasks

    def _tasks(self, node: Schedule, piece: int, pieces: int, own: bool, streams: int) -> Iterator[_Task]:
        if isinstance(node, Work):
            leaf = self.leaf_of[id(node)]
            if own and streams and self.problem.streams(self.unit(node)):
                if piece == 0:
                    yield _Task(leaf, node, 0, 1, streams, self.places[leaf])
            else:
                yield _Task(leaf, node, piece, pieces, 0, self.places[leaf])
        elif isinstance(node, Pipeline):
            whole = node.pieces if pieces == 1 and isinstance(node.body, Beside) else 0
            for inner in range(node.pieces):
                yield from self._tasks(node.body, piece * node.pieces + inner, pieces * node.pieces, True, whole)
        else:
            own = own and isinstance(node, Beside)
            yield from self._tasks(node.first, piece, pieces, own, streams)
            yield from self._tasks(node.second, piece, pieces, own, streams)

    def _switching(self, tasks: list[_Task]) -> None:
        """Charge loads and unloads where another work has the device before or after; iterations follow each other."""
        half = {}
        for task in tasks:
            cycle = self.problem.units[self.unit(task.work)].cycle
            parts = self.problem.cycle_share(cycle, task.pieces)[1] if cycle else task.pieces
            half[task.leaf] = bounds.switching_seconds(self.problem, task.work, parts) / 2
        for order, name in ((tasks, "load"), (tasks[::-1], "unload")):
            last = [np.full(n, -1) for n in self.columns]
            for task in order:  # a first pass finds who comes last: the neighbour of the first task
                for column, first, count in task.places:
                    last[column][first : first + count] = task.leaf
            for task in order:
                stays = all((last[c][f : f + n] == task.leaf).all() for c, f, n in task.places)
                setattr(task, name, 0.0 if stays else half[task.leaf])
                for column, first, count in task.places:
                    last[column][first : first + count] = task.leaf

    # -- running

    def run(self) -> Execution:
        """Let every task start when its devices and its input are there."""
        tasks = list(self._tasks(self.schedule, 0, 1, False, 0))
        self._switching(tasks)
        self.pieces = {task.leaf: task.streams or task.pieces for task in tasks}
        free = [np.zeros(n) for n in self.columns]
        finish = 0.0
        for task in tasks:
            begin = max(float(free[c][f : f + n].max()) for c, f, n in task.places)
            loaded = begin + task.load  # the state is loaded while the input may still be under way
            task.begin = max(loaded, self._input_ready(task))
            self.started[task.leaf].append(task.begin)
            task.end = self._work(task)
            released = self._hand_on(task)
            self._span(task, begin, loaded, "load")
            self._span(task, task.end, released, "held up")
            self._span(task, released, released + task.unload, "unload")
            for column, first, count in task.places:
                free[column][first : first + count] = released + task.unload
            finish = max(finish, released + task.unload)
        capacity = dict(zip(self.problem.columns, self.columns, strict=True))
        return Execution(finish + self._weights(), self.spans, capacity)

    def _input_ready(self, task: _Task) -> float:
        ready = 0.0
        share = (task.piece + 1) / task.pieces
        for producer in self.producers[task.leaf]:
            pieces = self.pieces[producer]
            needed = math.ceil(share * pieces - 1e-9) - 1
            at = self.done[producer][needed]
            if self._apart(producer, task.leaf):
                a, b = (1 << self.unit(self.leaves[leaf]) for leaf in (producer, task.leaf))
                at += self.problem.crossing(a, b, max(pieces, task.pieces))[1]
            ready = max(ready, at)
        return ready

    def _hand_on(self, task: _Task) -> float:
        """Note when pieces are handed on; returns when the devices are free of the task."""
        if task.streams:
            arrivals = self.problem.profile.stages[task.work.stages[0]].arrivals
            run = task.end - task.begin
            self.done[task.leaf] += [
                task.begin + run * costs.arrival(arrivals, (j + 1) / task.streams) for j in range(task.streams)
            ]
            return task.end
        released = task.end
        for consumer in self.consumers[task.leaf]:
            # the channel between two parts beside each other is full until the consumer has taken an earlier piece
            behind = task.piece - CHANNEL_PIECES
            if behind >= 0 and self.pieces[consumer] == task.pieces and self._apart(task.leaf, consumer):
                released = max(released, self.started[consumer][behind])
        self.done[task.leaf].append(released)
        return released

    def _weights(self) -> float:
        leaf = {stage: index for index, work in enumerate(self.leaves) for stage in work.stages}
        return sum(
            w.seconds
            for w in self.problem.profile.weights
            if leaf[w.source] != leaf[w.target] and self._apart(leaf[w.source], leaf[w.target])
        )

    def _deviation(self, stage: str, kind: str) -> float:
        if self.source is None:
            return 1.0
        error = self.problem.profile.stages[stage].on[kind].time.error
        return math.exp(self.source.gauss(-error * error / 2, error))

    def _work(self, task: _Task) -> float:
        """Run a task from its begin; returns its end."""
        unit = self.problem.units[self.unit(task.work)]
        if unit.cycle:
            return self._cycle(task, unit.cycle)
        (placement,) = task.work.placements
        seconds = bounds.stage_seconds(self.problem, task.work, task.pieces)[placement.stage]
        end = task.begin + seconds * self._deviation(placement.stage, placement.kind)
        self._span(task, task.begin, end, "run")
        return end

    def _cycle(self, task: _Task, cycle: CycleProfile) -> float:
        """Slots go round the stages; every block of devices serves whoever came first."""
        work = task.work
        rounds, parts = self.problem.cycle_share(cycle, task.pieces)
        order = work.stages
        block_of = {stage: index for index, block in enumerate(work.blocks) for stage in block}
        kind = {p.stage: p.kind for p in work.placements}
        count = {p.stage: p.devices for p in work.placements}
        hop = [
            self._hop(a, b, parts * work.slots, block_of) for a, b in zip(order, (*order[1:], order[0]), strict=True)
        ]
        seconds = bounds.stage_seconds(self.problem, work, parts * work.slots)
        free = [task.begin] * len(work.blocks)
        # (when it is ready, round, slot, index of the stage): the earliest first
        waiting = [(task.begin, 0, slot, 0) for slot in range(work.slots)]
        end = task.begin
        while waiting:
            ready, turn, slot, index = heapq.heappop(waiting)
            block = block_of[order[index]]
            begin = max(ready, free[block])
            if waiting and begin > ready and (begin, turn, slot, index) > waiting[0]:
                # not its time yet: others may be served elsewhere in between
                heapq.heappush(waiting, (begin, turn, slot, index))
                continue
            # a block passes a sub-batch through all its stages before it takes the next one
            while block_of[order[index]] == block and turn < rounds:
                stage = order[index]
                alive = self._alive(cycle, turn % cycle.rounds)
                took = seconds[stage] if alive == 1.0 else self._shorter(work, stage, parts * work.slots, alive)
                free[block] = begin + took * self._deviation(stage, kind[stage])
                self._block_span(task, block, stage, begin, free[block], count=count[stage])
                begin, left = free[block], index
                turn, index = (turn, index + 1) if index + 1 < len(order) else (turn + 1, 0)
                if len(work.blocks) == 1:
                    break  # one block for all: slots take turns round by round
            end = max(end, free[block])
            if turn < rounds:
                heapq.heappush(waiting, (free[block] + hop[left], turn, slot, index))
        return end

    def _hop(self, source: str, target: str, parts: int, block_of: dict[str, int]) -> float:
        if block_of[source] == block_of[target]:
            return 0.0
        edges = self.problem.profile.edges
        return sum(self.problem.transfer(e, parts) for e in edges if (e.source, e.target) == (source, target))

    def _alive(self, cycle: CycleProfile, turn: int) -> float:
        """Share of the items whose episode is not over at this round."""
        if not cycle.lengths:
            return 1.0
        return sum(length * cycle.rounds > turn for length in cycle.lengths) / len(cycle.lengths)

    def _shorter(self, work: Work, stage: str, parts: int, alive: float) -> float:
        placement = next(p for p in work.placements if p.stage == stage)
        profile = self.problem.profile.stages[stage]
        items = max(1, math.ceil(alive * costs.piece_items(profile.items, parts)))
        cost, group = profile.on[placement.kind], self.problem.groups[placement.group]
        # fewer items than replicas leave replicas idle
        devices = min(placement.devices, items * cost.devices_per_replica)
        return float(costs.seconds(cost, group, items, np.array([devices]))[0])

    def _span(self, task: _Task, begin: float, end: float, what: str) -> None:
        if end > begin:
            for index, block in enumerate(task.work.blocks or (task.work.stages,)):
                self._block_span(task, index, block[0], begin, end, what)

    def _block_span(
        self,
        task: _Task,
        block: int,
        stage: str,
        begin: float,
        end: float,
        what: str = "run",
        count: int | None = None,
    ) -> None:
        """Note a span on the first `count` devices of a block, or on all."""
        column, first, all_of_them = task.places[block]
        self.spans.append(Span(stage, *self.problem.columns[column], first, count or all_of_them, begin, end, what))
