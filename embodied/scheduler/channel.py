"""The channel: what waits for one consumer, as a bounded, keyed, first-in-first-out queue; and the ways into it.

Items of one key arrive in the order they were put; a reader of one key never sees another's items, and waits only for
its own. `end` marks the end of a round: iterating a receiver stops once every producer has ended its round. Every wait
has a deadline whose message names both sides.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Hashable
from typing import Any, Protocol

from embodied.errors import ChannelClosed, DeadlineExceeded
from embodied.scheduler.routing import Route, Router
from embodied.scheduler.trace import WAIT, Trace

_END = object()


@dataclasses.dataclass(frozen=True)
class _Arrival:
    """An item, or the end of a round, and who it is from."""

    producer: str
    key: Hashable
    item: Any


class Channel:
    """A queue with named producers and consumers.

    Args:
        name: for messages, e.g. "env.observations -> policy.observations".
        producers, consumers: names of the workers at either end.
        kind: the type every item must have.
        capacity: items that may be under way; a put beyond that waits (back-pressure).
        deadline: seconds a single wait may take.
    """

    def __init__(
        self,
        name: str,
        producers: list[str],
        consumers: list[str],
        kind: type,
        *,
        capacity: int,
        deadline: float,
        trace: Trace,
    ) -> None:
        self.name = name
        self.producers = producers
        self.consumers = consumers
        self.kind = kind
        self.capacity = capacity
        self.deadline = deadline
        self.trace = trace
        self.closed: BaseException | None = None
        self._arrivals: list[_Arrival] = []  # in order, ends of rounds among them
        self._count = 0  # items among them
        self._ended: set[str] = set()  # producers whose end the reader of the current round has passed
        self._changed = asyncio.Condition()
        self._last_put: dict[str, float] = {}

    def __len__(self) -> int:
        return self._count

    async def put(self, item: Any, key: Hashable, producer: str) -> None:
        """Append `item` to the queue of `key`, waiting while the channel is full."""
        if not isinstance(item, self.kind):
            raise TypeError(
                f"channel {self.name} carries {self.kind.__name__}, but {producer} put a {type(item).__name__}"
            )
        async with self._changed:
            if self._count >= self.capacity:
                await self._wait(lambda: self._count < self.capacity, producer, "to put an item", self.consumers)
            self._check_open(producer)
            self._arrivals.append(_Arrival(producer, key, item))
            self._count += 1
            self._last_put[producer] = time.perf_counter()
            self._changed.notify_all()

    async def get(self, key: Hashable, consumer: str) -> Any:
        """The oldest item of `key`."""
        async with self._changed:
            if self._find(key) is None:
                what = f"for an item of key {key!r}"
                await self._wait(lambda: self._find(key) is not None, consumer, what, self.producers)
            self._check_open(consumer)
            found = self._find(key)
            assert found is not None
            return self._take(found).item

    async def get_any(self, consumer: str) -> tuple[Hashable, Any] | None:
        """The oldest item of this round, of any key, with its key; None once every producer has ended the round.

        What a producer puts after its end belongs to its next round and waits for it.
        """
        async with self._changed:
            while True:
                found = self._first_of_round()
                if found is None and len(self._ended) < len(self.producers):
                    waiting_for = [p for p in self.producers if p not in self._ended]
                    await self._wait(lambda: self._first_of_round() is not None, consumer, "for an item", waiting_for)
                    found = self._first_of_round()
                self._check_open(consumer)
                if found is None:
                    self._ended.clear()
                    return None
                arrival = self._take(found)
                if arrival.item is not _END:
                    return arrival.key, arrival.item
                self._ended.add(arrival.producer)

    async def end(self, producer: str) -> None:
        """This producer puts nothing more in this round."""
        async with self._changed:
            self._arrivals.append(_Arrival(producer, None, _END))
            self._changed.notify_all()

    async def drain(self) -> list[Any]:
        """Remove and return everything under way, in order of arrival, and forget who ended the round."""
        async with self._changed:
            items = [arrival.item for arrival in self._arrivals if arrival.item is not _END]
            self._arrivals.clear()
            self._ended.clear()
            self._count = 0
            self._changed.notify_all()
        return items

    async def close(self, reason: BaseException) -> None:
        """Wake everyone who waits: they get ChannelClosed with `reason` as its cause."""
        async with self._changed:
            self.closed = reason
            self._changed.notify_all()

    def _find(self, key: Hashable) -> int | None:
        """Where the oldest item of `key` is."""
        return next((i for i, a in enumerate(self._arrivals) if a.item is not _END and a.key == key), None)

    def _first_of_round(self) -> int | None:
        """Where the oldest arrival is whose producer is still in the current round."""
        return next((i for i, a in enumerate(self._arrivals) if a.producer not in self._ended), None)

    def _take(self, index: int) -> _Arrival:
        arrival = self._arrivals.pop(index)
        if arrival.item is not _END:
            self._count -= 1
            self._changed.notify_all()
        return arrival

    def _check_open(self, who: str) -> None:
        if self.closed is not None:
            raise ChannelClosed(f"channel {self.name} was closed while {who} used it: {self.closed}") from self.closed

    async def _wait(self, condition: Any, who: str, what: str, others: list[str]) -> None:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(self.deadline):
                await self._changed.wait_for(lambda: self.closed is not None or condition())
        except TimeoutError:
            heard = {p: f"{time.perf_counter() - t:.0f} s ago" for p, t in self._last_put.items()}
            raise DeadlineExceeded(
                f"{who} waited {self.deadline:g} s {what} on channel {self.name} for {', '.join(others) or 'nobody'}; "
                f"{self._count} of {self.capacity} items are under way; "
                f"last item from each producer: {heard or 'never'}. "
                "Look at what that worker was doing, or raise cluster.deadline_seconds if it is only slow."
            ) from None
        finally:
            self.trace.add(who, f"wait {what}", WAIT, begin, time.perf_counter())


class Lane(Protocol):
    """The way from one producer to one consumer."""

    async def put(self, item: Any, key: Hashable) -> None:
        """Hand `item` on, waiting while there is no room."""

    async def end(self) -> None:
        """Say that this round is over for this producer."""


class InProcessLane:
    """A lane within one process: items pass by reference."""

    def __init__(self, channel: Channel, producer: str) -> None:
        self._channel = channel
        self._producer = producer

    async def put(self, item: Any, key: Hashable) -> None:
        """Append to the consumer's channel."""
        await self._channel.put(item, key, self._producer)

    async def end(self) -> None:
        """End the round on the consumer's channel."""
        await self._channel.end(self._producer)


class Fan:
    """One producer's lanes to all consumers of one edge, and the rule that chooses among them."""

    def __init__(self, lanes: list[Lane], route: Route, producer: int, producers: int) -> None:
        self._lanes = lanes
        self._route = route
        self._router = Router(route, producer, producers, len(lanes))

    async def put(self, item: Any, key: Hashable) -> None:
        """To the consumer of `key`; under SPLIT each consumer's part to each."""
        if self._route is Route.SPLIT and len(self._lanes) > 1:
            for index, lane in enumerate(self._lanes):
                await lane.put(item.part(index, len(self._lanes)), key)
        else:
            chosen = 0 if self._route is Route.SPLIT else self._router.consumer(key)
            await self._lanes[chosen].put(item, key)

    async def end(self) -> None:
        """Every consumer counts every producer's end, whether it got anything or not."""
        for lane in self._lanes:
            await lane.end()


class Sender:
    """A producer's end of an output: a fan for each edge that starts there."""

    def __init__(self, fans: list[Fan]) -> None:
        self._fans = fans

    async def put(self, item: Any, key: Hashable = 0) -> None:
        """Hand `item` on, waiting while a channel is full."""
        for fan in self._fans:
            await fan.put(item, key)

    async def end(self) -> None:
        """Say that this round is over for this producer."""
        for fan in self._fans:
            await fan.end()


class Receiver:
    """A consumer's end of its channel."""

    def __init__(self, channel: Channel, consumer: str) -> None:
        self._channel = channel
        self._consumer = consumer

    async def get(self, key: Hashable = 0) -> Any:
        """The oldest item of `key`."""
        return await self._channel.get(key, self._consumer)

    async def __aiter__(self) -> AsyncIterator[tuple[Hashable, Any]]:
        """(key, item) in order of arrival until every producer has ended the round."""
        while (entry := await self._channel.get_any(self._consumer)) is not None:
            yield entry
