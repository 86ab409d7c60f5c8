"""What measuring a recipe's stages takes, whatever they are: clocks that wait for the device, memory peaks, and the
machine as the planner knows it. What is timed, and how it divides among stages, is the workload's affair.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Collection

import psutil
import torch

from embodied.scheduler.launcher import WorkerGroup
from embodied.scheduler.options import ClusterConfig
from embodied.scheduler.planner.profile import Cluster, Measurement, NodeGroup
from embodied.scheduler.trace import BUSY

REPEATS = 4  # measured iterations of every size, after one that warms up
ROOM = 0.9  # share of a GPU's memory that stages may use; the rest is the driver's and fragmentation's


def in_this_process(cluster: ClusterConfig) -> ClusterConfig:
    """The cluster with all workers in this process, on the device that it names."""
    return dataclasses.replace(
        cluster, plan=None, launcher="inline", placement="shared", workers={}, devices={}, address=None
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def this_machine(device: str, every_gpu: bool) -> Cluster:
    """What stages that were measured on `device` may use here. every_gpu: not only the one that was measured."""
    on_gpu = device.startswith("cuda")
    gpus = torch.cuda.device_count() if every_gpu else 1
    group = NodeGroup(
        accelerators_per_node=gpus if on_gpu else 0,
        cores_per_node=cores(),
        accelerator_memory_bytes=ROOM * torch.cuda.get_device_properties(device).total_memory if on_gpu else 0.0,
        host_memory_bytes=float(psutil.virtual_memory().total),
    )
    return Cluster(groups={"local": group})


def wait_for(device: str) -> None:
    """Return when the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


class MemoryWatch:
    """Peaks of a GPU's memory between two points; nothing on CPUs."""

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._before = 0

    def begin(self) -> None:
        """The first point."""
        if self._device:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)

    def end(self) -> int:
        """The second: most bytes that were allocated on top of what was there at the first."""
        return torch.cuda.max_memory_allocated(self._device) - self._before if self._device else 0


async def unloading(group: WorkerGroup, device: str) -> tuple[float, int]:
    """Seconds to take a stage's state off a GPU and back, and the bytes that this frees (or that the stage says it
    would, if they are more: some may be kept for reuse)."""
    size = (await group.call("memory"))[0]
    wait_for(device)
    before, began = torch.cuda.memory_allocated(device), time.perf_counter()
    await group.call("unload")
    wait_for(device)
    freed = before - torch.cuda.memory_allocated(device)
    await group.call("load")
    wait_for(device)
    return time.perf_counter() - began, max(size, freed)


def busy(spent: dict[tuple[str, str, str], float], stage: str, once: Collection[str] = ()) -> float:
    """Seconds that a stage's spans show, but for those named in `once` (its set-up)."""
    return sum(
        seconds
        for (worker, name, category), seconds in spent.items()
        if worker.startswith(f"{stage}[") and category == BUSY and name not in once
    )


def measurement(items: int, devices: int, seconds: list[float]) -> Measurement:
    """The median of the iterations, so that one disturbed by another program does not count."""
    deviation = statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    return Measurement(
        items=items, devices=devices, seconds=statistics.median(seconds), deviation=deviation, repeats=len(seconds)
    )


def share(shown: list[list[float]], whole: list[list[float]]) -> float:
    """What share of a stage's time its spans show; between 0 and 1."""
    return min(1.0, sum(map(sum, shown)) / sum(map(sum, whole)))
