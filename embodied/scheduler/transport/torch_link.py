"""A link over torch.distributed: between nodes by gloo, and between GPUs by NCCL for the tensors that are on them.

An item travels as frames of bytes through a process group that both ends belong to, point to point. The first frame has
a fixed size and holds small items whole; a large item's body follows in frames of at most 64 MiB, straight into the
memory that the receiver's tensors will be views of. Tensors that the codec keeps apart go one by one through the
`device_group`: CUDA tensors through NCCL, from GPU to GPU. That use is tested with gloo standing in for NCCL; NCCL
itself only where there are two GPUs.

Deaths are noticed by the group's own connections. After an error or a missed deadline the link is unusable: frames have
no way of finding their place again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime as dt
import struct
import time
from collections.abc import Callable, Hashable
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
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
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
    ) -> None:
        """One frame, within the deadline."""
        begin = time.perf_counter()
        try:
            group = group or self._route.group
            work = start(tensor, self._route.peer, group=group, tag=_TAG + self._route.tag)
            if work is not None:
                work.wait(dt.timedelta(seconds=self._deadline))
        except RuntimeError as error:
            self._broken = error
            # gloo has one exception type for both; a deadline shows in how long it took
            if time.perf_counter() - begin >= self._deadline:
                raise self.ends.deadline(self._deadline, what, f"rank {self._route.peer}") from error
            raise self.ends.died(what, f"rank {self._route.peer}") from error

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=self.ends.link)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)


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
            await self._in_thread(lambda: self.send(item, key))

    def close(self) -> None:
        if not self._closed_by and self._broken is None:
            _LENGTH.pack_into(memoryview(self._first.numpy()), 0, _CLOSED)
            self._transfer(dist.isend, self._first, f"to close the link to {self.ends.there}")
        self._closed_by = self._closed_by or self.ends.here
        self._stop_thread()


class TorchIncoming(_TorchEnd, Incoming):
    """The consumer's end. Closing it only stops this side: the producer learns of it when it waits."""

    def __init__(self, ends: Ends, route: Route, codec: Codec, *, deadline: float) -> None:
        Incoming.__init__(self, ends)
        _TorchEnd.__init__(self, route, codec, deadline)

    def recv(self) -> tuple[Hashable, Any]:
        self._check_open()
        begin = time.perf_counter()
        what = f"for an item from {self.ends.there}"
        self._transfer(dist.irecv, self._first, what)
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

    async def recv_async(self) -> tuple[Hashable, Any]:
        async with self._turn:
            return await self._in_thread(self.recv)

    def close(self) -> None:
        self._closed_by = self._closed_by or self.ends.here
        self._stop_thread()
