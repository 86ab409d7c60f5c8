"""A link over torch.distributed: between nodes by gloo, and between GPUs by NCCL for the tensors that are on them.

An item travels as frames of bytes through a process group that both ends belong to, point to point. The first frame has
a fixed size and holds small items whole; a large item's body follows in frames of at most 64 MiB, straight into the
memory that the receiver's tensors will be views of. Tensors that the codec keeps apart go one by one through the
`device_group`: CUDA tensors through NCCL, from GPU to GPU. That use is tested with gloo standing in for NCCL; NCCL
itself only where there are two GPUs.

Deaths are noticed by the group's own connections. A wait for an item may miss its deadline and be repeated: the item is
awaited by a thread of the link's own, because gloo would take a wait that it gives up as the end of the connection. An
item that stops half-way leaves the link unusable.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import queue
import struct
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from embodied.scheduler.transport.link import Ends, Incoming, Outgoing
from embodied.scheduler.transport.records import Codec

FIRST_FRAME = 8192
_FRAME = 64 << 20
_LENGTH = struct.Struct("<Q")
INLINE = FIRST_FRAME - _LENGTH.size
_CLOSED = (1 << 64) - 1  # in place of a length
_NEVER = 3650 * 24 * 3600.0  # seconds; between rounds nothing comes for as long as it takes
_TAG = 7919  # keeps a link's frames apart from point-to-point messages of others on the same group


@dataclasses.dataclass(frozen=True)
class Route:
    """Where the frames go.

    peer: the other end's global rank. group: of the frames (gloo; the default group if None). tag: tells links between
    the same two ranks apart. device_group, device: for tensors that travel apart, and where they arrive.
    """

    peer: int
    group: dist.ProcessGroup | None = None
    tag: int = 0
    device_group: dist.ProcessGroup | None = None
    device: str = "cpu"


class _TorchEnd:
    """What both ends do alike: run blocking operations with a deadline, in a thread where an event loop waits."""

    ends: Ends
    stats: Any

    def __init__(self, route: Route, codec: Codec, deadline: float) -> None:
        self._route = route
        self._codec = codec
        self._deadline = deadline
        self._thread = _Thread(self.ends.link)
        self._turn = asyncio.Lock()
        self._first = torch.zeros(FIRST_FRAME, dtype=torch.uint8)
        self._broken: BaseException | None = None
        self._closed_by = ""

    def _check_open(self) -> None:
        if self._closed_by:
            raise self.ends.closed(self._closed_by)
        if self._broken is not None:
            raise self.ends.died("after an earlier failure", str(self._broken)) from self._broken

    def _transfer(
        self,
        start: Callable[..., dist.Work | None],
        tensor: torch.Tensor,
        what: str,
        group: dist.ProcessGroup | None = None,
        seconds: float | None = None,
    ) -> None:
        """One frame, within `seconds` (the deadline if None)."""
        begin = time.perf_counter()
        seconds = self._deadline if seconds is None else seconds
        try:
            group = group or self._route.group
            work = start(tensor, self._route.peer, group=group, tag=_TAG + self._route.tag)
            if work is not None:
                work.wait(dt.timedelta(seconds=seconds))
        except RuntimeError as error:
            self._broken = error
            # gloo has one exception type for both; a deadline shows in how long it took
            if time.perf_counter() - begin >= seconds:
                raise self.ends.deadline(seconds, what, f"rank {self._route.peer}") from error
            raise self.ends.died(what, f"rank {self._route.peer}") from error


class _Thread:
    """Runs one thing after another; a daemon, so that a wait for a peer that never comes cannot hold up the exit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._work.put((work, future))
        return future

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            work, future = entry
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            del entry, work, future  # a result belongs to whoever asked for it, not to this frame

    def stop(self) -> None:
        self._work.put(None)


async def _finished(future: Future[Any], seconds: float | None) -> None:
    """Wait for `future`, up to `seconds`, without touching it: neither a timeout nor a cancellation reaches it."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: woken.done() or woken.set_result(None))

    future.add_done_callback(wake)
    await asyncio.wait((woken,), timeout=seconds)


class TorchOutgoing(_TorchEnd, Outgoing):
    """The producer's end. Every process of the group makes its ends itself; nothing has to be accepted."""

    def __init__(self, ends: Ends, route: Route, codec: Codec, *, deadline: float) -> None:
        Outgoing.__init__(self, ends)
        _TorchEnd.__init__(self, route, codec, deadline)
        self._body = torch.empty(0, dtype=torch.uint8)  # kept: fresh pages cost as much as the copy into them

    def send(self, item: Any, key: Hashable = 0) -> None:
        self._check_open()
        begin = time.perf_counter()
        packed = self._codec.pack((key, item))
        what = f"to send to {self.ends.there}"
        first = memoryview(self._first.numpy())
        _LENGTH.pack_into(first, 0, packed.size)
        if packed.size <= INLINE:
            packed.write(first[_LENGTH.size : _LENGTH.size + packed.size], self._first.data_ptr() + _LENGTH.size)
            self._transfer(dist.isend, self._first, what)
        else:
            self._transfer(dist.isend, self._first, what)
            if self._body.numel() < packed.size:
                self._body = torch.empty(packed.size, dtype=torch.uint8)
            packed.write(memoryview(self._body.numpy()), self._body.data_ptr())
            for frame in self._body[: packed.size].split(_FRAME):
                self._transfer(dist.isend, frame, what)
        for tensor in packed.apart:
            if tensor.numel():
                self._transfer(dist.isend, tensor.contiguous(), what, self._route.device_group)
        self.stats.items += 1
        self.stats.bytes += packed.size
        self.stats.seconds += time.perf_counter() - begin

    async def send_async(self, item: Any, key: Hashable = 0) -> None:
        async with self._turn:
            sending = self._thread.submit(lambda: self.send(item, key))
            await _finished(sending, None)
            sending.result()

    def close(self) -> None:
        if not self._closed_by and self._broken is None:
            _LENGTH.pack_into(memoryview(self._first.numpy()), 0, _CLOSED)
            self._transfer(dist.isend, self._first, f"to close the link to {self.ends.there}")
        self._closed_by = self._closed_by or self.ends.here
        self._thread.stop()


class TorchIncoming(_TorchEnd, Incoming):
    """The consumer's end. Closing it only stops this side: the producer learns of it when it waits."""

    def __init__(self, ends: Ends, route: Route, codec: Codec, *, deadline: float) -> None:
        Incoming.__init__(self, ends)
        _TorchEnd.__init__(self, route, codec, deadline)
        self._arrival: Future[tuple[Hashable, Any]] | None = None

    def recv(self) -> tuple[Hashable, Any]:
        arrival = self._await()
        concurrent.futures.wait((arrival,), self._deadline)
        return self._arrived(arrival)

    async def recv_async(self) -> tuple[Hashable, Any]:
        async with self._turn:
            arrival = self._await()
            await _finished(arrival, self._deadline)
            return self._arrived(arrival)

    def _await(self) -> Future[tuple[Hashable, Any]]:
        """The next item, under way since whoever waited for it first."""
        if self._arrival is None:
            self._check_open()
            self._arrival = self._thread.submit(self._receive)
        return self._arrival

    def _arrived(self, arrival: Future[tuple[Hashable, Any]]) -> tuple[Hashable, Any]:
        if not arrival.done():
            what = f"for an item from {self.ends.there}"
            raise self.ends.deadline(self._deadline, what, f"rank {self._route.peer}")
        self._arrival = None
        return arrival.result()

    def _receive(self) -> tuple[Hashable, Any]:
        begin = time.perf_counter()
        what = f"for an item from {self.ends.there}"
        self._transfer(dist.irecv, self._first, what, seconds=_NEVER)
        arrived = time.perf_counter()
        first = memoryview(self._first.numpy())
        (size,) = _LENGTH.unpack_from(first)
        if size == _CLOSED:
            self._closed_by = self.ends.there
            raise self.ends.closed(self.ends.there)
        if size <= INLINE:
            data = memoryview(bytearray(first[_LENGTH.size : _LENGTH.size + size]))
        else:
            body = torch.empty(size, dtype=torch.uint8)
            for frame in body.split(_FRAME):
                self._transfer(dist.irecv, frame, what)
            data = memoryview(body.numpy())
        entry = self._codec.unpack(data, self._receive_apart)
        self.stats.items += 1
        self.stats.bytes += size
        self.stats.waited += arrived - begin
        self.stats.seconds += time.perf_counter() - arrived
        return entry

    def _receive_apart(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._route.device)
        if tensor.numel():
            self._transfer(dist.irecv, tensor, f"for a tensor from {self.ends.there}", self._route.device_group)
        return tensor

    def close(self) -> None:
        self._closed_by = self._closed_by or self.ends.here
        self._thread.stop()
