"""The micro flow as a value: where each stage runs, in how many processes, pieces and slots.

A plan is data: it is chosen, printed, saved as `plan.json`, edited and given back; launchers carry it out exactly.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal

from embodied.config import config, parse
from embodied.errors import ConfigurationError, suggest
from embodied.scheduler.flow import ACCELERATOR, Flow


@config
class StagePlan:
    """One stage's placement.

    devices: where its workers are, one worker each, in rank order; see `scheduler.cluster`.
    granularity: items handed on at once; None hands on everything at the end of the round.
    slots: sub-batches served in turn. resident: device state stays on the device between the stage's turns.
    processes: of its own that each worker spreads its items over (simulators); 0: it works in the worker's process;
    None: as the stage's options say.
    """

    devices: tuple[str, ...]
    granularity: int | None = None
    slots: int = 1
    resident: bool = True
    processes: int | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("a stage needs at least one device")
        if self.slots < 1 or (self.granularity is not None and self.granularity < 1):
            raise ValueError(f"slots={self.slots} and granularity={self.granularity} must be at least 1")
        if self.processes is not None and self.processes < 0:
            raise ValueError(f"processes is {self.processes}; it must be at least 0, or null")


@config
class Plan:
    """A flow's placement: the launcher and every stage's plan, with the reason it was chosen."""

    flow: str
    launcher: Literal["inline", "ray"]
    stages: dict[str, StagePlan]
    why: str = ""

    def to_json(self) -> str:
        """Readable JSON; `from_json` is its inverse."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """The plan of a file. Raises ConfigurationError when it cannot be read or is not as a plan should be."""
        try:
            return cls.from_json(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the plan {path} cannot be read: {error}; name a file that `embodied plan --output` wrote"
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises ConfigurationError naming what is not as a plan should be."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"the plan is not JSON: {error}") from None
        return parse(cls, values, at="plan")

    def check(self, flow: Flow) -> None:
        """Raise ConfigurationError unless this plan places exactly the stages of `flow`, and asks nothing of them that
        their workers do not follow."""
        if self.flow != flow.name:
            raise ConfigurationError(f"the plan is for flow {self.flow!r}, but the flow to run is {flow.name!r}")
        for name in self.stages:
            if name not in flow.stages:
                raise ConfigurationError(
                    f"the plan places a stage {name!r}. " + suggest(name, flow.stages, noun="stages")
                )
        missing = [name for name in flow.stages if name not in self.stages]
        if missing:
            raise ConfigurationError(f"the plan does not place stage(s) {', '.join(missing)} of flow {flow.name!r}")
        for name, placed in self.stages.items():
            worker = flow.stages[name].worker
            asked = {
                "granularity": placed.granularity is not None,
                "slots": placed.slots > 1,
                "processes": placed.processes is not None,
            }
            for field in [field for field, wanted in asked.items() if wanted and field not in worker.follows]:
                raise ConfigurationError(
                    f"the plan gives stage {name} {field}={getattr(placed, field)}, but its {worker.__name__} works on "
                    f"a round as a whole and cannot follow {field}; leave it out of the plan"
                )


def single_device_plan(flow: Flow, device: str, slots: int) -> Plan:
    """Every stage in this process; stages that need an accelerator on `device`, the others on the CPU."""
    stages = {
        name: StagePlan(
            devices=(device if stage.needs == ACCELERATOR else "cpu",),
            slots=slots if "slots" in stage.worker.follows else 1,
        )
        for name, stage in flow.stages.items()
    }
    why = "one device: all workers run as coroutines of one process and share their weights"
    return Plan(flow=flow.name, launcher="inline", stages=stages, why=why)


def fit_memory(plan: Plan, sizes: dict[str, list[int]], budget: int) -> Plan:
    """The plan with stages swapping on every device whose stages need more than `budget` bytes of state together.

    sizes: bytes of every worker's state, by stage and rank. Raises ConfigurationError where one worker needs more.
    """
    per_device: dict[str, dict[str, int]] = {}
    for name, stage in plan.stages.items():
        for device, size in zip(stage.devices, sizes[name], strict=True):
            per_device.setdefault(device, {}).setdefault(name, 0)
            per_device[device][name] += size
    swapping: set[str] = set()
    for device, needs in per_device.items():
        for name, size in needs.items():
            if size > budget:
                raise ConfigurationError(
                    f"stage {name} alone keeps {size / 2**20:.1f} MiB of state on {device}, more than the budget of "
                    f"{budget / 2**20:.1f} MiB; raise cluster.memory_mib, use LoRA, or give the stage more devices"
                )
        if sum(needs.values()) > budget:
            swapping |= {name for name, size in needs.items() if size}
    stages = {n: dataclasses.replace(s, resident=s.resident and n not in swapping) for n, s in plan.stages.items()}
    return dataclasses.replace(plan, stages=stages)
