"""What to say when memory does not suffice: how much is needed of a device, how much there is, and what would fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from embodied.errors import ConfigurationError
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.profile import Cluster, StageProfile
from embodied.scheduler.planner.schedule import Schedule, works

if TYPE_CHECKING:
    from embodied.scheduler.planner.problem import Problem
    from embodied.scheduler.planner.units import Unit

LARGER = 10  # times that a cluster is doubled when looking for one that suffices


@dataclasses.dataclass(frozen=True)
class Need:
    """What a stage needs of each of its devices at least: bytes of state, of working memory, of `alive` items at once.
    room: what a device has."""

    stage: str
    group: str
    devices: int
    state: float
    working: float
    items: float
    alive: int
    room: float

    @property
    def total(self) -> float:
        """All together."""
        return self.state + self.working + self.items

    def __str__(self) -> str:
        parts = [f"state {gib(self.state)}"]
        parts += [f"working {gib(self.working)}"] if self.working else []
        parts += [f"{self.alive} items at once {gib(self.items)}"] if self.items else []
        noun = "accelerator" if self.devices == 1 else "accelerators"
        return f"{self.stage}: {gib(self.total)} a device on {self.devices} {noun} of {self.group} ({', '.join(parts)})"


def memory_advice(problem: Problem, unit: Unit, suffices: Callable[[Cluster], bool]) -> str:
    """Why no placement of a unit fits, per device, and what would. suffices: whether a unit fits on another cluster."""
    needs = [need for stage in unit.stages for need in _needs(problem, stage)]
    rooms = ", ".join(f"{gib(room)} on each of {group}" for group, room in {n.group: n.room for n in needs}.items())
    lines = [f"no placement of {unit.name} fits the memory of an accelerator ({rooms}). On as many as there are:"]
    lines += [f"  {need}" for need in needs]
    for group in {n.group for n in needs}:
        here = [n for n in needs if n.group == group]
        if len(here) > 1 and len({n.stage for n in here}) == len(unit.stages):
            together = sum(n.state for n in here) + max(n.total - n.state for n in here)
            lines.append(f"  together on the same accelerators of {group}, all of them loaded: {gib(together)}")
    helps = [text for need in needs for text in _smaller(problem, need)]
    return "\n".join([*lines, _what_fits(problem, suffices, helps)])


def combination_advice(problem: Problem, suffices: Callable[[Cluster], bool]) -> str:
    """Why units that fit a device each do not fit together: what every one needs of a device, what it leaves there
    when another has its turn, and what would help. suffices: whether another cluster has room for all."""
    lines, helps = [], []
    for index, unit in enumerate(problem.units):
        for column, group in enumerate(problem.memory_groups):
            least = _least(problem, index, column)
            if least is None:
                continue
            running, idle, pieces = least
            room = problem.groups[group].accelerator_memory_bytes
            lines.append(
                f"  {unit.name}: at least {gib(running * room)} of the {gib(room)} of an accelerator of {group}"
                + (f", in {pieces} pieces" if pieces > 1 else "")
                + (f"; keeps {gib(idle * room)} between its turns" if idle else "")
            )
        for stage in unit.stages:
            cost = problem.profile.stages[stage].on.get("accelerator")
            if cost is None:
                continue
            if cost.memory.state_bytes + cost.memory.item_state_bytes and cost.switch is None:
                helps.append(f"letting {stage} unload between its turns (a `switch` in its profile)")
            if cost.memory.item_bytes:
                helps.append(f"a smaller micro-batch of {stage} (`live_items`)")
    return "\n".join([*lines, _what_fits(problem, suffices, helps)])


def _what_fits(problem: Problem, suffices: Callable[[Cluster], bool], helps: list[str]) -> str:
    more = _larger(problem.profile.cluster, suffices)
    first = [] if more is None else [f"{more} accelerators (cluster.gpus={more})"]
    return f"what would fit: {'; '.join(dict.fromkeys([*first, *helps, 'LoRA or a smaller model']))}"


def _larger(cluster: Cluster, suffices: Callable[[Cluster], bool]) -> int | None:
    """The least number of accelerators, doubled again and again, that suffices; None where none does, or the cluster
    has several groups."""
    if len(cluster.groups) > 1:
        return None
    (group,) = cluster.groups.values()
    count = group.units("accelerator")
    for _ in range(LARGER if count else 0):
        count *= 2
        # as few nodes as there were, or as many of them as it takes
        if suffices(cluster.resized(count, max(1, count // group.accelerators_per_node))):
            return count
    return None


def _least(problem: Problem, unit: int, column: int) -> tuple[float, float, int] | None:
    """(fraction of a device while it runs, while others have their turn, pieces) of the smallest way to run a unit on
    accelerators of one group; None where it needs none."""
    found: list[tuple[float, float, int]] = []
    for pieces in problem.pieces:
        options = problem.options(unit, pieces)
        if options is not None and (options.running[:, column] > 0).any():
            rows = options.running[:, column] > 0
            found.append((options.running[rows, column].min(), options.idle[rows, column].min(), pieces))
    return min(found, default=None)


def _needs(problem: Problem, stage: str) -> Iterator[Need]:
    profile = problem.profile.stages[stage]
    for kind, group in problem.places(stage):
        if kind == "cpu":
            continue
        cost, where = profile.on[kind], problem.groups[group]
        items = costs.piece_items(profile.items, min(profile.max_pieces, problem.pieces[-1]))
        devices = costs.device_counts(cost, where, kind, items)[-1:]
        each = cost.devices_per_replica
        alive = -(-items // (int(devices[0]) // each))
        alive = min(alive, cost.memory.live_items or alive)
        yield Need(
            stage,
            group,
            int(devices[0]),
            state=float(costs.state_bytes(cost, devices, items)[0]),
            working=cost.memory.working_bytes,
            items=cost.memory.item_bytes * alive / each,
            alive=alive,
            room=where.accelerator_memory_bytes,
        )


def _smaller(problem: Problem, need: Need) -> Iterator[str]:
    """What would make a stage smaller."""
    cost = problem.profile.stages[need.stage].on["accelerator"]
    each = cost.devices_per_replica
    free = need.room - need.state - need.working
    if cost.memory.item_bytes and need.total > need.room and free > 0:
        most = math.floor(free * each / cost.memory.item_bytes)
        if most:
            yield f"at most {most} items of {need.stage} at once (a smaller micro-batch, `live_items`)"
    if cost.memory.item_state_bytes and need.state > need.room:
        fixed = float(costs.state_bytes(cost, np.array([need.devices]), 0)[0])
        most = math.floor((need.room - fixed) * need.devices / cost.memory.item_state_bytes)
        if most > 0:
            yield f"at most {most} items of {need.stage} (fewer environments)"
    if cost.memory.state == "replicated" and need.state > need.room:
        yield f"more devices a replica of {need.stage}, or shards of its state"


def check_host_memory(problem: Problem) -> None:
    """Raise ConfigurationError when stages that can only be in one group's host memory do not fit there."""
    for name, group in problem.groups.items():
        room = group.host_memory_bytes * group.nodes
        pinned = {
            stage: _least_host_bytes(profile)
            for stage, profile in problem.profile.stages.items()
            if list(profile.on) == ["cpu"] and [g for _, g in problem.places(stage)] == [name]
        }
        if sum(pinned.values()) > room:
            parts = ", ".join(f"{stage} {gib(size)}" for stage, size in pinned.items())
            raise ConfigurationError(
                f"the host memory of group {name} is {gib(room)}; its stages need {parts}. "
                "Use fewer environments or more nodes"
            )


def _least_host_bytes(stage: StageProfile) -> float:
    """What a stage on the CPU keeps and works with: one replica's state, and that of all its items."""
    memory = stage.on["cpu"].memory
    at_once = stage.items if memory.live_items is None else min(stage.items, memory.live_items)
    items = memory.item_bytes * at_once + memory.item_state_bytes * stage.items
    return memory.state_bytes + memory.working_bytes + items


def gib(size: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / 2**30:.1f} GiB"


def plan_advice(problem: Problem, schedule: Schedule) -> list[str]:
    """What of a schedule that does not fit would have to change, stage by stage."""
    found = []
    for work, pieces in works(schedule):
        cycle = next(unit.cycle for unit in problem.units if unit.stages == work.stages)
        parts = problem.cycle_share(cycle, pieces)[1] if cycle else pieces
        for p in work.placements:
            if p.kind == "cpu":
                continue
            profile, room = problem.profile.stages[p.stage], problem.groups[p.group].accelerator_memory_bytes
            cost, devices = profile.on[p.kind], np.array([p.devices])
            items, loaded = (costs.piece_items(profile.items, n) for n in (parts * work.slots, parts))
            fractions = costs.memory_fractions(cost, problem.groups[p.group], p.kind, items, loaded, devices)
            idle, running = (float(fraction[0]) * room for fraction in fractions)
            helps = []
            free = room - idle - cost.memory.working_bytes
            if running > room and free > 0 and cost.memory.item_bytes:
                each = cost.devices_per_replica
                most = math.floor(free * each / cost.memory.item_bytes) * (p.devices // each)
                least = costs.piece_items(profile.items, profile.max_pieces)
                helps += [f"granularity of at most {most}"] if not cycle and most >= least else []
                helps += ["more slots"] if cycle else []
            if p.resident and idle and costs.switch_seconds(cost, devices, loaded) is not None:
                helps.append("resident: false")
            if running > room and not helps:
                helps.append("more devices, LoRA or a smaller model")
            what = f"{p.stage} needs {gib(running)} while it runs"
            what += f" and keeps {gib(idle)} between its turns" if p.resident and idle else ""
            found.append(what + (f" (what helps: {', '.join(helps)})" if helps else ""))
    return found
