"""A profile made ready for planning: cycles condensed to units, units in topological order, and for every unit all the
ways it can be placed, as arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np

from embodied.errors import ConfigurationError
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.advice import check_host_memory, memory_advice
from embodied.scheduler.planner.profile import Cluster, CycleProfile, EdgeProfile, FlowProfile, Kind
from embodied.scheduler.planner.units import Options, Unit, bits, contiguous_partitions

PIECES = (1, 2, 4, 8, 16, 32, 64, 128)


class Problem:
    """A flow profile on its cluster."""

    def __init__(self, profile: FlowProfile, pieces: tuple[int, ...] = PIECES, *, checked: bool = True) -> None:
        """checked: raise ConfigurationError for what can never work."""
        self.profile = profile
        self.groups = profile.cluster.groups
        self.columns: list[tuple[str, Kind]] = [
            (name, kind)
            for name, group in self.groups.items()
            for kind in ("accelerator", "cpu")
            if group.units(kind) and any(self.allowed(s, kind, name) for s in profile.stages)
        ]
        self.capacity = np.array([self.groups[g].units(k) for g, k in self.columns], float)
        self.memory_groups = [g for g, k in self.columns if k == "accelerator"]
        # what styles speak of: whether stages share it or each have their own
        self.divided: Kind = "accelerator" if self.memory_groups else "cpu"
        self.units = self._condense()
        self.edges = self._unit_edges()
        self.full = (1 << len(self.units)) - 1
        self.before = [sum(1 << a for a, b in self.edges if b == u) for u in range(len(self.units))]
        most = max(self.max_pieces(u) for u in range(len(self.units)))
        self.pieces = tuple(p for p in sorted(pieces) if p <= most)
        if checked:
            self._check_places()
            check_host_memory(self)

    def allowed(self, stage: str, kind: Kind, group: str) -> bool:
        """Whether a stage may run on this kind of resource of this group."""
        cost = self.profile.stages[stage].on.get(kind)
        return cost is not None and (cost.groups is None or group in cost.groups)

    def max_pieces(self, unit: int) -> int:
        """In how many pieces a unit can handle an iteration."""
        return min(self.profile.stages[s].max_pieces for s in self.units[unit].stages)

    def column(self, group: str, kind: Kind) -> int:
        """Index of a resource."""
        return self.columns.index((group, kind))

    def streams(self, unit: int) -> bool:
        """Whether a unit works on all items at once and hands on each as it finishes. One that others feed cannot: in a
        pipeline it would have to wait for all of its input."""
        return bool(self.profile.stages[self.units[unit].stages[0]].arrivals) and not self.before[unit]

    # -- the graph of units

    def _condense(self) -> list[Unit]:
        cycles = {name: cycle for cycle in self.profile.cycles for name in cycle.stages}
        found: dict[tuple[str, ...], Unit] = {}
        for name in self.profile.stages:
            cycle = cycles.get(name)
            names = cycle.stages if cycle else (name,)
            found.setdefault(names, Unit(names, cycle))
        units = list(found.values())
        home = {name: unit for unit in units for name in unit.stages}
        waiting = {u: {home[e.source] for e in self.profile.edges if home[e.target] is u} - {u} for u in units}
        order: list[Unit] = []
        while waiting:
            ready = next((u for u, needed in waiting.items() if needed <= set(order)), None)
            if ready is None:
                names = ", ".join(u.name for u in waiting)
                raise ConfigurationError(
                    f"the edges of {self.profile.flow!r} form a cycle through {names}, but no entry of `cycles` joins "
                    "these stages; add one with its rounds"
                )
            order.append(ready)
            del waiting[ready]
        return order

    def _unit_edges(self) -> set[tuple[int, int]]:
        home = {name: index for index, unit in enumerate(self.units) for name in unit.stages}
        pairs = {(home[e.source], home[e.target]) for e in self.profile.edges}
        return {(a, b) for a, b in pairs if a != b}

    @functools.cached_property
    def _home(self) -> dict[str, int]:
        return {name: index for index, unit in enumerate(self.units) for name in unit.stages}

    @functools.cache  # noqa: B019 - a problem lives as long as its search
    def cuts(self, units: int) -> list[tuple[int, int]]:
        """All ways to divide a set of units (a bit mask) into a first part that nothing of the second part feeds, and
        the second: the down-sets of the sub-graph, without the empty and the whole one."""
        found = []
        part = (units - 1) & units
        while part:
            if all(self.before[u] & units & ~part == 0 for u in bits(part)):
                found.append((part, units & ~part))
            part = (part - 1) & units
        return found

    @functools.cached_property
    def parts(self) -> list[int]:
        """All sets of units that cuts of cuts lead to, smaller ones first (the convex sets of the graph)."""
        found = {self.full}
        queue = [self.full]
        while queue:
            for pair in self.cuts(queue.pop()):
                for part in pair:
                    if part not in found:
                        found.add(part)
                        queue.append(part)
        return sorted(found, key=lambda part: (part.bit_count(), part))

    @functools.cache  # noqa: B019 - a problem lives as long as its search
    def crossing(self, first: int, second: int, pieces: int) -> tuple[bool, float, float]:
        """What parting two sets of units onto different devices means for one of `pieces` pieces: whether data passes
        from the first to the second, seconds to hand a piece on, seconds to carry weights over (charged once a piece,
        so that the sum stays a bound where a piece's pipeline runs many times)."""
        hand_on = 0.0
        joined = False
        for edge in self.profile.edges:
            if first >> self._home[edge.source] & 1 and second >> self._home[edge.target] & 1:
                joined = True
                hand_on += self.transfer(edge, pieces)
        weights = sum(
            w.seconds
            for w in self.profile.weights
            if (first >> self._home[w.source] & 1 and second >> self._home[w.target] & 1)
            or (second >> self._home[w.source] & 1 and first >> self._home[w.target] & 1)
        )
        return joined, hand_on, weights

    def transfer(self, edge: EdgeProfile, pieces: int) -> float:
        """Seconds to hand on one of `pieces` pieces over an edge."""
        items = costs.piece_items(self.profile.stages[edge.source].items, pieces)
        return edge.latency_seconds + edge.seconds_per_item * items

    # -- ways to run a unit

    def cycle_share(self, cycle: CycleProfile, pieces: int) -> tuple[int, int]:
        """(rounds, parts): how many rounds one of `pieces` pieces takes, and in how many parts its items are divided.
        Whole epochs are handed on first; only more pieces than epochs divide the items."""
        return -(-cycle.epochs // pieces) * cycle.rounds, max(1, -(-pieces // cycle.epochs))

    def bounding_rounds(self, unit: Unit, blocks: tuple[tuple[str, ...], ...], rounds: int) -> int:
        """Rounds to count in the formula: one more when a block holds the last and the first stages, for it then enters
        the first round in its middle and leaves the last one there."""
        ends = {unit.stages[0], unit.stages[-1]}
        return rounds + (len(blocks) > 1 and any(ends <= set(block) for block in blocks))

    def cycle_seconds(self, rounds: int, slots: int, blocks: list[float], hops: float) -> float:
        """Time of `rounds` rounds of `slots` sub-batches. blocks: seconds that each group of devices works for one
        sub-batch in a round. hops: seconds that hand-overs add to it.

        A sub-batch returns to its first stage after sum(blocks) + hops at the earliest, and the busiest block serves
        every slot once a round; so rounds follow each other at the larger of the two, and the last one ends when the
        last slot has passed."""
        slowest = max(blocks)
        turn = sum(blocks) + hops
        return (rounds - 1) * max(slots * slowest, turn) + turn + (slots - 1) * slowest

    @functools.cache  # noqa: B019 - a problem lives as long as its search
    def options(self, unit: int, pieces: int) -> Options | None:
        """All ways to run one of `pieces` pieces of a unit; None when it cannot be divided so far or nothing fits."""
        if pieces > self.max_pieces(unit):
            return None
        what = self.units[unit]
        built = list(self._cycle_rows(what, pieces) if what.cycle else self._stage_rows(what, pieces))
        built = [rows for rows in built if len(rows[1])]
        if not built:
            return None
        starts = np.cumsum([0, *(len(rows[1]) for rows in built)])
        joined = [np.concatenate([rows[i] for rows in built]) for i in range(7)]
        return Options(*joined, [(rows[7], int(s)) for rows, s in zip(built, starts, strict=False)])

    def places(self, stage: str) -> list[tuple[Kind, str]]:
        """The resources a stage may run on."""
        return [(kind, group) for group, kind in self.columns if self.allowed(stage, kind, group)]

    def _stage_rows(self, unit: Unit, pieces: int) -> Iterator[tuple]:
        stage = unit.stages[0]
        profile = self.profile.stages[stage]
        items = costs.piece_items(profile.items, pieces)
        for kind, group in self.places(stage):
            cost, where = profile.on[kind], self.groups[group]
            counts = costs.device_counts(cost, where, kind, items)
            counts = counts[costs.useful(cost, items, items, counts)]
            time = costs.seconds(cost, where, items, counts)
            idle, running = costs.memory_fractions(cost, where, kind, items, items, counts)
            switch = costs.switch_seconds(cost, counts, items)
            fits = running <= 1.0
            for resident in (True, False):
                if not resident and switch is None:
                    continue
                extra = np.zeros_like(time) if resident else switch
                kept = idle if resident else np.zeros_like(idle)
                chosen = [(kind, group, counts[fits], {stage: counts[fits]})]
                yield self._rows(unit, chosen, time[fits], extra[fits], kept[fits], running[fits], (resident,), (), 1)

    def _cycle_rows(self, unit: Unit, pieces: int) -> Iterator[tuple]:
        cycle = unit.cycle
        share, parts = self.cycle_share(cycle, pieces)
        for places in itertools.product(*(self.places(s) for s in unit.stages)):
            for blocks in contiguous_partitions(unit.stages):
                rounds = self.bounding_rounds(unit, blocks, share)
                where = [{places[unit.stages.index(s)] for s in block} for block in blocks]
                if any(len(w) > 1 for w in where):
                    continue  # stages that share devices are on one resource
                for slots in cycle.slots():
                    if len(blocks) == 1 and slots > 1 and not self._slots_can_help(unit, places):
                        # one block does all the work in turn: when time is affine in the busiest share, k calls for
                        # ceil(m / k) items never take less than one for m, as k ceil(ceil(m / k) / r) >= ceil(m / r)
                        continue
                    yield from self._cycle_block_rows(unit, cycle, places, blocks, slots, rounds, parts)

    def _slots_can_help(self, unit: Unit, places: tuple[tuple[Kind, str], ...]) -> bool:
        """Whether smaller sub-batches could save memory, or time by a quadratic term."""
        on = [(kind, self.profile.stages[s].on[kind]) for s, (kind, _) in zip(unit.stages, places, strict=True)]
        return any(c.time.per_item_squared > 0 or (k == "accelerator" and c.memory.item_bytes > 0) for k, c in on)

    def _cycle_block_rows(
        self,
        unit: Unit,
        cycle: CycleProfile,
        places: tuple[tuple[Kind, str], ...],
        blocks: tuple[tuple[str, ...], ...],
        slots: int,
        rounds: int,
        parts: int,
    ) -> Iterator[tuple]:
        per_block, taken = [], {}
        for block in blocks:
            kind, group = places[unit.stages.index(block[0])]
            where = self.groups[group]
            possible = {}
            for stage in block:
                profile = self.profile.stages[stage]
                items = costs.piece_items(profile.items, parts * slots)
                here = costs.device_counts(profile.on[kind], where, kind, items)
                if len(block) == 1:
                    loaded = costs.piece_items(profile.items, parts)
                    here = here[costs.useful(profile.on[kind], items, loaded, here)]
                if not len(here):
                    return
                possible[stage] = here
            counts = np.unique(np.concatenate(list(possible.values())))
            counts = counts[counts >= max(here[0] for here in possible.values())]
            # of devices that stages share, each takes as many as it can use; more devices than any can use are no row
            for stage, here in possible.items():
                taken[stage] = here[np.searchsorted(here, counts, side="right") - 1]
            per_block.append((kind, group, counts))
        grids = np.meshgrid(*(np.arange(len(b[2])) for b in per_block), indexing="ij")
        index = [grid.ravel() for grid in grids]
        if not len(index[0]):
            return
        needed = np.zeros((len(index[0]), len(self.columns)))
        for (kind, group, counts), i in zip(per_block, index, strict=True):
            needed[:, self.column(group, kind)] += counts[i]
        inside = (needed <= self.capacity).all(axis=1)  # blocks of one resource have disjoint devices
        index = [i[inside] for i in index]
        block_seconds, stage_costs = [], {}
        for block, (kind, group, counts) in zip(blocks, per_block, strict=True):
            where, total = self.groups[group], np.zeros(len(counts))
            for stage in block:
                profile = self.profile.stages[stage]
                items = costs.piece_items(profile.items, parts * slots)
                total = total + costs.seconds(profile.on[kind], where, items, taken[stage])
                loaded = costs.piece_items(profile.items, parts)
                idle, running = costs.memory_fractions(profile.on[kind], where, kind, items, loaded, taken[stage])
                stage_costs[stage] = (idle, running, costs.switch_seconds(profile.on[kind], taken[stage], loaded))
            block_seconds.append(total)
        hops = self.cycle_hops(unit, blocks, parts * slots)
        rows = len(index[0])
        per_row = np.stack([t[i] for t, i in zip(block_seconds, index, strict=True)])
        slowest, turn = per_row.max(axis=0), per_row.sum(axis=0) + hops
        base = (rounds - 1) * np.maximum(slots * slowest, turn) + turn + (slots - 1) * slowest
        alone = {block[0] for block in blocks if len(block) == 1}
        can = [stage_costs[s][2] is not None and (s in alone or cycle.unloads == "all") for s in unit.stages]
        for resident in itertools.product(*([(True, False) if c else (True,) for c in can])):
            switching = np.zeros(rows)
            kept, most = np.zeros((rows, len(blocks))), np.zeros((rows, len(blocks)))
            for b, (block, i) in enumerate(zip(blocks, index, strict=True)):
                extra = np.zeros(rows)
                for stage in block:
                    idle, running, switch = stage_costs[stage]
                    if resident[unit.stages.index(stage)]:
                        kept[:, b] += idle[i]
                    else:
                        switching += switch[i]
                    most[:, b] += idle[i]  # while the cycle runs, all its stages are loaded
                    extra = np.maximum(extra, (running - idle)[i])
                most[:, b] += extra
            fits = (most <= 1.0).all(axis=1)
            chosen = [
                (kind, group, counts[i][fits], {stage: taken[stage][i][fits] for stage in block})
                for block, (kind, group, counts), i in zip(blocks, per_block, index, strict=True)
            ]
            yield self._rows(unit, chosen, base[fits], switching[fits], kept[fits], most[fits], resident, blocks, slots)

    def cycle_hops(self, unit: Unit, blocks: tuple[tuple[str, ...], ...], parts: int) -> float:
        """Seconds of hand-overs between the blocks of a cycle in one round of one of `parts` sub-batches."""
        block_of = {stage: index for index, block in enumerate(blocks) for stage in block}
        return sum(
            self.transfer(edge, parts)
            for edge in self.profile.edges
            if edge.source in block_of and edge.target in block_of and block_of[edge.source] != block_of[edge.target]
        )

    def _rows(self, unit, blocks, time, switching, kept, most, resident, shared, slots) -> tuple:
        """Arrays of `Options` for one choice. blocks: (kind, group, counts [rows], counts of each stage) each; kept,
        most: [rows, blocks]."""
        rows = len(time)
        kept, most = kept.reshape(rows, len(blocks)), most.reshape(rows, len(blocks))
        resources = np.zeros((rows, len(self.columns)))
        idle, running = (np.zeros((rows, len(self.memory_groups))) for _ in range(2))
        for b, (kind, group, counts, _) in enumerate(blocks):
            resources[:, self.column(group, kind)] += counts
            if kind == "accelerator":
                g = self.memory_groups.index(group)
                # blocks have disjoint devices: the fullest device counts
                idle[:, g] = np.maximum(idle[:, g], kept[:, b])
                running[:, g] = np.maximum(running[:, g], most[:, b])
        members = shared or (unit.stages,)
        block_of = {stage: b for b, block in enumerate(members) for stage in block}
        divided = [b for b, block in enumerate(blocks) if block[0] == self.divided]
        apart = np.full(rows, len(divided) > 1)
        together = np.full(rows, any(len(members[b]) > 1 for b in divided))
        devices = np.stack([blocks[block_of[s]][3][s] for s in unit.stages], axis=1).astype(int)
        kinds = tuple(blocks[block_of[s]][0] for s in unit.stages)
        groups = tuple(blocks[block_of[s]][1] for s in unit.stages)
        choice = Options.Choice(kinds, groups, resident, shared, slots, devices)
        return resources, time + switching, switching, idle, running, apart, together, choice

    # -- what can never work

    def _suffices(self, unit: int, cluster: Cluster) -> bool:
        """Whether a unit fits on another cluster."""
        other = Problem(dataclasses.replace(self.profile, cluster=cluster), self.pieces, checked=False)
        return any(other.options(unit, pieces) is not None for pieces in other.pieces)

    def _check_places(self) -> None:
        for unit_index, unit in enumerate(self.units):
            for stage in unit.stages:
                wanted = self.profile.stages[stage].on
                if not self.places(stage):
                    has = ", ".join(f"{g.units(k)} {k}(s) in {n}" for n, g in self.groups.items() for k in wanted)
                    raise ConfigurationError(f"stage {stage!r} needs {' or '.join(wanted)}; the cluster has {has}")
                for kind, group in self.places(stage):
                    if wanted[kind].devices_per_replica <= self.groups[group].units(kind):
                        break
                else:
                    least = min(wanted[k].devices_per_replica for k, _ in self.places(stage))
                    raise ConfigurationError(
                        f"one replica of stage {stage!r} takes {least} devices; no node group has as many. "
                        "Use a smaller devices_per_replica or a larger cluster"
                    )
            if self.options(unit_index, 1) is None and not any(self.options(unit_index, p) for p in self.pieces):
                raise ConfigurationError(memory_advice(self, unit, functools.partial(self._suffices, unit_index)))
