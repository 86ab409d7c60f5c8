"""Collecting and learning, in turn or overlapped: how far acting may run ahead of learning.

With `max_staleness` 0 an iteration collects with the newest weights and then learns: the synchronous algorithm. With
s > 0 a rollout may begin while up to s updates are still outstanding, so that simulators and policy work while the
learner does; every sample says which weights drew it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

Collected = TypeVar("Collected")
Learnt = TypeVar("Learnt")


@dataclasses.dataclass(frozen=True)
class Iteration(Generic[Collected, Learnt]):
    """What one iteration collected and learnt, and the seconds each took (they overlap where staleness is allowed)."""

    collected: Collected
    learnt: Learnt
    rollout_seconds: float
    learn_seconds: float


async def iterations(
    first: int,
    count: int,
    max_staleness: int,
    collect: Callable[[int], Awaitable[Collected]],
    learn: Callable[[int], Awaitable[Learnt]],
    publish: Callable[[], Awaitable[None]],
) -> AsyncIterator[Iteration[Collected, Learnt]]:
    """Iterations `first` to `first + count - 1`, in order; none is under way before the first and after the last.

    collect(i): act for one rollout and hand it on. learn(i): improve the weights with it. publish: let the newest
    weights act; never called during `collect` or `learn`. The weights that act in iteration i lie at most
    `max_staleness` updates behind those that learn from it.
    """
    if max_staleness == 0:
        for i in range(first, first + count):
            began = time.perf_counter()
            collected = await collect(i)
            between = time.perf_counter()
            learnt = await learn(i)
            after = time.perf_counter()
            await publish()
            yield Iteration(collected, learnt, between - began, after - between)
        return
    learning = asyncio.Lock()
    finished = asyncio.Semaphore(0)  # updates done, for the collector to wait on
    rollouts: asyncio.Queue[tuple[Collected, float]] = asyncio.Queue()

    async def collector() -> None:
        published = done = 0
        for k in range(count):
            while done < k - max_staleness:
                await finished.acquire()
                done += 1
            while not finished.locked():
                await finished.acquire()
                done += 1
            # newer weights act from here on; an update under way is waited for only if older ones may act no longer
            if done > published and (published < k - max_staleness or not learning.locked()):
                async with learning:
                    await publish()
                published = done
            began = time.perf_counter()
            collected = await collect(first + k)
            await rollouts.put((collected, time.perf_counter() - began))

    task = asyncio.create_task(collector())
    try:
        for k in range(count):
            next_rollout = asyncio.create_task(rollouts.get())
            await asyncio.wait({task, next_rollout}, return_when=asyncio.FIRST_COMPLETED)
            if not next_rollout.done():
                next_rollout.cancel()
                await task  # it failed: raise why
            collected, rollout_seconds = await next_rollout
            async with learning:
                began = time.perf_counter()
                learnt = await learn(first + k)
                seconds = time.perf_counter() - began
            finished.release()
            yield Iteration(collected, learnt, rollout_seconds, seconds)
        await task
        await publish()
    finally:
        task.cancel()
