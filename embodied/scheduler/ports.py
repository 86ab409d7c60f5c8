"""What a worker holds of its channels: a sender for each output, a receiver for each input.

A sender's fan has a lane to every consumer and a rule that chooses among them; a receiver hands items on one by one, by
complete groups, or in batches of the stage's granularity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, Protocol

from embodied.errors import CorrectnessAlarm, DeadlineExceeded
from embodied.scheduler.channel import Channel
from embodied.scheduler.routing import Route, Router
from embodied.scheduler.trace import WAIT, Trace


class Lane(Protocol):
    """The way from one producer to one consumer."""

    async def put(self, item: Any, key: Hashable, weight: float, members: int) -> None:
        """Hand `item` on, waiting while there is no room."""

    async def end(self) -> None:
        """Say that this round is over for this producer."""


class InProcessLane:
    """A lane within one process: items pass by reference."""

    def __init__(self, channel: Channel, producer: str) -> None:
        self._channel = channel
        self._producer = producer

    async def put(self, item: Any, key: Hashable, weight: float, members: int) -> None:
        """Append to the consumer's channel."""
        await self._channel.put(item, key, self._producer, weight, members)

    async def end(self) -> None:
        """End the round on the consumer's channel."""
        await self._channel.end(self._producer)


class Ledger:
    """What one producer has handed to each consumer and not heard back about: who is free is who has least.

    Args:
        edge, producer, consumers: names, for messages.
        ahead: units (items, or whole groups) that a consumer may have at once; 1 hands to idle consumers only.
    """

    def __init__(
        self, edge: str, producer: str, consumers: list[str], *, ahead: int, deadline: float, trace: Trace
    ) -> None:
        self._edge, self._producer, self._consumers = edge, producer, consumers
        self._ahead, self._deadline, self._trace = ahead, deadline, trace
        self._units = [0] * len(consumers)
        self._weight = [0.0] * len(consumers)
        self._given = [0] * len(consumers)
        self._changed = asyncio.Condition()

    async def choose(self, weight: float) -> int:
        """The free consumer with the least weight before it, charged with one unit of `weight`; waits until one is
        free. Raises DeadlineExceeded."""
        async with self._changed:
            if not self._free():
                await self._wait()
            chosen = min(self._free(), key=lambda c: (self._weight[c], self._units[c], self._given[c]))
            self._units[chosen] += 1
            self._weight[chosen] += weight
            self._given[chosen] += 1
            return chosen

    async def settle(self, consumer: int, units: int, weight: float) -> None:
        """`consumer` is done with so much."""
        async with self._changed:
            self._units[consumer] -= units
            # sums of other orders: what is nothing must be exactly nothing
            self._weight[consumer] = self._weight[consumer] - weight if self._units[consumer] else 0.0
            self._changed.notify_all()

    def _free(self) -> list[int]:
        return [c for c, units in enumerate(self._units) if units < self._ahead]

    async def _wait(self) -> None:
        begin = time.perf_counter()
        what = "for a free consumer"
        try:
            async with asyncio.timeout(self._deadline):
                await self._changed.wait_for(self._free)
        except TimeoutError:
            has = ", ".join(f"{name} has {n}" for name, n in zip(self._consumers, self._units, strict=True))
            raise DeadlineExceeded(
                f"{self._producer} waited {self._deadline:g} s {what} on {self._edge}: {has} of at most {self._ahead} "
                "at once, and none came back for more. Look at what those workers were doing, or raise "
                "cluster.deadline_seconds if they are only slow."
            ) from None
        finally:
            self._trace.add(self._producer, f"wait {what}", WAIT, begin, time.perf_counter())


class Fan:
    """One producer's lanes to all consumers of one edge, and the rule that chooses among them.

    Args:
        granularity: an item that offers `pieces(size)` is handed on in pieces of so many; None: whole.
        ledger: for Route.READY among several consumers.
    """

    def __init__(
        self,
        lanes: list[Lane],
        route: Route,
        producer: int,
        producers: int,
        *,
        granularity: int | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._lanes = lanes
        self._route = route
        self._producer, self._producers = producer, producers
        self._granularity = granularity
        self._ledger = ledger
        self._router = Router(route, producer, producers, len(lanes))
        self._groups: dict[Hashable, list[tuple[Any, float]]] = {}  # held until complete, for Route.READY

    async def put(self, item: Any, key: Hashable, weight: float | None, members: int) -> None:
        """To the consumer that the route chooses; under SPLIT each consumer's part to each."""
        if self._route is Route.SPLIT:
            for index, lane in enumerate(self._lanes):
                part = item.part(index, len(self._lanes)) if len(self._lanes) > 1 else item
                for piece in self._pieces(part):
                    await lane.put(piece, key, 1.0, members)
            return
        for piece in self._pieces(item):
            if self._ledger is not None:
                await self._put_ready(piece, key, 1.0 if weight is None else weight, members)
            else:
                lane = self._lanes[self._router.consumer(key, weight)]
                await lane.put(piece, key, 1.0 if weight is None else weight, members)

    def _pieces(self, item: Any) -> list[Any]:
        if self._granularity is None or not hasattr(item, "pieces"):
            return [item]
        return item.pieces(self._granularity)

    async def _put_ready(self, item: Any, key: Hashable, weight: float, members: int) -> None:
        assert self._ledger is not None
        group = [(item, weight)]
        if members > 1:  # a group goes to one consumer: whoever is free once it is complete
            group = self._groups.setdefault(key, [])
            group.append((item, weight))
            if len(group) < members:
                return
            del self._groups[key]
        lane = self._lanes[await self._ledger.choose(sum(w for _, w in group))]
        for member, its_weight in group:
            await lane.put(member, key, its_weight, members)

    async def end(self) -> None:
        """Every consumer counts every producer's end, whether it got anything or not."""
        if self._groups:
            key, group = next(iter(self._groups.items()))
            raise CorrectnessAlarm(
                f"group {key!r} has only {len(group)} member(s) at the end of the round; with Route.READY one producer "
                "puts all members of a group (use Route.KEY where several producers have some)"
            )
        self._router = Router(self._route, self._producer, self._producers, len(self._lanes))
        for lane in self._lanes:
            await lane.end()


class Sender:
    """A producer's end of an output: a fan for each edge that starts there."""

    def __init__(self, fans: list[Fan]) -> None:
        self._fans = fans

    async def put(self, item: Any, key: Hashable = 0, *, weight: float | None = None, members: int = 1) -> None:
        """Hand `item` on, waiting while a channel is full.

        weight: what the item costs its consumer, in any unit (tokens); consumers are then balanced by weight instead
        of by number. members: the item is one of so many that `key` names together; they arrive together.
        """
        for fan in self._fans:
            await fan.put(item, key, weight, members)

    async def end(self) -> None:
        """Say that this round is over for this producer."""
        for fan in self._fans:
            await fan.end()


class Receiver:
    """A consumer's end of its channel.

    granularity: of the consumer's stage, in items; None takes all of a round at once.
    """

    def __init__(self, channel: Channel, granularity: int | None = None) -> None:
        self._channel = channel
        self._granularity = granularity

    async def get(self, key: Hashable = 0) -> Any:
        """The oldest item of `key`."""
        return await self._channel.get(key)

    async def __aiter__(self) -> AsyncIterator[tuple[Hashable, Any]]:
        """(key, item) in order of arrival until every producer has ended the round."""
        while (arrivals := await self._channel.next()) is not None:
            yield arrivals[0].key, arrivals[0].item

    async def groups(self) -> AsyncIterator[tuple[Hashable, list[Any]]]:
        """(key, members) of every group, in the order in which they became complete, until the round has ended;
        members are in the order of their producers' ranks. An item put by itself is a group of one."""
        while (arrivals := await self._channel.next(whole=True)) is not None:
            yield arrivals[0].key, [arrival.item for arrival in arrivals]

    async def batches(self, size: Callable[[Any], float] | None = None) -> AsyncIterator[list[tuple[Hashable, Any]]]:
        """Batches of (key, item) of at least the stage's granularity, until the round has ended; the last may be
        smaller. Groups stay whole.

        size: how many of the stage's items one that arrives stands for; without it, one.
        """
        batch: list[tuple[Hashable, Any]] = []
        held = 0.0
        while (arrivals := await self._channel.next(whole=True)) is not None:
            batch += [(arrival.key, arrival.item) for arrival in arrivals]
            held += len(arrivals) if size is None else sum(size(arrival.item) for arrival in arrivals)
            if self._granularity is not None and held >= self._granularity:
                yield batch
                batch, held = [], 0.0
        if batch:
            yield batch
