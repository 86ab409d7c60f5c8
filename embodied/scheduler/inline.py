"""The inline launcher: all workers as coroutines of this process, so that a debugger and a profiler see everything.

Items pass by reference and weights are shared tensors.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from embodied.errors import ConfigurationError
from embodied.scheduler.channel import Channel
from embodied.scheduler.flow import Edge, Flow
from embodied.scheduler.launcher import Launcher, WorkerGroup, run_operation
from embodied.scheduler.plan import Plan
from embodied.scheduler.ports import Fan, InProcessLane, Ledger, Receiver, Sender
from embodied.scheduler.trace import Trace
from embodied.scheduler.weights import Bucket, store
from embodied.scheduler.worker import Worker, WorkerContext

log = logging.getLogger(__name__)


class InlineGroup(WorkerGroup):
    """Workers of this process."""

    def __init__(self, stage: str, workers: list[Worker]) -> None:
        self.stage = stage
        self.size = len(workers)
        self.workers = workers

    async def call_one(self, rank: int, operation: str, *arguments: Any) -> Any:
        """Run an operation on one worker."""
        return await run_operation(self.workers[rank], operation, arguments)


class InlineLauncher(Launcher):
    """Carries out a plan in this process."""

    groups: dict[str, InlineGroup]  # type: ignore[assignment]

    def __init__(self, flow: Flow, plan: Plan, *, seed: int, deadline: float) -> None:
        flow.validate()
        plan.check(flow)
        self.flow, self.plan = flow, plan
        self.groups, self.announced = {}, {}
        self.trace = Trace()
        self._seed, self._deadline = seed, deadline
        self._channels: list[Channel] = []
        self._sharing = False
        for name, stage in flow.stages.items():
            if stage.worker.collective and len(plan.stages[name].devices) > 1:
                raise ConfigurationError(
                    f"stage {name} has {len(plan.stages[name].devices)} workers that act as one; they need "
                    "processes of their own: cluster.launcher=ray"
                )

    async def start(self) -> None:
        """Make all workers and channels."""
        for name, stage in self.flow.stages.items():
            placed = self.plan.stages[name]
            workers = []
            for rank, device in enumerate(placed.devices):
                world = len(placed.devices)
                context = WorkerContext(
                    name,
                    rank,
                    world,
                    device,
                    self._seed,
                    self.trace,
                    self._deadline,
                    granularity=placed.granularity,
                    slots=placed.slots,
                )
                workers.append(stage.worker(context, stage.options))
            self.groups[name] = InlineGroup(name, workers)
        fans: dict[tuple[str, str], list[Fan]] = {}
        for edge in self.flow.edges:
            self._join(edge, fans)

    def _join(self, edge: Edge, fans: dict[tuple[str, str], list[Fan]]) -> None:
        """Make an edge's channels, one for each consumer; `fans` collects those of every output, by worker and port."""
        sources, targets = self.groups[edge.source.stage].workers, self.groups[edge.target.stage].workers
        names = [worker.name for worker in sources]
        channels = []
        for worker in targets:
            channel = Channel(
                str(edge),
                names,
                worker.name,
                edge.target.port.kind,
                capacity=edge.room,
                deadline=self._deadline,
                trace=self.trace,
            )
            worker.ports[edge.target.port.name] = Receiver(channel, worker.context.granularity)
            channels.append(channel)
        self._channels += channels
        ledgers = self._ledgers(edge, names, channels)
        for rank, worker in enumerate(sources):
            fan = Fan(
                [InProcessLane(channel, worker.name) for channel in channels],
                edge.route,
                rank,
                len(sources),
                granularity=worker.context.granularity,
                ledger=ledgers.get(worker.name),
            )
            fans.setdefault((worker.name, edge.source.port.name), []).append(fan)
            worker.ports[edge.source.port.name] = Sender(fans[worker.name, edge.source.port.name])

    def _ledgers(self, edge: Edge, producers: list[str], channels: list[Channel]) -> dict[str, Ledger]:
        """Every producer's, where the edge hands items to whoever is free."""
        if edge.ahead is None or len(channels) == 1:
            return {}
        consumers = [channel.consumer for channel in channels]
        options = {"ahead": edge.ahead, "deadline": self._deadline, "trace": self.trace}
        ledgers = {name: Ledger(str(edge), name, consumers, **options) for name in producers}
        for rank, channel in enumerate(channels):

            async def settle(producer: str, units: int, weight: float, rank: int = rank) -> None:
                await ledgers[producer].settle(rank, units, weight)

            channel.receipt = settle
        return ledgers

    async def stop(self, error: BaseException | None) -> None:
        """Wake whoever still waits, then close the workers. Where nothing failed before, the first failure to close is
        raised, after all were closed."""
        for channel in self._channels:
            await channel.close(error or asyncio.CancelledError("the run is over"))
        failed: list[Exception] = []
        for worker in [worker for group in self.groups.values() for worker in group.workers]:
            try:
                await run_operation(worker, "close", ())
            except Exception as failure:
                if error is not None or failed:
                    log.error("%s", failure, exc_info=failure)
                failed.append(failure)
        if failed and error is None:
            raise failed[0]

    async def sync_weights(self, version: int) -> None:
        """Within one process the tensors are shared, once, and nothing is copied unless the edge keeps them apart, or
        one of its stages leaves the device: it must not take the other's tensors along."""
        for edge in self.flow.weight_edges:
            apart = edge.apart or not all(self.plan.stages[name].resident for name in (edge.source, edge.target))
            for worker in self.groups[edge.target].workers:
                weights = self.groups[edge.source].workers[0].weights()
                if apart:
                    store(Bucket(version, weights, None), worker.weights())
                elif not self._sharing:
                    worker.share_weights(weights)
                worker.weights_changed(version)
        self._sharing = True

    async def take_times(self) -> dict[tuple[str, str, str], float]:
        """From the one trace of this process."""
        return self.trace.take_totals()

    async def write_trace(self, path: Path) -> None:
        """Write the one trace of this process."""
        self.trace.write(path)
