"""What a run sees of a launcher, whichever it is: groups of workers whose operations it calls.

A launcher carries out a plan: it makes the workers where the plan says, joins their ports, sets them up in the order of
the flow's stages, carries weights along weight edges, and frees everything at the end, also after a failure.
"""

from __future__ import annotations

import abc
import contextlib
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError, WorkerError
from embodied.scheduler.flow import Flow
from embodied.scheduler.lease import Leases
from embodied.scheduler.plan import Plan, fit_memory
from embodied.scheduler.tasks import together
from embodied.scheduler.worker import Worker


class WorkerGroup(abc.ABC):
    """The workers of one stage."""

    stage: str
    size: int

    @abc.abstractmethod
    async def call_one(self, rank: int, operation: str, *arguments: Any) -> Any:
        """Run `operation(*arguments)` on one worker. Raises what it raises; an unexpected exception as WorkerError that
        names the worker."""

    async def call(self, operation: str, *arguments: Any) -> list[Any]:
        """Run an operation on all workers at once; results in rank order."""
        return await together([self.call_one(rank, operation, *arguments) for rank in range(self.size)])

    async def scatter(self, operation: str, arguments: list[Any]) -> list[Any]:
        """Run an operation on all workers at once, each with its own argument."""
        return await together([self.call_one(rank, operation, arguments[rank]) for rank in range(self.size)])


class Launcher(abc.ABC):
    """`async with SomeLauncher(flow, plan, ...) as system`."""

    flow: Flow
    plan: Plan
    groups: dict[str, WorkerGroup]
    announced: dict[str, Any]
    leases: Leases

    async def __aenter__(self) -> Launcher:
        try:
            await self.start()
            for name, group in self.groups.items():
                self.announced[name] = (await group.call("setup", self.announced))[0]
            await self.set_residency(None)
        except BaseException as error:
            await self.stop(error)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.stop(error)

    def group(self, stage: str) -> WorkerGroup:
        """The workers of `stage`."""
        return self.groups[stage]

    async def set_residency(self, budget: int | None) -> list[str]:
        """Decide which stages' state may stay on its devices between turns; returns those that may not.

        budget: bytes of state that a device may hold while its stages work. Where the stages of a device need more
        together, they swap (the plan then says so); both ends of a weight edge are there while weights go over. None
        keeps the plan. Raises ConfigurationError where one stage alone needs more.
        """
        if budget is not None:
            sizes = {name: await group.call("memory") for name, group in self.groups.items()}
            self.plan = fit_memory(self.plan, sizes, budget)
        self.leases = Leases(self.plan, self._load, self._unload)
        return [name for name, stage in self.plan.stages.items() if not stage.resident]

    def turn(self, *stages: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Have the devices of `stages`, with their state on them, for the time of a block."""
        return self.leases.turn(*stages)

    async def _load(self, stage: str) -> None:
        await self.groups[stage].call("load")

    async def _unload(self, stage: str) -> None:
        await self.groups[stage].call("unload")

    async def together(self, *operations: Coroutine[Any, Any, list[Any]]) -> list[list[Any]]:
        """Run several groups' operations at once; the first failure cancels the others and is raised."""
        return await together(operations)

    @abc.abstractmethod
    async def start(self) -> None:
        """Make the workers and join their ports."""

    @abc.abstractmethod
    async def stop(self, error: BaseException | None) -> None:
        """Close channels and all workers; `error` is why, if something failed: it is not to be hidden by a worker that
        fails to close. Safe after a partial start."""

    @abc.abstractmethod
    async def sync_weights(self, version: int) -> None:
        """Carry weights along every weight edge."""

    async def dead(self) -> list[str]:
        """Names of the workers whose process is gone."""
        return []

    @abc.abstractmethod
    async def take_times(self) -> dict[tuple[str, str, str], float]:
        """Seconds per (worker, what, category) of all workers since the last call."""

    @abc.abstractmethod
    async def write_trace(self, path: Path) -> None:
        """Write the newest spans of all workers as one trace file."""


async def run_operation(worker: Worker, operation: str, arguments: tuple[Any, ...]) -> Any:
    """Call a worker's method, asynchronous or not; an unexpected failure becomes a WorkerError that names the worker,
    with the cause chained."""
    try:
        result = getattr(worker, operation)(*arguments)
        return await result if inspect.isawaitable(result) else result
    except EmbodiedError:
        raise
    except Exception as error:
        raise WorkerError(f"{worker.name} failed in {operation}: {type(error).__name__}: {error}") from error
