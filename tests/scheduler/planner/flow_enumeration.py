"""Random small flows, and every schedule of one by plain enumeration: no tables, no dominance, no bounds.

Schedules are enumerated as the set of all different (devices, latency, period, idle, running) that parts can have, from
the rules written out again here; only a single work's cost comes from `bounds.estimate`.
"""

from __future__ import annotations

import itertools
import random

import numpy as np

from embodied.scheduler.planner import costs
from embodied.scheduler.planner.bounds import estimate
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import (
    Cluster,
    CycleProfile,
    EdgeProfile,
    FlowProfile,
    MemoryModel,
    NodeGroup,
    StageCost,
    StageProfile,
    SwitchModel,
    TimeModel,
    WeightsProfile,
)
from embodied.scheduler.planner.schedule import Pipeline, Placement, Work
from embodied.scheduler.planner.units import contiguous_partitions

GIB = 2.0**30


def random_profile(seed: int, units: int, devices: int, *, memory: bool, cycle: bool, groups: bool) -> FlowProfile:
    """A flow of `units` units on `devices` accelerators, drawn from `seed`."""
    draw = random.Random(seed)
    names = [f"s{i}" for i in range(units + cycle)]
    cpu_cores = draw.choice([0, 0, 2])

    def cost(kind: str, small: bool) -> StageCost:
        time = TimeModel(
            fixed=draw.choice([0.0, draw.uniform(0, 2)]),
            per_item=draw.uniform(0.05, 2) / (8 if small else 1),
            per_item_squared=draw.choice([0.0, 0.0, draw.uniform(0, 0.05)]),
            per_doubling=draw.choice([0.0, draw.uniform(0, 0.5)]),
        )
        room = MemoryModel()
        if memory and kind == "accelerator":
            room = MemoryModel(
                state_bytes=draw.uniform(0.1, 0.9) * 10 * GIB,
                state=draw.choice(["replicated", "sharded"]),
                working_bytes=draw.uniform(0, 0.2) * 10 * GIB,
                item_bytes=draw.choice([0.0, 0.3 * GIB]),
                live_items=draw.choice([None, 4]),
                item_state_bytes=draw.choice([0.0, 0.2 * GIB]),
            )
        switch = SwitchModel(fixed_seconds=draw.uniform(0, 1), bytes_per_second=draw.uniform(5, 40) * GIB)
        pinned = draw.choice([None, None, ("b",)]) if groups and devices > 1 else None
        return StageCost(
            time=time,
            memory=room,
            switch=draw.choice([switch, None]) if memory else None,
            devices_per_replica=draw.choice([1, 1, 1, 2]) if kind == "accelerator" else 1,
            max_replicas=draw.choice([None, None, 2]),
            groups=pinned,
        )

    stages = {}
    for index, name in enumerate(names):
        in_cycle = cycle and index < 2
        kind = "cpu" if cpu_cores and draw.random() < 0.3 else "accelerator"
        stages[name] = StageProfile(
            items=draw.choice([4, 6, 8]),
            on={kind: cost(kind, in_cycle)},
            max_pieces=draw.choice([1, 2, 4]),
            arrivals=(0.2, 0.3, 0.6, 1.0) if not in_cycle and draw.random() < (0.6 if index == 0 else 0.1) else (),
        )
    edges = [EdgeProfile(source="s0", target="s1"), EdgeProfile(source="s1", target="s0")] if cycle else []
    for b in range(1 + cycle, len(names)):
        for a in range(b):
            if draw.random() < (0.8 if a == b - 1 else 0.25):
                edges.append(
                    EdgeProfile(
                        source=names[a],
                        target=names[b],
                        latency_seconds=draw.choice([0.0, 0.1]),
                        seconds_per_item=draw.choice([0.0, draw.uniform(0, 0.1)]),
                    )
                )
    weights = (WeightsProfile(source=names[-1], target=names[0], seconds=draw.choice([0.0, 0.5])),)
    half = max(1, devices // 2)
    layout = {"a": devices - half, "b": half} if groups and devices > 1 else {"a": devices}
    return FlowProfile(
        flow="random",
        stages=stages,
        edges=tuple(edges),
        cycles=(
            CycleProfile(
                stages=("s0", "s1"),
                rounds=draw.choice([1, 3]),
                epochs=draw.choice([1, 2]),
                max_slots=2,
                slot_counts=draw.choice([(), (1, 4)]),
            ),
        )
        if cycle
        else (),
        weights=weights if len(names) > 1 else (),
        cluster=Cluster(
            groups={
                name: NodeGroup(
                    accelerators_per_node=count,
                    cores_per_node=cpu_cores if name == "a" else 0,
                    accelerator_memory_bytes=10 * GIB,
                    speed=1.0 if name == "a" else 1.5,
                )
                for name, count in layout.items()
            }
        ),
    )


class Enumeration:
    """All schedules of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.memo: dict = {}

    def best(self) -> float:
        """Seconds of the best schedule; infinite if there is none."""
        return min((row[1] for row in self.serial(self.problem.full, 1)), default=float("inf"))

    def works(self, unit: int, pieces: int) -> list[Work]:
        """Every placement of one unit that handles one of `pieces` pieces."""
        what, problem = self.problem.units[unit], self.problem
        found = []
        places = [
            [
                (k, g)
                for g in problem.groups
                for k in ("cpu", "accelerator")
                if problem.groups[g].units(k) and problem.allowed(s, k, g)
            ]
            for s in what.stages
        ]
        for where in itertools.product(*places):
            for blocks in contiguous_partitions(what.stages) if what.cycle else [((what.stages[0],),)]:
                at = dict(zip(what.stages, where, strict=True))
                if any(len({at[s] for s in block}) > 1 for block in blocks):
                    continue
                sizes = [range(1, problem.groups[at[b[0]][1]].units(at[b[0]][0]) + 1) for b in blocks]
                for counts in itertools.product(*sizes):
                    for slots in what.cycle.slots() if what.cycle else (1,):
                        number = {
                            s: n if len(block) == 1 else self.usable(s, at[s][0], n, slots, pieces, what.cycle)
                            for block, n in zip(blocks, counts, strict=True)
                            for s in block
                        }
                        if any(
                            max(number[s] for s in block) < n or min(number[s] for s in block) == 0
                            for block, n in zip(blocks, counts, strict=True)
                        ):
                            continue
                        for resident in itertools.product((True, False), repeat=len(what.stages)):
                            placed = tuple(
                                Placement(s, *at[s], number[s], r) for s, r in zip(what.stages, resident, strict=True)
                            )
                            if self.possible(placed, unit):
                                found.append(Work(placed, blocks if what.cycle else (), slots))
        return found

    def usable(self, stage: str, kind: str, devices: int, slots: int, pieces: int, cycle: CycleProfile) -> int:
        """How many of a shared block's devices a stage of a cycle can use."""
        profile = self.problem.profile.stages[stage]
        cost = profile.on[kind]
        items = costs.piece_items(profile.items, slots * max(1, -(-pieces // cycle.epochs)))
        replicas = min(devices // cost.devices_per_replica, cost.max_replicas or devices, items)
        return replicas * cost.devices_per_replica

    def possible(self, placed: tuple[Placement, ...], unit: int) -> bool:
        """Multiples of a replica, no more replicas than allowed, and state that can be unloaded where it is."""
        for p in placed:
            cost = self.problem.profile.stages[p.stage].on[p.kind]
            if p.devices % cost.devices_per_replica:
                return False
            if cost.max_replicas and p.devices // cost.devices_per_replica > cost.max_replicas:
                return False
            if not p.resident and (cost.switch is None or cost.memory.state_bytes + cost.memory.item_state_bytes == 0):
                return False
        return True

    def row(self, work: Work, pieces: int, streams: int | None = None) -> tuple | None:
        """A work's values on one of `pieces` pieces, or None when it does not fit."""
        unit = next(i for i, u in enumerate(self.problem.units) if u.stages == work.stages)
        if pieces > self.problem.max_pieces(unit):
            return None
        cycle = self.problem.units[unit].cycle
        for p in work.placements:
            profile = self.problem.profile.stages[p.stage]
            parts = work.slots * (max(1, -(-pieces // cycle.epochs)) if cycle else 1 if streams else pieces)
            if p.devices // profile.on[p.kind].devices_per_replica > costs.piece_items(profile.items, parts):
                return None  # a replica without an item
        # one piece's seconds: what a second pass of the same pieces adds
        found = estimate(self.problem, Pipeline(pieces, work) if pieces > 1 else work)
        switching = sum(self.switching(p, 1 if streams else pieces, cycle) for p in work.placements if not p.resident)
        seconds = (found.latency - switching) / (1 if streams else pieces)
        resources = tuple(found.resources.get(c, 0) for c in self.problem.columns)
        idle = tuple(found.idle[g] for g in self.problem.memory_groups)
        running = tuple(found.running[g] for g in self.problem.memory_groups)
        if max(running, default=0) > 1 or any(r > c for r, c in zip(resources, self.problem.capacity, strict=True)):
            return None
        if streams:
            arrivals = self.problem.profile.stages[work.stages[0]].arrivals
            lag = costs.arrival_lag(arrivals, streams)
            return resources, (1 / streams + lag) * seconds + switching, seconds / streams, idle, running
        return resources, seconds + switching, seconds, idle, running

    def switching(self, placement: Placement, pieces: int, cycle: CycleProfile | None) -> float:
        """Seconds to unload and load a stage's state."""
        profile = self.problem.profile.stages[placement.stage]
        loaded = costs.piece_items(profile.items, max(1, -(-pieces // cycle.epochs)) if cycle else pieces)
        return float(costs.switch_seconds(profile.on[placement.kind], np.array([placement.devices]), loaded)[0])

    def rows(self, unit: int, pieces: int) -> set:
        """A unit that has devices of its own, on one of `pieces` pieces."""
        return {self.row(w, pieces) for w in self.works(unit, pieces)} - {None}

    def serial(self, part: int, pieces: int) -> set:
        """All ways in which `part` handles a piece before it takes the next."""
        key = ("serial", part, pieces)
        if key in self.memo:
            return self.memo[key]
        found = set()
        if part.bit_count() == 1:
            found |= {(r[0], r[1], r[1], r[3], r[4]) for r in self.rows(part.bit_length() - 1, pieces)}
        for a, b in self.problem.cuts(part):
            for x, y in itertools.product(self.serial(a, pieces), self.serial(b, pieces)):
                running = tuple(max(p + q, r + s) for p, q, r, s in zip(x[4], y[3], y[4], x[3], strict=True))
                if max(running, default=0) <= 1:
                    idle = tuple(p + q for p, q in zip(x[3], y[3], strict=True))
                    time = x[1] + y[1]
                    found.add((tuple(map(max, x[0], y[0])), time, time, idle, running))
        for smaller in self.problem.pieces:
            if smaller % pieces == 0:
                times = smaller // pieces
                rows = self.apart(part, smaller, pieces == 1)
                if smaller > pieces and part.bit_count() == 1:
                    rows = rows | self.rows(part.bit_length() - 1, smaller)
                if smaller > pieces:
                    rows = rows | self.serial(part, smaller)
                for r, latency, period, idle, running in rows:
                    total = latency + (times - 1) * period
                    found.add((r, total, total, idle, running))
        self.memo[key] = found
        return found

    def sides(self, part: int, pieces: int, streaming: bool) -> set:
        """Whatever may be one side of parts beside each other."""
        unit = part.bit_length() - 1
        if streaming and part.bit_count() == 1 and self.problem.streams(unit):
            if pieces > self.problem.max_pieces(unit):
                return set()
            return {self.row(w, 1, streams=pieces) for w in self.works(unit, 1)} - {None}
        own = self.rows(unit, pieces) if part.bit_count() == 1 else set()
        return own | self.serial(part, pieces) | self.apart(part, pieces, streaming)

    def apart(self, part: int, pieces: int, streaming: bool) -> set:
        """All ways in which two parts on different devices handle `pieces` pieces."""
        key = ("apart", part, pieces, streaming)
        if key in self.memo:
            return self.memo[key]
        found = set()
        for a, b in self.problem.cuts(part):
            joined, hand_on, weights = self.problem.crossing(a, b, pieces)
            for x, y in itertools.product(self.sides(a, pieces, streaming), self.sides(b, pieces, streaming)):
                resources = tuple(p + q for p, q in zip(x[0], y[0], strict=True))
                if any(r > c for r, c in zip(resources, self.problem.capacity, strict=True)):
                    continue
                latency = (x[1] + y[1] + hand_on if joined else max(x[1], y[1])) + weights
                found.add(
                    (
                        resources,
                        latency,
                        max(x[2], y[2], hand_on),
                        tuple(map(max, x[3], y[3])),
                        tuple(map(max, x[4], y[4])),
                    )
                )
        self.memo[key] = found
        return found
