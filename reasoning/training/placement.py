"""From `cluster.*` to a plan: the named placements of the reasoning flow, checked against what there is.

shared: all stages take turns on all devices. split: generation has the first half of the devices, the models that learn
or judge the second, each to itself. mixed: generation has the first half, the others have all.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from embodied.errors import ConfigurationError, suggest
from embodied.scheduler.flow import ACCELERATOR, Flow
from embodied.scheduler.plan import Plan, StagePlan
from reasoning.training.recipe import Recipe

STAGES = ("prompts", "generate", "reward", "reference", "critic", "learner")


def make_plan(recipe: Recipe, flow: Flow) -> Plan:
    """The plan that the recipe's `cluster` asks for. Raises ConfigurationError when it cannot be."""
    check_placement(recipe)
    cluster = recipe.cluster
    if cluster.plan is not None:
        plan = Plan.load(Path(cluster.plan))
        plan.check(flow)
        return plan
    devices = _devices(recipe)
    generating, learning = _halves(cluster.placement, devices)
    stages = {}
    for name, stage in flow.stages.items():
        chosen = (generating if name == "generate" else learning) if stage.needs == ACCELERATOR else ["cpu"]
        count = cluster.workers.get(name, len(chosen) if stage.needs == ACCELERATOR else 1)
        placed = cluster.devices.get(name, tuple(chosen[i % len(chosen)] for i in range(count)))
        stages[name] = StagePlan(devices=tuple(placed))
    alone = all(len(s.devices) == 1 for s in stages.values()) and cluster.placement == "shared" and not cluster.devices
    launcher = cluster.launcher
    if launcher == "auto":
        launcher = "inline" if alone and cluster.address is None else "ray"
    if launcher == "inline" and cluster.address is not None:
        raise ConfigurationError("cluster.launcher=inline runs in this process; it cannot use cluster.address")
    why = (
        "one device: all workers are coroutines of one process"
        if launcher == "inline"
        else f"{cluster.placement} placement on {', '.join(dict.fromkeys(devices))}, a process for every worker"
    )
    return Plan(flow=flow.name, launcher=launcher, stages=stages, why=why)


def check_placement(recipe: Recipe) -> None:
    """Refuse a placement that cannot be, before anything is made. Raises ConfigurationError."""
    algorithm, cluster = recipe.algorithm, recipe.cluster
    if cluster.plan == "auto":
        raise ConfigurationError(
            "cluster.plan=auto measures a recipe's stages, which it cannot do for this workload yet; give a plan.json, "
            "or use cluster.placement"
        )
    absent = {"reference": not algorithm.needs_reference, "critic": not algorithm.needs_values}
    there = [name for name in STAGES if not absent.get(name, False)]
    for table in ("workers", "devices"):
        for name, value in getattr(cluster, table).items():
            if name not in there:
                hint = suggest(name, there, noun="stages")
                raise ConfigurationError(f"cluster.{table} names a stage {name!r} that this recipe lacks. {hint}")
            if not value or (isinstance(value, int) and value < 1):
                raise ConfigurationError(f"cluster.{table}.{name} is {value!r}; a stage needs at least one worker")
    _halves(cluster.placement, _devices(recipe))
    if cluster.workers.get("prompts", len(cluster.devices.get("prompts", ("cpu",)))) > 1:
        raise ConfigurationError("one worker asks all problems, in one order; leave cluster.workers.prompts at 1")


def _devices(recipe: Recipe) -> list[str]:
    """The devices that generation and learning are divided over."""
    cluster = recipe.cluster
    device = recipe.device()
    if device == "cpu":
        # shares of the cores stand for devices; one share is the whole machine
        return ["cpu"] if cluster.placement == "shared" else ["cpu:0", "cpu:1"]
    if cluster.device != "auto":
        return [device]
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def _halves(placement: str, devices: list[str]) -> tuple[list[str], list[str]]:
    """Devices that generate, devices for the rest."""
    if placement == "shared":
        return devices, devices
    if len(devices) < 2:
        raise ConfigurationError(
            f"cluster.placement={placement} divides devices between generation and learning, but there is one "
            f"({devices[0]}); use shared, or cluster.device=auto with two GPUs or more"
        )
    if devices[0].startswith("cpu") and len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError(f"cluster.placement={placement} needs two cores or more; this machine has one")
    half = len(devices) // 2
    return devices[:half], devices if placement == "mixed" else devices[half:]
