"""The inline launcher: all workers as coroutines of this process, so that a debugger and a profiler see everything.

Items pass by reference, weights are shared tensors. The first failure cancels everyone else and is raised with the
worker's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from embodied.errors import EmbodiedError, WorkerError
from embodied.scheduler.channel import Channel, Receiver, Sender
from embodied.scheduler.flow import Flow
from embodied.scheduler.plan import Plan
from embodied.scheduler.tasks import together
from embodied.scheduler.trace import Trace
from embodied.scheduler.worker import Worker, WorkerContext


class WorkerGroup:
    """The workers of one stage; an operation called on the group runs on all of them at once."""

    def __init__(self, stage: str, workers: list[Worker]) -> None:
        self.stage = stage
        self.workers = workers

    async def call(self, operation: str, *arguments: Any) -> list[Any]:
        """Run `operation(*arguments)` on every worker; results in rank order."""
        return await together([_named(w, operation, getattr(w, operation)(*arguments)) for w in self.workers])


class InlineLauncher:
    """Carries out a plan in this process: `async with InlineLauncher(flow, plan, ...) as system`."""

    def __init__(self, flow: Flow, plan: Plan, *, seed: int, deadline: float) -> None:
        flow.validate()
        plan.check(flow)
        self.flow = flow
        self.plan = plan
        self.trace = Trace()
        self._seed = seed
        self._deadline = deadline
        self._channels: list[Channel] = []
        self.groups: dict[str, WorkerGroup] = {}

    async def __aenter__(self) -> InlineLauncher:
        for name, stage in self.flow.stages.items():
            placed = self.plan.stages[name]
            workers = []
            for rank, device in enumerate(placed.devices):
                context = WorkerContext(
                    name, rank, len(placed.devices), device, placed.slots, self._seed, self.trace, self._deadline
                )
                workers.append(stage.worker(context, stage.options))
            self.groups[name] = WorkerGroup(name, workers)
        self._connect()
        try:
            announced: dict[str, Any] = {}
            for name, group in self.groups.items():
                announced[name] = (await group.call("setup", announced))[0]
        except BaseException:
            await self._close_workers()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for channel in self._channels:
            await channel.close(error or asyncio.CancelledError("the run is over"))
        await self._close_workers()

    def group(self, stage: str) -> WorkerGroup:
        """The workers of `stage`."""
        return self.groups[stage]

    async def together(self, *operations: Coroutine[Any, Any, list[Any]]) -> list[list[Any]]:
        """Run several groups' operations at once; the first failure cancels the others and is raised."""
        return await together(operations)

    async def sync_weights(self, version: int) -> None:
        """Carry weights along every weight edge; within one process the tensors are shared, so nothing is copied."""
        for edge in self.flow.weight_edges:
            weights = self.groups[edge.source].workers[0].weights()
            for worker in self.groups[edge.target].workers:
                worker.adopt_weights(weights, version)

    async def drain(self) -> int:
        """Drop whatever is under way after an abandoned round; returns how many items that was."""
        return sum([len(await channel.drain()) for channel in self._channels])

    def _connect(self) -> None:
        outgoing: dict[tuple[str, str], list[Channel]] = {}
        for edge in self.flow.edges:
            producers = [w.name for w in self.groups[edge.source.stage].workers]
            consumers = self.groups[edge.target.stage].workers
            channel = Channel(
                str(edge),
                producers,
                [w.name for w in consumers],
                edge.target.port.kind,
                capacity=edge.capacity,
                deadline=self._deadline,
                trace=self.trace,
            )
            self._channels.append(channel)
            outgoing.setdefault((edge.source.stage, edge.source.port.name), []).append(channel)
            for worker in consumers:
                worker.ports[edge.target.port.name] = Receiver(channel, worker.name)
        for (stage, port), channels in outgoing.items():
            for worker in self.groups[stage].workers:
                worker.ports[port] = Sender(channels, worker.name)

    async def _close_workers(self) -> None:
        for group in self.groups.values():
            for worker in group.workers:
                await worker.close()


async def _named(worker: Worker, operation: str, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`; an unexpected failure is raised as a WorkerError that names the worker, with the cause chained."""
    try:
        return await work
    except (EmbodiedError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise WorkerError(f"{worker.name} failed in {operation}: {type(error).__name__}: {error}") from error
