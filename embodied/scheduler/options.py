"""Where a run may take place: the `cluster` section of every recipe."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from embodied.config import config
from embodied.errors import ConfigurationError, suggest


@config
class ClusterConfig:
    """device: where acting and learning happen; auto takes every GPU there is, else the CPU.
    launcher: inline runs all workers in this process, ray gives each its own; auto is inline on one device.
    address: of a running Ray cluster ("auto" finds it); None starts Ray on this machine when it is needed.
    placement: shared, split or mixed; see docs/scheduler.md. workers: how many, by stage. devices: which, by stage, one
    a worker, instead of the placement's.
    plan: a plan.json that says all of this, or auto: found by the planner from a measured profile. It also sets slots
    and simulator processes. A launcher beside a file has to be the file's. None: launcher, placement, workers and
    devices say it.
    memory_mib: state (weights, optimiser) that a device may hold at once; above it stages swap. None: no limit.
    restarts: how often a run starts its workers again, from its latest checkpoint, after the process of one has died.
    threads: of the tensor library in every process that computes, at most the cores that a worker is pinned to; sums
    may round differently with another number. deadline_seconds: how long any single wait may take before it is an
    error."""

    device: str = "auto"
    launcher: Literal["auto", "inline", "ray"] = "auto"
    address: str | None = None
    placement: Literal["shared", "split", "mixed"] = "shared"
    workers: dict[str, int] = dataclasses.field(default_factory=dict)
    devices: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    plan: str | None = None
    memory_mib: float | None = None
    restarts: int = 3
    threads: int = 1
    deadline_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.threads < 1 or self.restarts < 0:
            raise ValueError(f"threads is {self.threads}, restarts {self.restarts}; expected at least 1 and at least 0")
        if self.deadline_seconds <= 0 or (self.memory_mib is not None and self.memory_mib <= 0):
            raise ValueError("deadline_seconds and memory_mib must be above 0 (memory_mib may be null)")
        if self.plan is not None:
            named = {"placement": "shared", "workers": {}, "devices": {}}
            named |= {"launcher": "auto"} if self.plan == "auto" else {}
            both = [f"cluster.{name}" for name, unset in named.items() if getattr(self, name) != unset]
            if both:
                raise ValueError(
                    f"cluster.plan={self.plan} says where everything runs, and so do {', '.join(both)}; leave one out"
                )


def resolve_device(wanted: str) -> str:
    """The torch device that `wanted` means on this machine. Raises ConfigurationError when it does not exist."""
    gpus = torch.cuda.device_count()
    valid = ["auto", "cpu", *(["cuda"] if gpus else []), *(f"cuda:{i}" for i in range(gpus))]
    if wanted not in valid:
        raise ConfigurationError(
            f"the device {wanted!r} does not exist here. " + suggest(wanted, valid, noun="devices")
        )
    return ("cuda:0" if gpus else "cpu") if wanted == "auto" else wanted
