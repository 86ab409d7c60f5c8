"""Leases: who occupies a device. Stages that share one take turns, and those that may not stay bring their state along.

A turn takes the devices of all its stages at once, in one fixed order, and the stages of a cycle take them together; a
stage is only ever waited for by stages later in the data's order, so turns cannot wait for each other in a circle. A
stage whose state is not resident is loaded when its turn begins and unloaded when another stage needs the device:
turns of one stage after another cost nothing. Turns on different devices never meet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from embodied.scheduler.plan import Plan


class Leases:
    """The devices of a plan.

    load, unload: bring the state of all workers of a stage onto its devices, and off them.
    """

    def __init__(
        self, plan: Plan, load: Callable[[str], Awaitable[None]], unload: Callable[[str], Awaitable[None]]
    ) -> None:
        self._plan = plan
        self._load, self._unload = load, unload
        devices = sorted({device for stage in plan.stages.values() for device in stage.devices})
        self._locks = {device: asyncio.Lock() for device in devices}
        self._moving = {name: asyncio.Lock() for name in plan.stages}
        self._away: set[str] = set()  # stages whose state is off their devices

    @property
    def away(self) -> frozenset[str]:
        """The stages that are unloaded."""
        return frozenset(self._away)

    @contextlib.asynccontextmanager
    async def turn(self, *stages: str) -> AsyncIterator[None]:
        """Have the devices of `stages`, with their state on them, for the time of the block."""
        devices = sorted({device for stage in stages for device in self._plan.stages[stage].devices})
        async with contextlib.AsyncExitStack() as held:
            for device in devices:
                await held.enter_async_context(self._locks[device])
            for name, placed in self._plan.stages.items():
                in_the_way = name not in stages and not placed.resident and set(placed.devices) & set(devices)
                if in_the_way:
                    await self._send_away(name)
            for name in stages:
                if name in self._away:
                    await self._load(name)
                    self._away.discard(name)
            yield

    async def _send_away(self, stage: str) -> None:
        # a stage on two devices may be in the way of two turns at once
        async with self._moving[stage]:
            if stage not in self._away:
                await self._unload(stage)
                self._away.add(stage)
