"""What a flow costs, as a file: time, memory, switching and transfer of every stage, and the cluster it may use.

A profile is data, measured or written by hand, validated strictly when it is read; planning needs nothing else, in
particular not the hardware. How the coefficients become seconds and bytes is in `costs.py`, how measurements become
coefficients in `fit.py`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from embodied.config import config, parse
from embodied.errors import ConfigurationError, suggest

Kind = Literal["cpu", "accelerator"]


def _at_least(record: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name} is {value}; it must be finite and at least {least}")


@config
class NodeGroup:
    """Equal nodes. speed: of its accelerators and cores relative to the profile's (2.0 halves every time).
    accelerator_memory_bytes: what stages may use of one accelerator. host_memory_bytes: of one node."""

    nodes: int = 1
    accelerators_per_node: int = 0
    cores_per_node: int = 1
    accelerator_memory_bytes: float = 0.0
    host_memory_bytes: Annotated[float, pydantic.AllowInfNan(True)] = math.inf
    speed: float = 1.0

    def __post_init__(self) -> None:
        _at_least(self, 1, "nodes")
        _at_least(self, 0, "accelerators_per_node", "cores_per_node", "accelerator_memory_bytes")
        if not self.speed > 0:
            raise ValueError(f"speed is {self.speed}; it must be above 0")
        if self.accelerators_per_node and not self.accelerator_memory_bytes:
            raise ValueError("accelerator_memory_bytes must be given for a group that has accelerators")

    def units(self, kind: Kind) -> int:
        """How many accelerators, or cores, the group has."""
        return self.nodes * (self.accelerators_per_node if kind == "accelerator" else self.cores_per_node)


@config
class Cluster:
    """Node groups by name."""

    groups: dict[str, NodeGroup]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a cluster needs at least one group of nodes")

    def resized(self, accelerators: int | None, nodes: int | None) -> Cluster:
        """This cluster with another number of accelerators or nodes; the rest of a node stays as it is. Raises
        ConfigurationError for more than one group, or accelerators that do not divide evenly among the nodes."""
        if accelerators is None and nodes is None:
            return self
        if len(self.groups) != 1:
            raise ConfigurationError(
                f"cluster.gpus and cluster.nodes resize a cluster of one group; this one has {', '.join(self.groups)}. "
                "Change the groups in the profile file"
            )
        ((name, group),) = self.groups.items()
        if accelerators is not None and not group.accelerators_per_node:
            raise ConfigurationError(
                f"cluster.gpus={accelerators} asks for accelerators, but the profile was made without any and does not "
                "know what stages cost on them; plan from a profile that does (--profile FILE)"
            )
        per_node = group.accelerators_per_node
        if nodes is None:
            nodes = max(1, -(-accelerators // per_node)) if per_node else 1
        if accelerators is not None:
            if nodes < 1 or accelerators < nodes or accelerators % nodes:
                near = [
                    n
                    for n in (accelerators // max(nodes, 1) * nodes, -(-accelerators // max(nodes, 1)) * nodes)
                    if n > 0
                ]
                raise ConfigurationError(
                    f"cluster.gpus={accelerators} cannot be divided evenly among cluster.nodes={nodes}. "
                    f"Nearest valid values of cluster.gpus: {', '.join(map(str, dict.fromkeys(near))) or 1}"
                )
            per_node = accelerators // nodes
        return Cluster(groups={name: dataclasses.replace(group, nodes=nodes, accelerators_per_node=per_node)})


@config
class Measurement:
    """One timing: `items` on `devices` took `seconds` on average over `repeats`, with this standard deviation."""

    items: int
    devices: int
    seconds: float
    deviation: float = 0.0
    repeats: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 1, "items", "devices", "repeats")
        _at_least(self, 0, "seconds", "deviation")


@config
class TimeModel:
    """Seconds of one call = fixed + per_item q + per_item_squared q^2 + per_doubling log2(replicas), where q is the
    share of the busiest replica, ceil(items / replicas). error: relative standard error of the fit (0.1: 10 %)."""

    fixed: float = 0.0
    per_item: float = 0.0
    per_item_squared: float = 0.0
    per_doubling: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, 0, "fixed", "per_item", "per_item_squared", "per_doubling", "error")


@config
class MemoryModel:
    """Bytes of one device. state_bytes: of one replica (replicated) or of all together (sharded), and item_state_bytes
    times the items of a replica (simulated environments): what stays when the stage is idle. working_bytes and
    item_bytes times the items of one call come on top while it runs; live_items: most items of a call in memory at once
    (a micro-batch, a cache's room); None keeps all of them."""

    state_bytes: float = 0.0
    state: Literal["replicated", "sharded"] = "replicated"
    working_bytes: float = 0.0
    item_bytes: float = 0.0
    item_state_bytes: float = 0.0
    live_items: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, 0, "state_bytes", "working_bytes", "item_bytes", "item_state_bytes", "live_items")


@config
class SwitchModel:
    """Seconds to unload and load a stage's state again: fixed_seconds + 2 x bytes of a device / bytes_per_second."""

    fixed_seconds: float = 0.0
    bytes_per_second: float = 20e9

    def __post_init__(self) -> None:
        _at_least(self, 0, "fixed_seconds")
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second is {self.bytes_per_second}; it must be above 0")


@config
class StageCost:
    """A stage's costs on one kind of resource.

    devices_per_replica: cores or accelerators that one replica takes (model parallelism). max_replicas: None for any.
    groups: node groups it may run on; None for all. switch: None when its state cannot be unloaded.
    measurements: what the time model was fitted to.
    """

    time: TimeModel
    memory: MemoryModel = dataclasses.field(default_factory=MemoryModel)
    switch: SwitchModel | None = None
    devices_per_replica: int = 1
    max_replicas: int | None = None
    groups: tuple[str, ...] | None = None
    measurements: tuple[Measurement, ...] = ()

    def __post_init__(self) -> None:
        _at_least(self, 1, "devices_per_replica", "max_replicas")
        if self.groups == ():
            raise ValueError("groups is empty: the stage could run nowhere; leave it out for all groups")


@config
class StageProfile:
    """One stage. items: of one iteration (of one round, in a cycle). on: its costs by kind of resource.

    max_pieces: in how many pieces an iteration's items may be handed on; 1 for a stage that needs them all together.
    arrivals: for a stage that nothing feeds, that works on all its items at once and hands on each as it finishes
    (generation): finish times of evenly spaced items as fractions of the whole, increasing to 1. Empty: piece by piece.
    pooled: its cores are processes of one worker a node (simulators). traced: share of its seconds that the spans of a
    run's trace show; the rest is what surrounds them (hand-overs, the event loop).
    """

    items: int
    on: dict[Kind, StageCost]
    max_pieces: int = 1
    arrivals: tuple[float, ...] = ()
    pooled: bool = False
    traced: float = 1.0

    def __post_init__(self) -> None:
        _at_least(self, 1, "items", "max_pieces")
        if not 0 <= self.traced <= 1:
            raise ValueError(f"traced is {self.traced}; it is a share, from 0 to 1")
        if not self.on:
            raise ValueError("on names no resource; give costs for cpu, accelerator or both")
        rising = all(a <= b for a, b in zip(self.arrivals, self.arrivals[1:], strict=False))
        if self.arrivals and not (rising and self.arrivals[0] >= 0 and self.arrivals[-1] == 1.0):
            raise ValueError("arrivals must rise from at least 0 to exactly 1.0")


@config
class EdgeProfile:
    """Data between two stages; handing on a piece takes latency_seconds + seconds_per_item x its items when they are on
    different devices, nothing when they share them."""

    source: str
    target: str
    latency_seconds: float = 0.0
    seconds_per_item: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, 0, "latency_seconds", "seconds_per_item")


@config
class WeightsProfile:
    """Weights from `source` to `target` once an iteration, when they are on different devices: `seconds`."""

    source: str
    target: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, 0, "seconds")


@config
class CycleProfile:
    """Stages that ask and answer in turn, in this order.

    rounds: turns of one epoch. epochs: of one iteration; as many pieces can be handed on without dividing the items.
    max_slots: most sub-batches served in turn; slot_counts: only these numbers of them (those that divide the items).
    unloads: which stages can be unloaded when the cycle has ended: all, or only those that share their device with no
    other stage of the cycle. lengths: rounds that items stay alive as fractions of `rounds`, increasing to 1, evenly
    spaced over the items; empty when all live to the end.
    """

    stages: tuple[str, ...]
    rounds: int
    epochs: int = 1
    max_slots: int = 4
    unloads: Literal["all", "apart"] = "all"
    lengths: tuple[float, ...] = ()
    slot_counts: tuple[int, ...] = ()

    def slots(self) -> tuple[int, ...]:
        """The numbers of slots there may be."""
        return self.slot_counts or tuple(range(1, self.max_slots + 1))

    def __post_init__(self) -> None:
        _at_least(self, 1, "rounds", "epochs", "max_slots")
        if any(count < 1 for count in self.slot_counts):
            raise ValueError(f"slot_counts is {list(self.slot_counts)}; each must be at least 1")
        if len(self.stages) < 2:
            raise ValueError(f"a cycle joins at least two stages; got {list(self.stages)}")
        rising = all(a <= b for a, b in zip(self.lengths, self.lengths[1:], strict=False))
        if self.lengths and not (rising and self.lengths[0] > 0 and self.lengths[-1] == 1.0):
            raise ValueError("lengths must rise from above 0 to exactly 1.0")


@config
class FlowProfile:
    """A flow with its costs. recipe, hardware and code say what it holds for; source and assumptions where the numbers
    come from. unit and amount: what an iteration yields, for throughputs ("environment steps", 20480)."""

    flow: str
    stages: dict[str, StageProfile]
    edges: tuple[EdgeProfile, ...]
    cluster: Cluster
    cycles: tuple[CycleProfile, ...] = ()
    weights: tuple[WeightsProfile, ...] = ()
    recipe: str = ""
    hardware: str = ""
    code: str = ""
    source: str = ""
    assumptions: tuple[str, ...] = ()
    unit: str = "items"
    amount: float = 1.0
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages is empty; a flow has at least one stage")
        _at_least(self, 0, "amount", "start_seconds")
        models = [cost.time for stage in self.stages.values() for cost in stage.on.values()]
        if not any(m.fixed + m.per_item + m.per_item_squared + m.per_doubling for m in models):
            raise ValueError("no stage takes any time; there is nothing to plan")
        for edge in self.edges:
            if edge.source == edge.target:
                raise ValueError(f"edge {edge.source} -> {edge.target} joins a stage with itself; leave it out")
        named = [(f"edge {e.source} -> {e.target}", n) for e in self.edges for n in (e.source, e.target)]
        named += [(f"weights {e.source} -> {e.target}", n) for e in self.weights for n in (e.source, e.target)]
        named += [(f"cycle {'+'.join(c.stages)}", n) for c in self.cycles for n in c.stages]
        for where, name in named:
            if name not in self.stages:
                raise ValueError(f"{where} names a stage {name!r}. " + suggest(name, self.stages, noun="stages"))
        inside = [name for cycle in self.cycles for name in cycle.stages]
        for name in inside:
            if inside.count(name) > 1:
                raise ValueError(f"stage {name!r} is in more than one cycle; join them into one")
        for name, stage in self.stages.items():
            for cost in stage.on.values():
                for group in cost.groups or ():
                    if group not in self.cluster.groups:
                        hint = suggest(group, self.cluster.groups, noun="groups")
                        raise ValueError(f"stage {name!r} is pinned to a node group {group!r}. {hint}")
            if stage.arrivals and name in inside:
                raise ValueError(f"stage {name!r} is in a cycle and cannot have arrivals; give the cycle lengths")

    def to_json(self) -> str:
        """Readable JSON without what is at its default; `load_profile` reads it."""
        return json.dumps(_compact(self), indent=2) + "\n"


def _compact(value: object) -> object:
    """Nested plain values of a record, without fields at their defaults."""
    if dataclasses.is_dataclass(value):
        fields = {}
        for field in dataclasses.fields(value):
            here = getattr(value, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if here != default:
                fields[field.name] = _compact(here)
        return fields
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_compact(item) for item in value]
    return value


def parse_profile(text: str, at: str) -> FlowProfile:
    """A profile from JSON text; `at` names it in messages. Raises ConfigurationError listing every fault."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the profile {at} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"the profile {at} is a {type(values).__name__}; expected an object with keys")
    try:
        return parse(FlowProfile, values)
    except ConfigurationError as error:
        raise ConfigurationError(f"the profile {at} is refused:\n{error}") from None


def load_profile(path: Path) -> FlowProfile:
    """Read and check a profile file. Raises ConfigurationError when it is missing or not as it should be."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigurationError(
            f"the profile {path} cannot be read: {error.strerror}; name an existing file"
        ) from None
    return parse_profile(text, str(path))
