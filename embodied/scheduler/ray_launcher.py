"""The Ray launcher: a process for every worker, on any node of a cluster. Ray makes processes and carries control
calls; items and weights go around it, through links.

Without `address` it starts a Ray of its own on this machine and ends it again, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import embodied.errors
from embodied.errors import ConfigurationError, EmbodiedError, WorkerDied, WorkerError
from embodied.scheduler.clocks import ClockOffset, aligned, measure
from embodied.scheduler.cluster import Node, Placed, place
from embodied.scheduler.flow import Flow
from embodied.scheduler.host import HostedWorker, Rendezvous, WorkerHost, describe_failure
from embodied.scheduler.launcher import Launcher, WorkerGroup
from embodied.scheduler.plan import Plan
from embodied.scheduler.preflight import NodeAnswer, NodeFacts, Probe, check_nodes
from embodied.scheduler.tasks import together
from embodied.scheduler.trace import write_spans
from embodied.scheduler.wiring import HostedEdge, Role, hosted_edges, needs_group, places_of, worker_name
from embodied.system.termination import sigterm_kept

log = logging.getLogger(__name__)

# Ray's own shared memory carries control messages only
_OBJECT_STORE_BYTES = 128 << 20
# as important as any other program: Ray would give workers the lowest priority but four, and on a machine that is busy
# they would not even be started within their deadlines
_OWN_RAY = {"worker_niceness": 0}
# devices are named by the plan; Ray is told not to hide them from a process that reserves none
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


_PULSE = "pulse"


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text; the cause of the exception raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _HostActor:
    """A WorkerHost as a Ray actor; failures travel as values, so that they arrive as they were."""

    def __init__(self, hosted: HostedWorker) -> None:
        self._host = WorkerHost(hosted)
        self._probe = Probe(ray.util.get_node_ip_address())

    async def do(self, method: str, *arguments: Any) -> tuple[bool, Any]:
        try:
            return True, await getattr(self._host, method)(*arguments)
        except Exception as error:  # whatever it is must reach the launcher
            return False, describe_failure(error)

    async def probe(self, method: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(self._probe, method), *arguments)

    async def now(self) -> float:
        return time.perf_counter()

    @ray.method(concurrency_group=_PULSE)
    async def pulse(self) -> None:
        """Answers also while an operation computes: the group has an event loop, and a thread, of its own."""

    async def facts(self) -> tuple[str, int, int]:
        """This process's node address, a free port on it, and its process id."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1], os.getpid()


class RayGroup(WorkerGroup):
    """Workers behind actors."""

    def __init__(self, stage: str, names: list[str], actors: list[Any], deadline: float) -> None:
        self.stage = stage
        self.size = len(actors)
        self.names = names
        self.actors = actors
        self.deadline = deadline
        self._started: set[int] = set()  # ranks whose processes have ever answered

    async def call_one(self, rank: int, operation: str, *arguments: Any) -> Any:
        """Run an operation on one worker."""
        return await self.host(rank, "run", operation, arguments)

    async def host(self, rank: int, method: str, *arguments: Any) -> Any:
        """Call the host's own method. It may take any time, but its process is asked for a sign of life after every
        `deadline` seconds. Raises WorkerDied where there is none."""
        reference = self.actors[rank].do.remote(method, *arguments)
        try:
            done, value = await self._watched(rank, reference, arguments[0] if method == "run" else method)
        except RayActorError as error:
            raise WorkerDied(
                f"the process of {self.names[rank]} died during {method} {arguments[:1]}: {_reason(error)}"
            ) from None
        except RayError as error:
            raise WorkerError(f"Ray lost {self.names[rank]} during {method}: {_reason(error)}") from None
        except asyncio.CancelledError:
            with contextlib.suppress(RayError):
                ray.cancel(reference)
            raise
        if done:
            return value
        name, message, trace = value
        kind = getattr(embodied.errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, EmbodiedError)):
            kind = WorkerError
            message = message if name == "WorkerError" else f"{self.names[rank]} failed in {method}: {name}: {message}"
        raise kind(message) from RemoteTraceback(trace)

    async def _watched(self, rank: int, reference: Any, operation: str) -> Any:
        """What `reference` comes to."""
        began = time.monotonic()
        answer = asyncio.ensure_future(reference)
        try:
            while not (await asyncio.wait({answer}, timeout=self.deadline))[0]:
                alive = await self.alive(rank)
                seconds = time.monotonic() - began
                if answer.done():
                    break
                if not alive and rank not in self._started:
                    # importing what a worker needs may take long, and Ray says so itself where a process cannot start
                    log.warning("the process of %s has been starting for %.0f s", self.names[rank], seconds)
                    continue
                if not alive:
                    raise WorkerDied(
                        f"{self.names[rank]} has been at {operation} for {seconds:.0f} s, and its process does not "
                        f"answer (asked for {_PULSE_SECONDS:g} s): it is stopped, or its node cannot be reached"
                    )
                log.warning("%s has been at %s for %.0f s; still alive", self.names[rank], operation, seconds)
            value = await answer
            self._started.add(rank)
            return value
        finally:
            answer.cancel()

    async def alive(self, rank: int) -> bool:
        """Whether the worker's process gives a sign of life within some seconds."""
        try:
            await asyncio.wait_for(self.actors[rank].pulse.remote(), _PULSE_SECONDS)
        except (RayActorError, TimeoutError):
            return False
        self._started.add(rank)
        return True

    async def hosts(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all hosts of the group."""
        return await together([self.host(rank, method, *arguments) for rank in range(self.size)])


class RayLauncher(Launcher):
    """Carries out a plan on a Ray cluster."""

    groups: dict[str, RayGroup]  # type: ignore[assignment]

    def __init__(
        self, flow: Flow, plan: Plan, *, seed: int, deadline: float, address: str | None = None, threads: int = 1
    ) -> None:
        flow.validate()
        plan.check(flow)
        self.flow, self.plan = flow, plan
        self.groups, self.announced = {}, {}
        self._seed, self._deadline, self._address, self._threads = seed, deadline, address, threads
        self._started_ray = False
        self._weight_edges: list[HostedEdge] = []
        self._placed: dict[str, list[Placed]] = {}
        self._facts: dict[str, NodeFacts] = {}  # by node id, where there are several
        self._clocks: dict[str, ClockOffset] = {}  # of other nodes, when the run began

    async def start(self) -> None:
        """Start or join Ray, make all hosts, join them."""
        self._start_ray()
        nodes = cluster_nodes()
        self._placed = placed = place(self.flow, self.plan, nodes)
        self._make_hosts(placed)
        if len(self._nodes()) > 1:
            await self._preflight(nodes)
        if needs_group(self.flow, placed):
            await self._meet(placed)
        await together([group.hosts("create") for group in self.groups.values()])
        await self._join(placed)

    def _start_ray(self) -> None:
        if ray.is_initialized():
            if self._address is not None:
                raise ConfigurationError("this process is connected to Ray already; leave cluster.address out")
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # that clusters authenticate by token is Ray's default; it says so in a warning at every start
        logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
        options: dict[str, Any] = {
            "include_dashboard": False,
            "logging_level": logging.WARNING,
            "namespace": "embodied",
        }
        try:
            with sigterm_kept():
                if self._address is not None:
                    ray.init(address=self._address, **{k: v for k, v in options.items() if k != "include_dashboard"})
                else:
                    # "local": one of its own, also where another run's Ray is on this machine
                    own = {"object_store_memory": _OBJECT_STORE_BYTES, "_system_config": _OWN_RAY}
                    ray.init(address="local", **own, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"reach the Ray cluster at {self._address}" if self._address else "start Ray on this machine"
            raise ConfigurationError(f"cannot {where}: {error}") from error
        self._started_ray = True

    def _make_hosts(self, placed: dict[str, list[Placed]]) -> None:
        actor = ray.remote(concurrency_groups={_PULSE: 1})(_HostActor)
        for name in self.flow.stages:
            actors, names = [], []
            for rank, spot in enumerate(placed[name]):
                hosted = self._hosted(name, rank, spot)
                options = {
                    "num_cpus": 0,
                    "max_concurrency": 1000,
                    "runtime_env": {"env_vars": _ENVIRONMENT},
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(spot.node.id, soft=False),
                }
                actors.append(actor.options(**options).remote(hosted))
                names.append(worker_name(name, rank))
            self.groups[name] = RayGroup(name, names, actors, self._deadline)

    def _hosted(self, name: str, rank: int, spot: Placed) -> HostedWorker:
        stage, plan = self.flow.stages[name], self.plan.stages[name]
        return HostedWorker(
            worker=stage.worker,
            options=stage.options,
            stage=name,
            rank=rank,
            world=len(plan.devices),
            device=spot.device,
            seed=self._seed,
            deadline=self._deadline,
            share=spot.share,
            threads=self._threads,
            granularity=plan.granularity,
            slots=plan.slots,
        )

    def _nodes(self) -> dict[str, Any]:
        """One of the run's processes on every node, by node id."""
        found: dict[str, Any] = {}
        for name, spots in self._placed.items():
            for actor, spot in zip(self.groups[name].actors, spots, strict=True):
                found.setdefault(spot.node.id, actor)
        return found

    async def _preflight(self, nodes: list[Node]) -> None:
        """Refuse nodes that do not fit together, and note how their clocks differ."""
        names = {node.id: f"node{i} ({node.address})" for i, node in enumerate(nodes)}
        voices = self._nodes()
        places = {}
        for node, actor in voices.items():
            try:
                self._facts[node] = await actor.probe.remote("facts")
                places[node] = (nodes[[n.id for n in nodes].index(node)].address, await actor.probe.remote("listen"))
            except RayError as error:
                raise ConfigurationError(f"{names[node]} cannot run this project: {_reason(error)}") from None
        answers = {}
        for node, actor in voices.items():
            others = {names[other]: place for other, place in places.items() if other != node}
            answers[names[node]] = NodeAnswer(self._facts[node], await actor.probe.remote("reach", others))
        await asyncio.gather(*(actor.probe.remote("close") for actor in voices.values()))
        check_nodes(Probe("127.0.0.1").facts(), answers)
        self._clocks = await self._measure_clocks()
        for node, clock in self._clocks.items():
            log.info("clock of %s: %+.4f s (+- %.4f)", names[node], clock.seconds, clock.error)

    async def _measure_clocks(self) -> dict[str, ClockOffset]:
        """Of every other node; processes of one node share its clock."""
        own = ray.get_runtime_context().get_node_id()
        return {node: await measure(actor.now.remote) for node, actor in self._nodes().items() if node != own}

    async def _meet(self, placed: dict[str, list[Placed]]) -> None:
        """One process group over all hosts, and one for every stage."""
        first = next(iter(self.groups.values()))
        address, port, _ = await first.actors[0].facts.remote()
        places = places_of(placed)
        count = sum(map(len, placed.values()))
        cuda = any(spot.device.startswith("cuda") for spots in placed.values() for spot in spots)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"

        def rendezvous(stage: str, rank: int) -> Rendezvous:
            facts = self._facts.get(placed[stage][rank].node.id)
            interface = None if facts is None else facts.interface
            return Rendezvous(address, port, places[stage][rank], count, places, backend, interface)

        await together(
            [
                group.host(rank, "meet", rendezvous(name, rank))
                for name, group in self.groups.items()
                for rank in range(group.size)
            ]
        )

    async def _join(self, placed: dict[str, list[Placed]]) -> None:
        edges = hosted_edges(self.flow, placed)
        self._weight_edges = [edge for edge in edges if edge.role is Role.WEIGHTS]
        used = sorted({transport.value for edge in edges for transport in edge.transports.values()})
        log.info("links between workers: %s", ", ".join(used))
        inputs = {name: [e for e in edges if e.stages[1] == name] for name in self.groups}
        outputs = {name: [e for e in edges if e.stages[0] == name] for name in self.groups}
        listening = {name: await group.hosts("listen", inputs[name]) for name, group in self.groups.items()}
        addresses = {
            (edge, producer, consumer): address
            for by_rank in listening.values()
            for consumer, own in enumerate(by_rank)
            for (edge, producer), address in own.items()
        }
        await together(
            [group.hosts("join", inputs[name], outputs[name], addresses) for name, group in self.groups.items()]
        )

    async def sync_weights(self, version: int) -> None:
        """Send every source's weights to all its targets."""
        for edge in self._weight_edges:
            source, target = edge.stages
            await together(
                [
                    self.groups[source].hosts("send_weights", edge.number, version),
                    self.groups[target].hosts("receive_weights", edge.number, version),
                ]
            )

    async def dead(self) -> list[str]:
        """Ask every process whether it is there; one that is stopped counts as gone."""
        places = [(group, rank) for group in self.groups.values() for rank in range(group.size)]
        answers = await asyncio.gather(*(group.alive(rank) for group, rank in places))
        return [group.names[rank] for (group, rank), there in zip(places, answers, strict=True) if not there]

    async def take_times(self) -> dict[tuple[str, str, str], float]:
        """From all hosts."""
        parts = await together([group.hosts("take_times") for group in self.groups.values()])
        return {key: seconds for part in parts for times in part for key, seconds in times.items()}

    async def write_trace(self, path: Path) -> None:
        """Write the spans of all hosts, by this process's clock."""
        after = await self._measure_clocks() if self._clocks else {}
        spans = []
        for name, group in self.groups.items():
            for own, spot in zip(await group.hosts("spans"), self._placed[name], strict=True):
                node = spot.node.id
                if node in after:
                    first, last = self._clocks[node], after[node]
                    own = [(*who, aligned(begin, first, last), aligned(end, first, last)) for *who, begin, end in own]
                spans += own
        write_spans(spans, path, {"clocks": {node: dataclasses.asdict(clock) for node, clock in after.items()}})

    async def stop(self, error: BaseException | None) -> None:
        """Close all workers, end their processes, and Ray if it was started here."""
        closing = {
            asyncio.create_task(group.host(rank, "close")): group.names[rank]
            for group in self.groups.values()
            for rank in range(group.size)
        }
        try:
            try:
                await self._see_closed(closing, error)
            finally:
                for task in closing:
                    task.cancel()
                await asyncio.gather(*closing, return_exceptions=True)
        finally:
            for group in self.groups.values():
                for actor in group.actors:
                    ray.kill(actor)
            if self._started_ray:
                await asyncio.shield(asyncio.to_thread(ray.shutdown))

    async def _see_closed(self, closing: dict[asyncio.Task[Any], str], error: BaseException | None) -> None:
        """Wait for all workers at once, and tell which did not close."""
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for task, name in closing.items():
            if not task.done():
                log.warning("%s has not closed within %g s; its process is killed", name, _CLOSE_SECONDS)
            elif (failure := task.exception()) and (error is None or not isinstance(failure, WorkerDied)):
                # told, but the run does not fail by it: its results are complete, or its error is another
                log.error("%s", failure, exc_info=None if isinstance(failure, WorkerDied) else failure)


_CLOSE_SECONDS = 20.0
# far more than a process needs that computes, or waits for its turn on a busy machine
_PULSE_SECONDS = 30.0


def cluster_nodes() -> list[Node]:
    """The nodes of the Ray cluster this process is connected to, in the order of their addresses, its own first."""
    own = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cores=int(node["Resources"].get("CPU", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda n: (n.id != own, n.address, n.id))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
