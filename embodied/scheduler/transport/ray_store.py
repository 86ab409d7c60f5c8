"""A link through Ray's object store: works wherever Ray does, and is the slowest, so its use is logged.

Each item is one byte array in the object store (our wire form; Ray serialises the array, not the record). A mailbox
actor between the two ends holds references in order and gives back-pressure. The receiver copies an item once, because
Ray's memory is read-only. A producer that dies is noticed when its items are gone, or by the deadline.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Hashable
from typing import Any

import numpy as np
import ray
from ray.exceptions import OwnerDiedError, RayActorError

from embodied.scheduler.transport.link import Ends, Incoming, Outgoing
from embodied.scheduler.transport.records import Codec

log = logging.getLogger(__name__)

DEFAULT_CAPACITY = 64  # items
_DONE, _LATE, _CLOSED = "done", "late", "closed"


class _Mailbox:
    """The actor: references of the items under way, first in first out."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: collections.deque[list[ray.ObjectRef]] = collections.deque()
        self._closed_by = ""
        self._changed = asyncio.Condition()

    async def put(self, item: list[ray.ObjectRef], seconds: float) -> tuple[str, Any]:
        """(_DONE, None), (_LATE, items under way) or (_CLOSED, by whom)."""
        async with self._changed:
            if not await self._until(lambda: len(self._items) < self._capacity or self._closed_by, seconds):
                return _LATE, len(self._items)
            if self._closed_by:
                return _CLOSED, self._closed_by
            self._items.append(item)
            self._changed.notify_all()
            return _DONE, None

    async def take(self, seconds: float) -> tuple[str, Any]:
        """(_DONE, [reference]), (_LATE, 0) or (_CLOSED, by whom)."""
        async with self._changed:
            if not await self._until(lambda: self._items or self._closed_by, seconds):
                return _LATE, 0
            if not self._items:
                return _CLOSED, self._closed_by
            self._changed.notify_all()
            return _DONE, self._items.popleft()

    async def close(self, by: str) -> None:
        """Nothing more is put."""
        async with self._changed:
            self._closed_by = self._closed_by or by
            self._changed.notify_all()

    async def _until(self, condition: Any, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait_for(condition), seconds)
        except TimeoutError:
            return False
        return True


def mailbox(*, capacity: int = DEFAULT_CAPACITY) -> ray.actor.ActorHandle:
    """A mailbox for one link; its handle is given to both ends. At most `capacity` items are under way."""
    return ray.remote(_Mailbox).options(num_cpus=0, max_concurrency=4).remote(capacity)


class _RayEnd:
    ends: Ends
    stats: Any

    def __init__(self, mailbox: ray.actor.ActorHandle, codec: Codec, deadline: float) -> None:
        self._mailbox = mailbox
        self._codec = codec
        self._deadline = deadline
        self._turn = asyncio.Lock()

    def _outcome(self, answer: tuple[str, Any], what: str) -> Any:
        kind, detail = answer
        if kind == _LATE:
            raise self.ends.deadline(self._deadline, what, f"through Ray's object store, {detail} items under way")
        if kind == _CLOSED:
            raise self.ends.closed(detail)
        return detail

    def close(self) -> None:
        """Say that this end is done; safe to call twice. What was sent before can still be received."""
        ray.get(self._mailbox.close.remote(self.ends.here))


class RayOutgoing(_RayEnd, Outgoing):
    """The producer's end."""

    def __init__(self, ends: Ends, mailbox: ray.actor.ActorHandle, codec: Codec, *, deadline: float) -> None:
        Outgoing.__init__(self, ends)
        _RayEnd.__init__(self, mailbox, codec, deadline)
        log.warning(
            "link %s from %s to %s goes through Ray's object store: no shared memory or process group joins them",
            *(ends.link, ends.here, ends.there),
        )

    def send(self, item: Any, key: Hashable = 0) -> None:
        reference = self._store(item, key)
        try:
            answer = ray.get(self._mailbox.put.remote([reference], self._deadline))
        except RayActorError as error:
            raise self.ends.died("to send", "its mailbox is gone") from error
        self._outcome(answer, "to send")

    async def send_async(self, item: Any, key: Hashable = 0) -> None:
        async with self._turn:
            reference = self._store(item, key)
            try:
                answer = await self._mailbox.put.remote([reference], self._deadline)
            except RayActorError as error:
                raise self.ends.died("to send", "its mailbox is gone") from error
            self._outcome(answer, "to send")

    def _store(self, item: Any, key: Hashable) -> ray.ObjectRef:
        begin = time.perf_counter()
        data = self._codec.pack((key, item)).to_bytes()
        reference = ray.put(np.frombuffer(data, dtype=np.uint8))
        self.stats.items += 1
        self.stats.bytes += len(data)
        self.stats.seconds += time.perf_counter() - begin
        return reference


class RayIncoming(_RayEnd, Incoming):
    """The consumer's end."""

    def __init__(self, ends: Ends, mailbox: ray.actor.ActorHandle, codec: Codec, *, deadline: float) -> None:
        Incoming.__init__(self, ends)
        _RayEnd.__init__(self, mailbox, codec, deadline)

    def recv(self) -> tuple[Hashable, Any]:
        what = f"for an item from {self.ends.there}"
        begin = time.perf_counter()
        try:
            (reference,) = self._outcome(ray.get(self._mailbox.take.remote(self._deadline)), what)
            array = ray.get(reference)
        except (RayActorError, OwnerDiedError) as error:
            raise self.ends.died(what, "through Ray's object store") from error
        return self._unpack(array, begin)

    async def recv_async(self) -> tuple[Hashable, Any]:
        what = f"for an item from {self.ends.there}"
        async with self._turn:
            begin = time.perf_counter()
            try:
                (reference,) = self._outcome(await self._mailbox.take.remote(self._deadline), what)
                array = await reference
            except (RayActorError, OwnerDiedError) as error:
                raise self.ends.died(what, "through Ray's object store") from error
            return self._unpack(array, begin)

    def _unpack(self, array: np.ndarray, begin: float) -> tuple[Hashable, Any]:
        arrived = time.perf_counter()
        entry = self._codec.unpack(memoryview(bytearray(array)))
        self.stats.items += 1
        self.stats.bytes += array.nbytes
        self.stats.waited += arrived - begin
        self.stats.seconds += time.perf_counter() - arrived
        return entry
