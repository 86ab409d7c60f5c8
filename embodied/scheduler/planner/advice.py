"""What to say when memory does not suffice: how much is needed where, how much there is, and what would fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from embodied.errors import ConfigurationError
from embodied.scheduler.planner import costs

if TYPE_CHECKING:
    from embodied.scheduler.planner.problem import Problem
    from embodied.scheduler.planner.units import Unit


def memory_advice(problem: Problem, unit: Unit) -> str:
    """Why no placement of a unit fits, per device, and what would."""
    lines = []
    for stage in unit.stages:
        profile = problem.profile.stages[stage]
        for kind, group in problem.places(stage):
            if kind == "cpu":
                continue
            cost, where = profile.on[kind], problem.groups[group]
            counts = costs.device_counts(cost, where, kind, profile.items)
            most = counts[-1:]
            idle = float(costs.state_bytes(cost, most, profile.items)[0])
            alive = min(
                -(-profile.items // (int(most[0]) // cost.devices_per_replica)), cost.memory.live_items or 2**62
            )
            items = cost.memory.item_bytes * alive / cost.devices_per_replica
            room = where.accelerator_memory_bytes
            need = idle + cost.memory.working_bytes + items
            advice = []
            if cost.memory.item_bytes and idle + cost.memory.working_bytes < room:
                left = (room - idle - cost.memory.working_bytes) * cost.devices_per_replica / cost.memory.item_bytes
                if left >= 1:
                    advice.append(f"at most {int(left)} items alive at once (a smaller micro-batch)")
            if cost.memory.state == "sharded":
                free = room - cost.memory.working_bytes - items
                if free > 0:
                    advice.append(f"at least {math.ceil(cost.memory.state_bytes / free)} devices")
            else:
                advice.append("more devices a replica, or shards")
            advice.append("LoRA or a smaller model, whose state is smaller")
            lines.append(
                f"stage {stage!r} on {int(most[0])} accelerator(s) of {group} needs {gib(need)} a device "
                f"(state {gib(idle)}, working {gib(cost.memory.working_bytes)}, {alive} items {gib(items)}); "
                f"there is {gib(room)}. What fits: {'; '.join(advice)}"
            )
    together = " together in one cycle" if len(unit.stages) > 1 else ""
    return f"no placement of {unit.name}{together} fits the memory:\n" + "\n".join(lines)


def combination_advice(problem: Problem) -> str:
    """Why units that fit a device each do not fit together: what every one needs of a device, what it leaves there
    when another has its turn, and what would help."""
    lines, helps = [], []
    for index, unit in enumerate(problem.units):
        options = problem.options(index, 1)
        if options is None or not options.running.size:
            continue
        for column, group in enumerate(problem.memory_groups):
            rows = options.running[:, column] > 0
            if not rows.any():
                continue
            room = problem.groups[group].accelerator_memory_bytes
            running, idle = options.running[rows, column].min() * room, options.idle[rows, column].min() * room
            lines.append(
                f"{unit.name} needs {gib(running)} of the {gib(room)} of an accelerator of {group}"
                + (f" and keeps {gib(idle)} of them between its turns" if idle else "")
            )
        for stage in unit.stages:
            cost = problem.profile.stages[stage].on.get("accelerator")
            if cost is None:
                continue
            memory = cost.memory
            if memory.state_bytes + memory.item_state_bytes and cost.switch is None:
                helps.append(f"let {stage} unload (a `switch` in its profile)")
            if memory.state == "sharded":
                helps.append(f"more devices for {stage}, whose state is divided among them")
            if memory.item_bytes:
                helps.append(f"a smaller micro-batch of {stage}")
    helps.append("LoRA or a smaller model")
    return "; ".join(lines) + f". What helps: {'; '.join(dict.fromkeys(helps))}"


def check_host_memory(problem: Problem) -> None:
    """Raise ConfigurationError when stages that can only be in one group's host memory do not fit there."""
    for name, group in problem.groups.items():
        room = group.host_memory_bytes * group.nodes
        pinned = {
            stage: profile.on["cpu"].memory.state_bytes + profile.on["cpu"].memory.item_bytes * profile.items
            for stage, profile in problem.profile.stages.items()
            if list(profile.on) == ["cpu"] and [g for _, g in problem.places(stage)] == [name]
        }
        if sum(pinned.values()) > room:
            parts = ", ".join(f"{stage} {gib(size)}" for stage, size in pinned.items())
            raise ConfigurationError(
                f"the host memory of group {name} is {gib(room)}; its stages need {parts}. "
                "Use fewer environments or more nodes"
            )


def gib(size: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / 2**30:.1f} GiB"
