"""The plan for a profile: the best schedules by the closed formula, simulated; and the best of each style beside it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable

import numpy as np

from embodied.errors import ConfigurationError
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.bounds import estimate
from embodied.scheduler.planner.fit import TERMS
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import Cluster, FlowProfile
from embodied.scheduler.planner.schedule import Schedule, describe, works
from embodied.scheduler.planner.search import Candidate, Style, search
from embodied.scheduler.planner.simulation import Execution, simulate

UNSURE = 0.1  # models with a larger relative error are hedged against
DRAWS = 16  # worlds whose best schedules are candidates
JUDGES = 64  # worlds in which candidates are compared
NEAR = 1.05  # schedules whose formula is within 5 % of the best are simulated: by so much formula and simulation differ


@dataclasses.dataclass(frozen=True)
class Choice:
    """A schedule with its simulated iteration. bound: seconds by the closed formula."""

    schedule: Schedule
    bound: float
    execution: Execution

    @property
    def seconds(self) -> float:
        """Predicted seconds of an iteration."""
        return self.execution.seconds


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The best plan, and by style the best of it or why there is none."""

    problem: Problem
    best: Choice
    styles: dict[Style, Choice | str]


def choose(problem: Problem, style: Style = Style.ANY) -> Choice:
    """The best schedule. Raises ConfigurationError when nothing fits."""
    choices = [Choice(c.schedule, c.seconds, simulate(problem, c.schedule)) for c in _near(problem, style)]
    return min(choices, key=lambda choice: choice.seconds)


def _near(problem: Problem, style: Style) -> list[Candidate]:
    """The best schedule by the formula, and those near it that end in another last step."""
    best = search(problem, style)[0]
    found = {describe(c.schedule): c for c in search(problem, style, known=NEAR * best.seconds)}
    return list(found.values())


def hedge(problem: Problem, draws: int = DRAWS, judges: int = JUDGES, seed: int = 0) -> Choice:
    """The schedule that loses least on average when every stage's model is wrong by its own stated error.

    Worlds are drawn in which each stage is slower or faster throughout. The best schedule of each of `draws` of them,
    and those near the best without errors, are compared in `judges`: by how much longer each takes there than the one
    that is best there. So a stage whose time hardly falls with more devices gets none of them on the strength of a
    guess, and a split that must be just right gives way to one that may be a little off.
    """
    source = random.Random(seed)
    worlds = [Problem(_another_world(problem.profile, source), problem.pieces) for _ in range(max(draws, judges))]
    schedules = {describe(c.schedule): c.schedule for c in _near(problem, Style.ANY)}
    for world in worlds[:draws]:
        known = min(estimate(world, schedule).latency for schedule in schedules.values())
        schedules |= {describe(c.schedule): c.schedule for c in search(world, known=known)[:1]}
    candidates = list(schedules.values())
    seconds = np.array([[estimate(world, s).latency for world in [problem, *worlds[:judges]]] for s in candidates])
    best = candidates[int((seconds / seconds.min(axis=0)).mean(axis=1).argmin())]
    return Choice(best, estimate(problem, best).latency, simulate(problem, best))


def _another_world(profile: FlowProfile, source: random.Random) -> FlowProfile:
    """The profile with every stage's time multiplied by a factor drawn from its model's error."""
    stages = {}
    for name, stage in profile.stages.items():
        on = {}
        for kind, cost in stage.on.items():
            factor = math.exp(source.gauss(0.0, cost.time.error))
            terms = {term: getattr(cost.time, term) * factor for term in TERMS}
            on[kind] = dataclasses.replace(cost, time=dataclasses.replace(cost.time, **terms))
        stages[name] = dataclasses.replace(stage, on=on)
    return dataclasses.replace(profile, stages=stages)


def compare(profile: FlowProfile, cluster: Cluster | None = None) -> Comparison:
    """The best plan beside the best shared, split and mixed ones."""
    problem = Problem(dataclasses.replace(profile, cluster=cluster) if cluster else profile)
    styles: dict[Style, Choice | str] = {}
    for style in (Style.SHARED, Style.SPLIT, Style.MIXED):
        try:
            styles[style] = choose(problem, style)
        except ConfigurationError as error:
            styles[style] = str(error)
    errors = [cost.time.error for stage in profile.stages.values() for cost in stage.on.values()]
    if max(errors) > UNSURE:
        return Comparison(problem, hedge(problem), styles)
    # the search over all styles sees no schedule that these do not; what it keeps of each kind can differ
    choices = [choose(problem), *(c for c in styles.values() if isinstance(c, Choice))]
    return Comparison(problem, min(choices, key=lambda choice: choice.seconds), styles)


def device_name(problem: Problem) -> Callable[[str, str, int], str]:
    """Names of devices as launchers know them (`scheduler.cluster`): `cuda:3` and `cpu`, with the node before it where
    there are several: `node1/cuda:3`. Nodes are numbered through the groups in their order."""
    counts = [group.nodes for group in problem.groups.values()]
    first = dict(zip(problem.groups, itertools.accumulate([0, *counts]), strict=False))

    def name(group: str, kind: str, index: int) -> str:
        where = problem.groups[group]
        if kind == "cpu":
            node, device = index // max(1, where.cores_per_node), "cpu"
        else:
            node, inside = divmod(index, where.accelerators_per_node)
            device = f"cuda:{inside}"
        return f"node{first[group] + node}/{device}" if sum(counts) > 1 else device

    return name


def to_plan(problem: Problem, choice: Choice, why: str) -> Plan:
    """The choice as a plan that a launcher carries out: one worker an accelerator, one a node for stages on cores.

    All in one process where every stage has one worker and stays loaded, and none is on another accelerator or node
    than the others (one process takes turns; it would leave one of them idle); else a process for every worker."""
    name = device_name(problem)
    first = {s.stage: s.first for s in choice.execution.spans if s.what == "run"}
    stages: dict[str, StagePlan] = {}
    for work, pieces in works(choice.schedule):
        members = {stage: block for block in work.blocks for stage in block}
        for p in work.placements:
            start = first.get(p.stage, first.get(members.get(p.stage, (p.stage,))[0], 0))
            devices = [name(p.group, p.kind, start + i) for i in range(p.devices)]
            profile = problem.profile.stages[p.stage]
            processes = None
            if p.kind == "cpu":
                nodes = list(dict.fromkeys(devices))
                if profile.pooled:
                    devices = nodes
                else:  # a worker a replica, each on its share of a node's cores
                    each = profile.on[p.kind].devices_per_replica
                    starts = devices[::each]
                    devices = starts if len(starts) == len(set(starts)) else _shares(starts)
                # one core that is shared is the worker's own
                alone = len(members.get(p.stage, (p.stage,))) == 1
                cores = -(-p.devices // len(devices))
                processes = None if not profile.pooled else cores if cores > 1 or alone else 0
            stages[p.stage] = StagePlan(
                devices=tuple(devices),
                granularity=costs.piece_items(profile.items, pieces) if pieces > 1 else None,
                slots=work.slots,
                resident=p.resident,
                processes=processes,
            )
    used = {device for stage in stages.values() for device in stage.devices}
    nodes = {device.rpartition("/")[0] for device in used}
    together = len(nodes) == 1 and sum("cuda" in device for device in used) <= 1
    inline = together and all(len(stage.devices) == 1 and stage.resident for stage in stages.values())
    ordered = {stage: stages[stage] for stage in problem.profile.stages}
    return Plan(flow=problem.profile.flow, launcher="inline" if inline else "ray", stages=ordered, why=why)


def _shares(nodes: list[str]) -> list[str]:
    """Names of shares of the cores, one for each mention of a node's `cpu`."""
    count: collections.Counter[str] = collections.Counter()
    found = []
    for node in nodes:
        found.append(f"{node}:{count[node]}")
        count[node] += 1
    return found


def on_device(plan: Plan, device: str) -> Plan:
    """The plan with the only accelerator that it knows being `device`, where that names one (`cuda:1`)."""
    if not device.startswith("cuda:"):
        return plan
    stages = {
        name: dataclasses.replace(stage, devices=tuple(device if d == "cuda:0" else d for d in stage.devices))
        for name, stage in plan.stages.items()
    }
    return dataclasses.replace(plan, stages=stages)


def memory_bytes(problem: Problem, choice: Choice) -> dict[str, float]:
    """Most bytes on one accelerator at any time, by group."""
    found = estimate(problem, choice.schedule).running
    return {group: share * problem.groups[group].accelerator_memory_bytes for group, share in found.items()}
