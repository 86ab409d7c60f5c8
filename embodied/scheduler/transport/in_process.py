"""A link within one process: items pass by reference, nothing is copied.

Producer and consumer share what is sent, as the coroutines of one process always do; neither may change it in place
while the other uses it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Hashable
from typing import Any

from embodied.scheduler.transport.link import Ends, Incoming, Outgoing

DEFAULT_CAPACITY = 64  # items


class _Shared:
    """The queue between the two ends. Waiting coroutines are woken through their own loop, threads by the condition."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: collections.deque[tuple[Hashable, Any]] = collections.deque()
        self.closed_by = ""
        self.changed = threading.Condition()
        self.sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def announce(self) -> None:
        """Wake everyone; the caller holds `changed`."""
        self.changed.notify_all()
        for loop, woken in self.sleepers:
            loop.call_soon_threadsafe(lambda woken=woken: woken.done() or woken.set_result(None))
        self.sleepers.clear()


class _InProcessEnd:
    ends: Ends
    stats: Any

    def __init__(self, shared: _Shared, deadline: float) -> None:
        self._shared = shared
        self._deadline = deadline

    def _check(self, begin: float, what: str) -> float:
        left = begin + self._deadline - time.perf_counter()
        if left <= 0:
            state = f"same process, {len(self._shared.items)} of {self._shared.capacity} items under way"
            raise self.ends.deadline(self._deadline, what, state)
        return left

    def _run(self, step: Any, what: str) -> Any:
        begin = time.perf_counter()
        with self._shared.changed:
            while (done := step()) is None:
                self._shared.changed.wait(self._check(begin, what))
        self.stats.waited += time.perf_counter() - begin
        return done

    async def _run_async(self, step: Any, what: str) -> Any:
        begin = time.perf_counter()
        loop = asyncio.get_running_loop()
        while True:
            with self._shared.changed:
                if (done := step()) is not None:
                    break
                left = self._check(begin, what)
                sleeper = (loop, loop.create_future())
                self._shared.sleepers.append(sleeper)
            try:
                await asyncio.wait((sleeper[1],), timeout=left)
            finally:
                with self._shared.changed, contextlib.suppress(ValueError):  # not there any more if it was woken
                    self._shared.sleepers.remove(sleeper)
        self.stats.waited += time.perf_counter() - begin
        return done

    def close(self) -> None:
        """Say that this end is done; safe to call twice. What was sent before can still be received."""
        with self._shared.changed:
            self._shared.closed_by = self._shared.closed_by or self.ends.here
            self._shared.announce()


class InProcessOutgoing(_InProcessEnd, Outgoing):
    """The producer's end; made by `pair`."""

    def __init__(self, ends: Ends, shared: _Shared, deadline: float) -> None:
        Outgoing.__init__(self, ends)
        _InProcessEnd.__init__(self, shared, deadline)

    def send(self, item: Any, key: Hashable = 0) -> None:
        self._run(lambda: self._put(item, key), f"to send to {self.ends.there}")

    async def send_async(self, item: Any, key: Hashable = 0) -> None:
        await self._run_async(lambda: self._put(item, key), f"to send to {self.ends.there}")

    def _put(self, item: Any, key: Hashable) -> bool | None:
        if self._shared.closed_by:
            raise self.ends.closed(self._shared.closed_by)
        if len(self._shared.items) >= self._shared.capacity:
            return None
        self._shared.items.append((key, item))
        self._shared.announce()
        self.stats.items += 1
        return True


class InProcessIncoming(_InProcessEnd, Incoming):
    """The consumer's end; made by `pair`."""

    def __init__(self, ends: Ends, shared: _Shared, deadline: float) -> None:
        Incoming.__init__(self, ends)
        _InProcessEnd.__init__(self, shared, deadline)

    def recv(self) -> tuple[Hashable, Any]:
        return self._run(self._take, f"for an item from {self.ends.there}")

    async def recv_async(self) -> tuple[Hashable, Any]:
        return await self._run_async(self._take, f"for an item from {self.ends.there}")

    def _take(self) -> tuple[Hashable, Any] | None:
        if not self._shared.items:
            if self._shared.closed_by:
                raise self.ends.closed(self._shared.closed_by)
            return None
        entry = self._shared.items.popleft()
        self._shared.announce()
        self.stats.items += 1
        return entry


def pair(
    link: str, producer: str, consumer: str, *, deadline: float, capacity: int = DEFAULT_CAPACITY
) -> tuple[InProcessOutgoing, InProcessIncoming]:
    """Both ends of a link between two workers of this process; at most `capacity` items are under way."""
    shared = _Shared(capacity)
    outgoing = InProcessOutgoing(Ends(link, producer, consumer), shared, deadline)
    return outgoing, InProcessIncoming(Ends(link, consumer, producer), shared, deadline)
