"""The macro flow: which stages exist and what passes between them. Nothing here says where or when they run.

flow = Flow("embodied")
env = flow.stage("env", EnvWorker, env_options, scales_with="environments", needs=CPU)
policy = flow.stage("policy", PolicyWorker, policy_options, scales_with="observations", needs=ACCELERATOR)
flow.edge(env.observations, policy.observations)
flow.edge(policy.decisions, env.decisions)
flow.weights(learner, policy)
"""

from __future__ import annotations

import dataclasses
from typing import Any

from embodied.errors import ConfigurationError, suggest
from embodied.scheduler.routing import Route
from embodied.scheduler.worker import Input, Output, Port, Worker, ports_of

CPU = "cpu"
ACCELERATOR = "accelerator"

MANY = 1024  # items that may wait where a flow does not say; enough not to hold anyone back by accident
_AHEAD = 2  # with Route.READY: one in the consumer's hands and one to go on with


@dataclasses.dataclass(frozen=True)
class StagePort:
    """A port of a stage, as an end of an edge."""

    stage: str
    port: Port

    def __str__(self) -> str:
        return f"{self.stage}.{self.port.name}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """One kind of work: a worker class with its options.

    scales_with: what its cost grows with ("environments", "samples"), for the cost model. needs: CPU or ACCELERATOR.
    """

    name: str
    worker: type[Worker]
    options: Any
    scales_with: str
    needs: str

    def __getattr__(self, name: str) -> StagePort:
        ports = ports_of(self.worker, Port)
        if name not in ports:
            raise AttributeError(f"stage {self.name!r} has no port {name!r}. " + suggest(name, ports, noun="ports"))
        return StagePort(self.name, ports[name])


@dataclasses.dataclass(frozen=True)
class Edge:
    """Items pass from an output to an input.

    capacity: how many may wait for a consumer; with Route.READY, how many (items or groups) each producer may have with
    a consumer at once, in its hands included. route: which consumer.
    """

    source: StagePort
    target: StagePort
    capacity: int
    route: Route

    @property
    def ahead(self) -> int | None:
        """Units that a producer may have with a consumer at once; None: as many as fit into the channel."""
        return self.capacity if self.route is Route.READY else None

    @property
    def room(self) -> int:
        """Items that may wait in a consumer's channel."""
        return MANY if self.route is Route.READY else self.capacity

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclasses.dataclass(frozen=True)
class WeightEdge:
    """The target acts with the weights the source trains.

    apart: the target keeps a copy even within one process, because it acts while the source learns.
    """

    source: str
    target: str
    apart: bool = False


class Flow:
    """A graph of stages joined by data edges and weight edges."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stages: dict[str, Stage] = {}
        self.edges: list[Edge] = []
        self.weight_edges: list[WeightEdge] = []

    def stage(
        self, name: str, worker: type[Worker], options: Any = None, *, scales_with: str, needs: str = CPU
    ) -> Stage:
        """Declare a stage. Raises ConfigurationError for a second stage of the same name."""
        if name in self.stages:
            raise ConfigurationError(f"flow {self.name!r} already has a stage {name!r}; give every stage its own name")
        if needs not in (CPU, ACCELERATOR):
            raise ConfigurationError(f"stage {name!r} needs {needs!r}. " + suggest(needs, (CPU, ACCELERATOR)))
        self.stages[name] = Stage(name, worker, options, scales_with, needs)
        return self.stages[name]

    def edge(
        self, source: StagePort, target: StagePort, *, capacity: int | None = None, route: Route = Route.SPREAD
    ) -> None:
        """Join an output to an input of the same type; see Edge. Without `capacity`: 1024, and 2 for Route.READY."""
        if not isinstance(source.port, Output) or not isinstance(target.port, Input):
            raise ConfigurationError(f"an edge goes from an Output to an Input; got {source} -> {target}")
        if not issubclass(source.port.kind, target.port.kind):
            raise ConfigurationError(
                f"edge {source} -> {target}: the output hands on {source.port.kind.__name__}, "
                f"the input takes {target.port.kind.__name__}"
            )
        if any(edge.target == target for edge in self.edges):
            raise ConfigurationError(f"input {target} already has an edge; an input reads one channel")
        if capacity is None:
            capacity = _AHEAD if route is Route.READY else MANY
        if capacity < 1:
            raise ConfigurationError(f"edge {source} -> {target} has capacity {capacity}; at least one item must fit")
        self.edges.append(Edge(source, target, capacity, route))

    def weights(self, source: Stage, target: Stage, *, apart: bool = False) -> None:
        """Declare that `target` acts with the weights of `source`; see WeightEdge."""
        self.weight_edges.append(WeightEdge(source.name, target.name, apart))

    def validate(self) -> None:
        """Raise ConfigurationError unless every input of every stage is connected."""
        connected = {(edge.target.stage, edge.target.port.name) for edge in self.edges}
        missing = [
            f"{stage.name}.{port}"
            for stage in self.stages.values()
            for port in ports_of(stage.worker, Input)
            if (stage.name, port) not in connected
        ]
        if missing:
            raise ConfigurationError(
                f"flow {self.name!r}: nothing feeds {', '.join(missing)}; add an edge for each input"
            )

    def levels(self) -> list[list[str]]:
        """Stages in the order data passes, those of one cycle together: a topological order of the strongly
        connected components (Tarjan 1972), each sorted by declaration."""
        successors: dict[str, list[str]] = {name: [] for name in self.stages}
        for edge in self.edges:
            successors[edge.source.stage].append(edge.target.stage)
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        components: list[list[str]] = []

        def visit(node: str) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            for other in successors[node]:
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in stack:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                component = set()
                while node not in component:
                    component.add(stack.pop())
                components.append([name for name in self.stages if name in component])

        for name in self.stages:
            if name not in index:
                visit(name)
        return components[::-1]
