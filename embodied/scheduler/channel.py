"""The channel: what waits for one consumer, as a bounded, keyed, first-in-first-out queue with rounds and groups.

Items of one key arrive in the order they were put; a reader of one key never sees another's items, and waits only for
its own. `end` marks the end of a producer's round: a reader of rounds stops once every producer has ended its own.
Members of a group become visible together, when the last of them has come. Every wait has a deadline whose message
names both sides.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from embodied.errors import ChannelClosed, CorrectnessAlarm, DeadlineExceeded, WorkerDied
from embodied.scheduler.trace import WAIT, Trace

# (producer, units, weight): told when a consumer is done with what it took; a unit is an item or a whole group
Receipt = Callable[[str, int, float], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Arrival:
    """An item on its way to its consumer.

    round: counts its producer's rounds. weight: what it costs, in any unit (tokens). members: of the group that `key`
    names, 1 for an item by itself. left: members of the group that come right after this one.
    """

    producer: str
    round: int
    key: Hashable
    item: Any
    weight: float = 1.0
    members: int = 1
    left: int = 0


def check_kind(item: Any, kind: type, channel: str, producer: str) -> None:
    """Raise TypeError unless `item`, put by `producer`, is of the channel's kind."""
    if not isinstance(item, kind):
        raise TypeError(f"channel {channel} carries {kind.__name__}, but {producer} put a {type(item).__name__}")


class Channel:
    """A queue with named producers and one named consumer.

    Args:
        name: for messages, e.g. "env.questions -> policy.questions".
        producers, consumer: names of the workers at either end.
        kind: the type every item must have.
        capacity: items that may wait; a put beyond that waits (back-pressure). Members of a group count once it is
            complete, so that a group larger than the capacity cannot stop the channel.
        deadline: seconds a single wait may take.
    """

    def __init__(
        self,
        name: str,
        producers: list[str],
        consumer: str,
        kind: type,
        *,
        capacity: int,
        deadline: float,
        trace: Trace,
    ) -> None:
        self.name = name
        self.producers = producers
        self.consumer = consumer
        self.kind = kind
        self.capacity = capacity
        self.deadline = deadline
        self.trace = trace
        self.closed: BaseException | None = None
        self.receipt: Receipt | None = None
        self._arrivals: list[Arrival] = []
        self._forming: dict[tuple[int, Hashable], list[Arrival]] = {}  # groups that are not complete, by round and key
        self._ended = dict.fromkeys(producers, 0)  # rounds that each producer has ended
        self._round = 0  # of the reader
        self._taken: dict[str, tuple[int, float]] = {}  # by producer, units and weight the consumer is busy with
        self._changed = asyncio.Condition()
        self._last_put: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    async def put(self, item: Any, key: Hashable, producer: str, weight: float = 1.0, members: int = 1) -> None:
        """Append `item` to the queue of `key`, waiting while the channel is full; see Arrival."""
        check_kind(item, self.kind, self.name, producer)
        async with self._changed:
            if len(self._arrivals) >= self.capacity:
                await self._wait(
                    lambda: len(self._arrivals) < self.capacity, producer, "to put an item", [self.consumer]
                )
            self._check_open(producer)
            arrival = Arrival(producer, self._ended[producer], key, item, weight, members)
            self._arrivals += [arrival] if members == 1 else self._join_group(arrival)
            self._last_put[producer] = time.perf_counter()
            self._changed.notify_all()

    async def get(self, key: Hashable) -> Any:
        """The oldest item of `key`, of whichever round."""
        async with self._changed:
            await self._settle()
            if self._find(key) is None:
                what = f"for an item of key {key!r}"
                await self._wait(lambda: self._find(key) is not None, self.consumer, what, self.producers)
            self._check_open(self.consumer)
            found = self._find(key)
            assert found is not None
            return self._take(found).item

    async def next(self, *, whole: bool = False) -> list[Arrival] | None:
        """The oldest arrival of this round, of any key; None once every producer has ended the round and all has been
        taken. Raises CorrectnessAlarm when a group is still incomplete then.

        What a producer puts after its end belongs to its next round and waits for it. whole: with all other members of
        its group, at once.
        """
        async with self._changed:
            await self._settle()
            if self._first_of_round() is None and (missing := self._not_ended()):
                await self._wait(
                    lambda: self._first_of_round() is not None or not self._not_ended(),
                    self.consumer,
                    "for an item",
                    missing,
                )
            self._check_open(self.consumer)
            found = self._first_of_round()
            if found is not None:
                count = self._arrivals[found].left + 1 if whole else 1
                return [self._take(found) for _ in range(count)]
            self._check_groups()
            self._round += 1
            return None

    async def end(self, producer: str) -> None:
        """This producer puts nothing more in this round."""
        async with self._changed:
            self._ended[producer] += 1
            self._changed.notify_all()

    async def close(self, reason: BaseException) -> None:
        """Wake everyone who waits: they get ChannelClosed (WorkerDied if that is why) with `reason` as its cause."""
        async with self._changed:
            self.closed = reason
            self._changed.notify_all()

    def _join_group(self, arrival: Arrival) -> list[Arrival]:
        """All members in the order of their producers once `arrival` completes its group; nothing before."""
        group = self._forming.setdefault((arrival.round, arrival.key), [])
        if group and group[0].members != arrival.members:
            raise ValueError(
                f"{arrival.producer} put one of {arrival.members} members of group {arrival.key!r} on channel "
                f"{self.name}, but {group[0].producer} said that it has {group[0].members}; all must say the same"
            )
        group.append(arrival)
        if len(group) < arrival.members:
            return []
        del self._forming[arrival.round, arrival.key]
        group.sort(key=lambda a: self.producers.index(a.producer))
        return [dataclasses.replace(a, left=len(group) - 1 - i) for i, a in enumerate(group)]

    def _check_groups(self) -> None:
        for (number, key), group in self._forming.items():
            if number == self._round:
                raise CorrectnessAlarm(
                    f"group {key!r} has {len(group)} of {group[0].members} members at the end of the round on channel "
                    f"{self.name}, from {', '.join(sorted({a.producer for a in group}))}; every member must be put "
                    "before the end, and to the same consumer (Route.KEY where several producers have members)"
                )

    def _find(self, key: Hashable) -> int | None:
        """Where the oldest item of `key` is."""
        return next((i for i, a in enumerate(self._arrivals) if a.key == key), None)

    def _first_of_round(self) -> int | None:
        return next((i for i, a in enumerate(self._arrivals) if a.round == self._round), None)

    def _not_ended(self) -> list[str]:
        return [p for p, rounds in self._ended.items() if rounds <= self._round]

    def _take(self, index: int) -> Arrival:
        arrival = self._arrivals.pop(index)
        if self.receipt is not None:
            units, weight = self._taken.get(arrival.producer, (0, 0.0))
            self._taken[arrival.producer] = (units + (arrival.left == 0), weight + arrival.weight)
        self._changed.notify_all()
        return arrival

    async def _settle(self) -> None:
        """Who comes back for more is done with what it took before."""
        if self.receipt is not None:
            taken, self._taken = self._taken, {}
            for producer, (units, weight) in taken.items():
                await self.receipt(producer, units, weight)

    def _check_open(self, who: str) -> None:
        if self.closed is not None:
            kind = WorkerDied if isinstance(self.closed, WorkerDied) else ChannelClosed
            raise kind(f"channel {self.name} was closed while {who} used it: {self.closed}") from self.closed

    async def _wait(self, condition: Callable[[], bool], who: str, what: str, others: list[str]) -> None:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(self.deadline):
                await self._changed.wait_for(lambda: self.closed is not None or condition())
        except TimeoutError:
            heard = {p: f"{time.perf_counter() - t:.0f} s ago" for p, t in self._last_put.items()}
            forming = collections.Counter(f"{len(g)} of {g[0].members}" for g in self._forming.values())
            groups = f"; groups with members missing: {dict(forming)}" if forming else ""
            raise DeadlineExceeded(
                f"{who} waited {self.deadline:g} s {what} on channel {self.name} for {', '.join(others) or 'nobody'}; "
                f"{len(self)} of {self.capacity} items are under way{groups}; "
                f"last item from each producer: {heard or 'never'}. "
                "Look at what that worker was doing, or raise cluster.deadline_seconds if it is only slow."
            ) from None
        finally:
            self.trace.add(who, f"wait {what}", WAIT, begin, time.perf_counter())
