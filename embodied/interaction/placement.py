"""From `cluster.*` to a plan: the named placements of the embodied flow, checked against what there is.

shared: acting and learning take turns on all devices. split: acting has the first half of the devices, learning the
second, each to itself. mixed: acting has the first half, learning has all. Simulators on CPUs run beside either.
"""

from __future__ import annotations

import os

from embodied.errors import ConfigurationError, suggest
from embodied.interaction.recipe import Recipe
from embodied.scheduler.flow import ACCELERATOR, Flow
from embodied.scheduler.plan import Plan, StagePlan


def make_plan(recipe: Recipe, flow: Flow) -> Plan:
    """The plan that the recipe's `cluster` asks for. Raises ConfigurationError when it cannot be."""
    cluster = recipe.cluster
    _check_stages(recipe, flow)
    devices = _devices(recipe)
    acting, learning = _halves(cluster.placement, devices)
    placed = {name: (acting if name == "policy" else learning) for name in flow.stages}
    stages = {}
    for name, stage in flow.stages.items():
        chosen = placed[name] if stage.needs == ACCELERATOR else ["cpu"]
        count = cluster.workers.get(name, len(chosen) if stage.needs == ACCELERATOR else 1)
        chosen = [chosen[i % len(chosen)] for i in range(count)]
        slots = recipe.env.slots if "slots" in stage.worker.follows else 1
        stages[name] = StagePlan(devices=tuple(cluster.devices.get(name, tuple(chosen))), slots=slots)
    launcher = cluster.launcher
    alone = all(len(s.devices) == 1 for s in stages.values()) and cluster.placement == "shared" and not cluster.devices
    if launcher == "auto":
        launcher = "inline" if alone and cluster.address is None else "ray"
    if launcher == "inline" and cluster.address is not None:
        raise ConfigurationError("cluster.launcher=inline runs in this process; it cannot use cluster.address")
    check_env_workers(recipe, len(stages["env"].devices))
    why = (
        "one device: all workers are coroutines of one process"
        if launcher == "inline"
        else f"{cluster.placement} placement on {', '.join(dict.fromkeys(devices))}, a process for every worker"
    )
    return Plan(flow=flow.name, launcher=launcher, stages=stages, why=why)


def _devices(recipe: Recipe) -> list[str]:
    """The devices that acting and learning are divided over."""
    cluster = recipe.cluster
    device = recipe.device()
    if device == "cpu":
        # shares of the cores stand for devices; one share is the whole machine
        return ["cpu"] if cluster.placement == "shared" else ["cpu:0", "cpu:1"]
    if cluster.device != "auto":
        return [device]
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def _halves(placement: str, devices: list[str]) -> tuple[list[str], list[str]]:
    """Devices that act, devices that learn."""
    if placement == "shared":
        return devices, devices
    if len(devices) < 2:
        raise ConfigurationError(
            f"cluster.placement={placement} divides devices between acting and learning, but there is one "
            f"({devices[0]}); use shared, or cluster.device=auto with two GPUs or more"
        )
    if devices[0].startswith("cpu") and len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError(f"cluster.placement={placement} needs two cores or more; this machine has one")
    half = len(devices) // 2
    return devices[:half], devices if placement == "mixed" else devices[half:]


def _check_stages(recipe: Recipe, flow: Flow) -> None:
    for table in ("workers", "devices"):
        for name, value in getattr(recipe.cluster, table).items():
            if name not in flow.stages:
                hint = suggest(name, flow.stages, noun="stages")
                raise ConfigurationError(f"cluster.{table} names an unknown stage {name!r}. {hint}")
            if not value or (isinstance(value, int) and value < 1):
                raise ConfigurationError(f"cluster.{table}.{name} is {value!r}; a stage needs at least one worker")


def check_env_workers(recipe: Recipe, workers: int) -> None:
    """Every environment worker needs a whole group in each of its slots. Raises ConfigurationError."""
    unit = recipe.env.slots * recipe.algorithm.group_size
    most = recipe.env.num_envs // unit
    if workers > most:
        raise ConfigurationError(
            f"{workers} environment workers share env.num_envs={recipe.env.num_envs} environments in units of "
            f"{unit} (env.slots x algorithm.group_size): at most {most} can have one. "
            f"Use cluster.workers.env={most} or env.num_envs={workers * unit}."
        )
