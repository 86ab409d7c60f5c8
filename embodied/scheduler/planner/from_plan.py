"""A plan back as a schedule, so that what a file says, also an edited one, can be predicted and compared."""

from __future__ import annotations

import dataclasses
import itertools
import re

from embodied.errors import ConfigurationError
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import Kind
from embodied.scheduler.planner.schedule import Beside, InTurn, Pipeline, Placement, Schedule, Work
from embodied.scheduler.planner.units import Unit, contiguous_partitions

_DEVICE = re.compile(r"(?:node(?P<node>\d+)/)?(?P<kind>cpu|cuda)(?::\d+)?")


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a stage is: its kind of resource, node group, how many devices, and which (accelerators), or the nodes
    whose cores it uses and whether it works in a process that it shares."""

    kind: Kind
    group: str
    count: int
    devices: frozenset[str]
    in_process: bool


def schedule_of(problem: Problem, plan: Plan) -> Schedule:
    """The schedule that `plan` amounts to for the stages of a profile.

    Stages with devices in common take turns, others run beside each other; a run of stages with a granularity is a
    pipeline. Raises ConfigurationError for a plan of other stages, devices that the profile's cluster does not have, or
    stages that share only some of their devices, of whose time nothing is known.
    """
    missing = [name for name in problem.profile.stages if name not in plan.stages]
    if missing:
        raise ConfigurationError(f"the plan does not place {', '.join(missing)}, which the profile knows")
    places = {name: _place(problem, name, plan.stages[name]) for name in problem.profile.stages}
    parts = [
        (_pieces(problem, unit, plan), _work(problem, unit, plan, places), _devices(unit, places))
        for unit in problem.units
    ]
    schedule: Schedule | None = None
    occupied: frozenset[str] = frozenset()
    for pieces, run in itertools.groupby(parts, key=lambda part: part[0]):
        body: Schedule | None = None
        inside: frozenset[str] = frozenset()
        for _, work, devices in run:
            body = work if body is None else _joined(body, work, inside & devices)
            inside |= devices
        assert body is not None
        body = Pipeline(pieces, body) if pieces > 1 else body
        schedule = body if schedule is None else _joined(schedule, body, occupied & inside)
        occupied |= inside
    assert schedule is not None
    return schedule


def _joined(first: Schedule, second: Schedule, common: frozenset[str]) -> Schedule:
    return InTurn(first, second) if common else Beside(first, second)


def _place(problem: Problem, stage: str, placed: StagePlan) -> _Place:
    cost = problem.profile.stages[stage]
    kinds, groups = set(), set()
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
    if len(kinds) > 1 or len(groups) > 1:
        raise ConfigurationError(f"the plan puts {stage} on several kinds of devices or groups of nodes; use one")
    (kind,), (group,) = kinds, groups
    if kind not in cost.on:
        raise ConfigurationError(f"the profile does not know what {stage} costs on a {kind}; it knows {list(cost.on)}")
    count = len(placed.devices)
    if kind == "cpu" and cost.pooled:
        count *= max(1, placed.processes or 0)
    if kind == "cpu":
        count = max(count, cost.on[kind].devices_per_replica)
    if count > problem.groups[group].units(kind):
        raise ConfigurationError(
            f"the plan gives {stage} {count} devices of group {group}, which has {problem.groups[group].units(kind)}"
        )
    most = cost.on[kind].max_replicas
    if most is not None and count // cost.on[kind].devices_per_replica > most:
        raise ConfigurationError(
            f"the plan gives {stage} {len(placed.devices)} workers; the profile knows what it costs with {most} at most"
        )
    return _Place(kind, group, count, frozenset(placed.devices), cost.pooled and placed.processes == 0)


def _devices(unit: Unit, places: dict[str, _Place]) -> frozenset[str]:
    """What a unit occupies; cores of a node are taken to be the same ones, whoever uses them in turn."""
    found = set()
    for stage in unit.stages:
        place = places[stage]
        found |= {"cores of " + place.group} if place.kind == "cpu" else place.devices
    return frozenset(found)


def _pieces(problem: Problem, unit: Unit, plan: Plan) -> int:
    granularity = plan.stages[unit.stages[0]].granularity
    return 1 if granularity is None else -(-problem.profile.stages[unit.stages[0]].items // granularity)


def _work(problem: Problem, unit: Unit, plan: Plan, places: dict[str, _Place]) -> Work:
    placed = tuple(
        Placement(s, places[s].kind, places[s].group, places[s].count, plan.stages[s].resident) for s in unit.stages
    )
    if unit.cycle is None:
        return Work(placed)
    slots = {plan.stages[stage].slots for stage in unit.stages}
    if len(slots) > 1:
        raise ConfigurationError(f"the stages {unit.name} ask and answer in turn; they have slots {sorted(slots)}")
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
            raise ConfigurationError(f"the plan lets {a} and {b} share only some of their devices: {sorted(common)}")
        return bool(common)
    inside = sum(places[s].count for s in unit.stages if places[s].kind == "cpu" and places[s].group == first.group)
    # more than there are cores: they cannot all work at once
    return first.in_process or second.in_process or inside > problem.groups[first.group].units("cpu")
