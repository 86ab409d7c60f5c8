"""The closed formula: how long a schedule takes at most, what it occupies, and what memory it needs.

For each part of a schedule it computes a latency L (a piece's way through) and a period P (the time between pieces):

* a work, or parts in turn: L = P = the sum of the seconds, each unload and load included; a work that has devices of
  its own in a pipeline stays loaded from its first piece to its last: its P is without unload and load;
* parts beside each other: L = L1 + hand-over + L2 if data passes between them, else the larger; P = the largest of P1,
  P2 and the hand-over;
* a body in p pieces: L + (p - 1) P, the paper's T_critical + (M/m - 1) T_bottleneck.

An execution whose calls take the modelled times never takes longer (`simulation.py` is compared with it).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from embodied.scheduler.planner import costs
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.schedule import Beside, InTurn, Pipeline, Schedule, Work


@dataclasses.dataclass(frozen=True)
class Estimate:
    """latency, period: seconds. resources: devices by (group, kind). idle, running: memory fractions by group, of the
    fullest device: what stays loaded, and the most there is at any time."""

    latency: float
    period: float
    resources: dict[tuple[str, str], int]
    idle: dict[str, float]
    running: dict[str, float]


def estimate(problem: Problem, schedule: Schedule) -> Estimate:
    """The closed formula for a whole iteration; `latency` is the iteration's time."""
    return _estimate(problem, schedule, pieces=1, own=None)


def fits(problem: Problem, found: Estimate) -> bool:
    """Whether an estimate is within the cluster's devices and their memory."""
    return all(
        number <= problem.capacity[problem.column(*column)] for column, number in found.resources.items()
    ) and all(fraction <= 1.0 for fraction in found.running.values())


@dataclasses.dataclass(frozen=True)
class _Own:
    """A place directly in a pipeline. streams: the pieces in which a streaming stage hands on what it works on as a
    whole; None below another pipeline, where it works piece by piece."""

    streams: int | None


def _estimate(problem: Problem, schedule: Schedule, pieces: int, own: _Own | None) -> Estimate:
    if isinstance(schedule, Work):
        return _work(problem, schedule, pieces, own)
    if isinstance(schedule, Pipeline):
        streams = schedule.pieces if pieces == 1 and isinstance(schedule.body, Beside) else None
        body = _estimate(problem, schedule.body, pieces * schedule.pieces, _Own(streams))
        total = body.latency + (schedule.pieces - 1) * body.period
        return dataclasses.replace(body, latency=total, period=total)
    apart = isinstance(schedule, Beside)
    first = _estimate(problem, schedule.first, pieces, own if apart else None)
    second = _estimate(problem, schedule.second, pieces, own if apart else None)
    merge = (lambda a, b: a + b) if apart else max
    resources = {
        c: merge(first.resources.get(c, 0), second.resources.get(c, 0)) for c in {**first.resources, **second.resources}
    }
    if isinstance(schedule, InTurn):
        # state that stays loaded on one side is there while the other side runs; both sides' fullest devices are
        # taken to be the same device, whichever way the devices inside them line up
        idle = {g: first.idle[g] + second.idle[g] for g in first.idle}
        running = {g: max(first.running[g] + second.idle[g], second.running[g] + first.idle[g]) for g in first.idle}
        total = first.latency + second.latency
        return Estimate(total, total, resources, idle, running)
    idle = {g: max(first.idle[g], second.idle[g]) for g in first.idle}
    running = {g: max(first.running[g], second.running[g]) for g in first.running}
    joined, hand_on, weights = problem.crossing(
        units_of(problem, schedule.first), units_of(problem, schedule.second), pieces
    )
    latency = first.latency + second.latency + hand_on if joined else max(first.latency, second.latency)
    return Estimate(latency + weights, max(first.period, second.period, hand_on), resources, idle, running)


def units_of(problem: Problem, schedule: Schedule) -> int:
    """The set of units of a schedule, as a bit mask."""
    if isinstance(schedule, Work):
        return 1 << next(i for i, unit in enumerate(problem.units) if unit.stages == schedule.stages)
    if isinstance(schedule, Pipeline):
        return units_of(problem, schedule.body)
    return units_of(problem, schedule.first) | units_of(problem, schedule.second)


def stage_seconds(problem: Problem, work: Work, parts: int) -> dict[str, float]:
    """Seconds of one call of each stage of a work, for the largest of `parts` equal parts of its items."""
    found = {}
    for p in work.placements:
        profile = problem.profile.stages[p.stage]
        items = costs.piece_items(profile.items, parts)
        found[p.stage] = float(
            costs.seconds(profile.on[p.kind], problem.groups[p.group], items, np.array([p.devices]))[0]
        )
    return found


def switching_seconds(problem: Problem, work: Work, parts: int) -> float:
    """Seconds to unload and load again what does not stay loaded of a work on one of `parts` parts of its items."""
    total = 0.0
    for p in work.placements:
        if not p.resident:
            profile = problem.profile.stages[p.stage]
            loaded = costs.piece_items(profile.items, parts)
            total += float(costs.switch_seconds(profile.on[p.kind], np.array([p.devices]), loaded)[0])
    return total


def _work(problem: Problem, work: Work, pieces: int, own: _Own | None) -> Estimate:
    index = units_of(problem, work).bit_length() - 1
    unit = problem.units[index]
    streams = own.streams if own and problem.streams(index) else None
    if streams:
        pieces = 1
    rounds, parts = problem.cycle_share(unit.cycle, pieces) if unit.cycle else (1, pieces)
    seconds = stage_seconds(problem, work, parts * work.slots)
    at = {p.stage: p for p in work.placements}
    resources: dict[tuple[str, str], int] = {}
    idle, running = dict.fromkeys(problem.memory_groups, 0.0), dict.fromkeys(problem.memory_groups, 0.0)
    blocks = work.blocks or (work.stages,)
    for block in blocks:
        place = at[block[0]]
        column = (place.group, place.kind)
        # of devices that stages share, some may use fewer than there are
        resources[column] = resources.get(column, 0) + max(at[stage].devices for stage in block)
        if place.kind != "accelerator":
            continue
        kept = loaded = extra = 0.0
        for stage in block:
            profile = problem.profile.stages[stage]
            items, loaded_items = (costs.piece_items(profile.items, n) for n in (parts * work.slots, parts))
            cost, group, devices = profile.on[place.kind], problem.groups[place.group], np.array([at[stage].devices])
            fractions = costs.memory_fractions(cost, group, place.kind, items, loaded_items, devices)
            quiet, busy = (float(fraction[0]) for fraction in fractions)
            loaded, extra = loaded + quiet, max(extra, busy - quiet)
            kept += quiet if at[stage].resident else 0.0
        idle[place.group] = max(idle[place.group], kept)
        running[place.group] = max(running[place.group], loaded + extra)
    switching = switching_seconds(problem, work, parts)
    total = sum(seconds.values())
    if unit.cycle:
        rounds = problem.bounding_rounds(unit, work.blocks, rounds)
        hops = problem.cycle_hops(unit, work.blocks, parts * work.slots)
        total = problem.cycle_seconds(rounds, work.slots, [sum(seconds[s] for s in b) for b in blocks], hops)
    if streams:
        lag = costs.arrival_lag(problem.profile.stages[unit.stages[0]].arrivals, streams)
        return Estimate((1 / streams + lag) * total + switching, total / streams, resources, idle, running)
    return Estimate(total + switching, total if own else total + switching, resources, idle, running)
