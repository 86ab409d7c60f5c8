"""From `cluster.*` to a plan: named placements of any flow whose acting stage and learning stages can be apart.

shared: all stages take turns on all devices. split: the stage that acts has the first half of the devices, the stages
that judge or learn the second, each to itself. mixed: acting has the first half, the others have all. Stages that need
no accelerator run on CPUs beside either.
"""

from __future__ import annotations

import os

import torch

from embodied.errors import ConfigurationError, suggest
from embodied.scheduler.flow import ACCELERATOR, Flow
from embodied.scheduler.options import ClusterConfig
from embodied.scheduler.plan import Plan, StagePlan


def named_plan(flow: Flow, cluster: ClusterConfig, device: str, *, acting: str, slots: int = 1) -> Plan:
    """The plan that `cluster` names. Raises ConfigurationError when it cannot be.

    device: that `cluster.device` means. acting: the stage that acts. slots: of stages that follow them.
    """
    _check_stages(flow, cluster)
    devices = _devices(cluster, device)
    first, second = _halves(cluster.placement, devices, acting)
    stages = {}
    for name, stage in flow.stages.items():
        on_accelerator = stage.needs == ACCELERATOR
        chosen = (first if name == acting else second) if on_accelerator else ["cpu"]
        count = cluster.workers.get(name, len(chosen) if on_accelerator else 1)
        placed = cluster.devices.get(name, tuple(chosen[i % len(chosen)] for i in range(count)))
        stages[name] = StagePlan(devices=tuple(placed), slots=slots if "slots" in stage.worker.follows else 1)
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


def _check_stages(flow: Flow, cluster: ClusterConfig) -> None:
    for table in ("workers", "devices"):
        for name, value in getattr(cluster, table).items():
            if name not in flow.stages:
                hint = suggest(name, flow.stages, noun="stages")
                raise ConfigurationError(f"cluster.{table} names a stage {name!r} that this recipe lacks. {hint}")
            if not value or (isinstance(value, int) and value < 1):
                raise ConfigurationError(f"cluster.{table}.{name} is {value!r}; a stage needs at least one worker")


def _devices(cluster: ClusterConfig, device: str) -> list[str]:
    """The devices that acting and learning are divided over."""
    if device == "cpu":
        # shares of the cores stand for devices; one share is the whole machine
        return ["cpu"] if cluster.placement == "shared" else ["cpu:0", "cpu:1"]
    if cluster.device != "auto":
        return [device]
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def _halves(placement: str, devices: list[str], acting: str) -> tuple[list[str], list[str]]:
    """Devices of the stage that acts, devices of the others."""
    if placement == "shared":
        return devices, devices
    if len(devices) < 2:
        raise ConfigurationError(
            f"cluster.placement={placement} divides devices between stage {acting} and those that learn, but there is "
            f"one ({devices[0]}); use shared, or cluster.device=auto with two GPUs or more"
        )
    if devices[0].startswith("cpu") and len(os.sched_getaffinity(0)) < 2:
        raise ConfigurationError(f"cluster.placement={placement} needs two cores or more; this machine has one")
    half = len(devices) // 2
    return devices[:half], devices if placement == "mixed" else devices[half:]
