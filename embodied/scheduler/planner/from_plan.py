"""A plan back as a schedule, so that what a file says, also an edited one, can be predicted and compared."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Hashable

import numpy as np

from embodied.errors import ConfigurationError, suggest
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.bounds import estimate, fits
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import Kind
from embodied.scheduler.planner.schedule import Beside, InTurn, Pipeline, Placement, Schedule, Work
from embodied.scheduler.planner.units import Unit, contiguous_partitions

_DEVICE = re.compile(r"(?:node(?P<node>\d+)/)?(?P<kind>cpu|cuda)(?::(?P<index>\d+))?")


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a stage is: its kind of resource, node group, how many devices, and which (node and index), and whether it
    works in a process that it shares."""

    kind: Kind
    group: str
    count: int
    devices: frozenset[tuple[int, int]]
    in_process: bool


def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    """The schedule that `plan` amounts to for the stages of a profile.

    Stages with devices in common take turns, others run beside each other; a run of stages with a granularity is a
    pipeline. Raises ConfigurationError for a plan of another flow or other stages, devices that the profile's cluster
    does not have, and whatever the profile does not say the time of: more pieces or other slots than it allows, or
    stages that share only some of their devices.
    """
    if plan.flow != problem.profile.flow:
        raise ConfigurationError(f"the plan is for flow {plan.flow!r}, the profile for flow {problem.profile.flow!r}")
    for name in plan.stages:
        if name not in problem.profile.stages:
            known = suggest(name, problem.profile.stages, noun="stages")
            raise ConfigurationError(f"the plan places a stage {name!r}, which the profile does not know. {known}")
    missing = [name for name in problem.profile.stages if name not in plan.stages]
    if missing:
        raise ConfigurationError(f"the plan does not place {', '.join(missing)}, which the profile knows")
    places = {name: _place(problem, name, plan.stages[name]) for name in problem.profile.stages}
    _check_nodes(problem, places)
    crowded = _crowded(problem, places)
    pieces = [_pieces(problem, unit, plan) for unit in problem.units]
    works = [
        _Part(_work(problem, unit, plan, places), 1 << index, _devices(unit, places, crowded))
        for index, unit in enumerate(problem.units)
    ]
    found = []
    for pipelines in _pipelines(problem, pieces):
        parts = []
        for run in pipelines:
            inside = _arranged(problem, [works[index] for index in run], pieces[run[0]])
            if pieces[run[0]] > 1:
                inside = dataclasses.replace(inside, schedule=Pipeline(pieces[run[0]], inside.schedule))
            parts.append(inside)
        found.append(_arranged(problem, parts, 1).schedule)
    return min(found, key=lambda schedule: _cost(problem, schedule))


def _pipelines(problem: Problem, pieces: list[int]) -> list[list[tuple[int, ...]]]:
    """Which units may hand pieces on within one pipeline: those of equal pieces that follow each other in the order of
    the units, or all of them where nothing else comes between. Units that work on all at once stand alone."""
    runs: list[tuple[int, ...]] = []
    for count, equal in itertools.groupby(range(len(pieces)), key=lambda index: pieces[index]):
        run = tuple(equal)
        runs += [run] if count > 1 else [(index,) for index in run]
    whole: list[tuple[int, ...]] = []
    for index, count in enumerate(pieces):
        group = tuple(i for i, other in enumerate(pieces) if other == count) if count > 1 else (index,)
        if group not in whole:
            whole.append(group)
    return [runs, whole] if whole != runs and all(_convex(problem, group) for group in whole) else [runs]


def _convex(problem: Problem, group: tuple[int, ...]) -> bool:
    """Whether no other unit needs one of the group and is needed by one."""

    def reached(start: set[int], edges: list[tuple[int, int]]) -> set[int]:
        found = set(start)
        while more := {b for a, b in edges if a in found} - found:
            found |= more
        return found

    edges = list(problem.edges)
    behind = reached(set(group), edges)
    before = reached(set(group), [(b, a) for a, b in edges])
    return behind & before == set(group)


def _cost(problem: Problem, schedule: Schedule) -> tuple[bool, float, float]:
    found = estimate(problem, schedule)
    return not fits(problem, found), found.latency, found.period


@dataclasses.dataclass(frozen=True)
class _Part:
    """A schedule of some units, a bit mask, on some devices."""

    schedule: Schedule
    units: int
    devices: frozenset[Hashable]


def _arranged(problem: Problem, parts: list[_Part], pieces: int) -> _Part:
    """The parts joined, in turn where devices are shared and else beside each other, in the brackets that fit and are
    estimated to take least: a plan does not say them, and its carrying out does not depend on them."""

    @functools.cache
    def best(chosen: tuple[int, ...]) -> _Part:
        if len(chosen) == 1:
            return parts[chosen[0]]
        found = []
        for size in range(1, len(chosen)):
            for first in itertools.combinations(chosen, size):
                second = tuple(i for i in chosen if i not in first)
                if any(_feeds(problem, parts[b].units, parts[a].units) for a in first for b in second):
                    continue  # what comes second needs what comes first, never the other way round
                a, b = best(first), best(second)
                joined = InTurn if a.devices & b.devices else Beside
                found.append(_Part(joined(a.schedule, b.schedule), a.units | b.units, a.devices | b.devices))
        inside = (Pipeline(pieces, part.schedule) if pieces > 1 else part.schedule for part in found)
        costs_of = [_cost(problem, schedule) for schedule in inside]
        return found[costs_of.index(min(costs_of))]

    return best(tuple(range(len(parts))))


def _feeds(problem: Problem, first: int, second: int) -> bool:
    return any(first >> a & 1 and second >> b & 1 for a, b in problem.edges)


def _place(problem: Problem, stage: str, placed: StagePlan) -> _Place:
    cost = problem.profile.stages[stage]
    kinds, groups, devices = set(), set(), []
    names = list(problem.groups)
    first = [0, *itertools.accumulate(group.nodes for group in problem.groups.values())]
    for text in placed.devices:
        match = _DEVICE.fullmatch(text)
        node = int(match["node"] or 0) if match else 0
        if match is None or node >= first[-1]:
            raise ConfigurationError(
                f"the plan puts {stage} on {text!r}; the profile's cluster has nodes 0 to {first[-1] - 1}, "
                "with devices named cpu, cpu:0, cuda:0 or node1/cuda:0"
            )
        kinds.add("cpu" if match["kind"] == "cpu" else "accelerator")
        groups.add(next(name for name, start, end in zip(names, first, first[1:], strict=False) if start <= node < end))
        devices.append((node, int(match["index"] or 0)))
    if len(kinds) > 1 or len(groups) > 1:
        raise ConfigurationError(f"the plan puts {stage} on several kinds of devices or groups of nodes; use one")
    (kind,), (group,) = kinds, groups
    if kind not in cost.on:
        raise ConfigurationError(f"the profile does not know what {stage} costs on a {kind}; it knows {list(cost.on)}")
    if kind == "accelerator" and len(set(devices)) < len(devices):
        twice = next(text for text, device in zip(placed.devices, devices, strict=True) if devices.count(device) > 1)
        raise ConfigurationError(f"the plan puts several workers of {stage} on {twice}; what they cost is not known")
    if placed.processes is not None and not cost.pooled:
        raise ConfigurationError(
            f"the plan gives {stage} processes={placed.processes}, but the profile knows it as a stage without "
            "processes of its own; use null"
        )
    switch = costs.switch_seconds(cost.on[kind], np.array([cost.on[kind].devices_per_replica]), cost.items)
    if not placed.resident and switch is None:
        raise ConfigurationError(
            f"the plan lets {stage} leave its devices between turns (resident: false), but the profile has no state, "
            "or no `switch`, of it"
        )
    count = len(placed.devices)
    if kind == "cpu" and cost.pooled:
        count *= max(1, placed.processes or 0)
    if kind == "cpu" and not cost.pooled:
        count *= cost.on[kind].devices_per_replica  # a worker is a replica
    if kind == "cpu":
        count = max(count, cost.on[kind].devices_per_replica)
    if count > problem.groups[group].units(kind):
        raise ConfigurationError(
            f"the plan gives {stage} {count} devices of group {group}, which has {problem.groups[group].units(kind)}"
        )
    each, most = cost.on[kind].devices_per_replica, cost.on[kind].max_replicas
    if count % each:
        raise ConfigurationError(
            f"the plan gives {stage} {count} devices; one replica of it takes {each}. Nearest valid numbers: "
            + ", ".join(str(n * each) for n in (count // each, count // each + 1) if n)
        )
    if most is not None and count // each > most:
        raise ConfigurationError(
            f"the plan gives {stage} {len(placed.devices)} workers; the profile knows what it costs with {most} at most"
        )
    if count // each > cost.items:
        raise ConfigurationError(f"the plan gives {stage} {count // each} replicas for {cost.items} items")
    return _Place(kind, group, count, frozenset(devices), cost.pooled and placed.processes == 0)


def _check_nodes(problem: Problem, places: dict[str, _Place]) -> None:
    """Raise ConfigurationError where a plan uses more different accelerators of a node than it has."""
    for name, group in problem.groups.items():
        used = {
            device
            for place in places.values()
            if (place.kind, place.group) == ("accelerator", name)
            for device in place.devices
        }
        for node in sorted({node for node, _ in used}):
            here = sorted(index for at, index in used if at == node)
            if len(here) > group.accelerators_per_node:
                raise ConfigurationError(
                    f"the plan uses cuda:{', cuda:'.join(map(str, here))} of node {node}; the profile's cluster has "
                    f"{group.accelerators_per_node} accelerators a node"
                )


def _crowded(problem: Problem, places: dict[str, _Place]) -> set[str]:
    """Groups of nodes whose cores do not suffice for all stages at once."""
    wanted: collections.Counter[str] = collections.Counter()
    for place in places.values():
        if place.kind == "cpu":
            wanted[place.group] += place.count
    return {group for group, count in wanted.items() if count > problem.groups[group].units("cpu")}


def _devices(unit: Unit, places: dict[str, _Place], crowded: set[str]) -> frozenset[Hashable]:
    """What a unit occupies; where cores do not suffice for all, they are taken to be the same ones."""
    found: set[Hashable] = set()
    for stage in unit.stages:
        place = places[stage]
        if place.kind == "cpu":
            found.add("cores of " + (place.group if place.group in crowded else stage))
        else:
            found |= place.devices
    return frozenset(found)


def _pieces(problem: Problem, unit: Unit, plan: Plan) -> int:
    items = {stage: problem.profile.stages[stage].items for stage in unit.stages}
    counts = {stage: -(-items[stage] // (plan.stages[stage].granularity or items[stage])) for stage in unit.stages}
    if len(set(counts.values())) > 1:
        raise ConfigurationError(f"the stages {unit.name} ask and answer in turn; the plan hands on {counts} pieces")
    pieces = counts[unit.stages[0]]
    for stage in unit.stages:
        most = problem.profile.stages[stage].max_pieces
        if pieces > most:
            least = -(-items[stage] // most)
            raise ConfigurationError(
                f"the plan's granularity of {stage}, {plan.stages[stage].granularity}, cuts its {items[stage]} items "
                f"into {pieces} pieces; the profile allows {most}: use "
                + (f"at least {least}" if most > 1 else "null, for it needs all items together")
            )
    return pieces


def _work(problem: Problem, unit: Unit, plan: Plan, places: dict[str, _Place]) -> Work:
    placed = tuple(
        Placement(s, places[s].kind, places[s].group, places[s].count, plan.stages[s].resident) for s in unit.stages
    )
    if unit.cycle is None:
        return Work(placed)
    slots = {plan.stages[stage].slots for stage in unit.stages}
    if len(slots) > 1:
        raise ConfigurationError(f"the stages {unit.name} ask and answer in turn; they have slots {sorted(slots)}")
    if unit.cycle.slot_counts and not slots <= set(unit.cycle.slot_counts):
        raise ConfigurationError(
            f"the plan gives {unit.name} {slots.pop()} slots; the profile allows {list(unit.cycle.slot_counts)}"
        )
    wanted = [{b for b in unit.stages if b == a or _share(problem, unit, places, a, b)} for a in unit.stages]
    for blocks in contiguous_partitions(unit.stages):
        if all(
            next(set(block) for block in blocks if a in block) == w for a, w in zip(unit.stages, wanted, strict=True)
        ):
            return Work(placed, blocks, slots.pop())
    raise ConfigurationError(
        f"the plan lets stages of the cycle {unit.name} share devices in a way whose time is not known"
    )


def _share(problem: Problem, unit: Unit, places: dict[str, _Place], a: str, b: str) -> bool:
    """Whether two stages of a cycle work in turn on the same devices."""
    first, second = places[a], places[b]
    if a == b or (first.kind, first.group) != (second.kind, second.group):
        return False
    if first.kind == "accelerator":
        common = first.devices & second.devices
        if common and common not in (first.devices, second.devices):
            some = ", ".join(f"node{node}/cuda:{index}" for node, index in sorted(common))
            raise ConfigurationError(f"the plan lets {a} and {b} share only some of their devices: {some}")
        return bool(common)
    inside = sum(places[s].count for s in unit.stages if places[s].kind == "cpu" and places[s].group == first.group)
    # more than there are cores: they cannot all work at once
    return first.in_process or second.in_process or inside > problem.groups[first.group].units("cpu")
