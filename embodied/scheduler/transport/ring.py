"""The two ends of a link through shared memory, once both processes are attached to it.

Three parts: a ring of 4 KiB entries (small items travel inside their entry and are copied out at once, large ones leave
a note there), an arena of blocks (a large item is written once; the receiver's tensors are views of its block, which is
free again when the last of them is garbage), and two doorbells. One producer, one consumer.

Back-pressure counts what was sent and not yet received. What the receiver keeps is the receiver's memory: when views
it holds leave no room in the arena, or an item is larger than the arena, a further segment is mapped (`stats.oversize`
counts them, the trace names them), so holding on to items can never stop a link.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from embodied.scheduler.trace import TRANSFER, WAIT, Trace
from embodied.scheduler.transport.doorbell import RECHECK_SECONDS, Doorbell, fence
from embodied.scheduler.transport.layout import align
from embodied.scheduler.transport.link import Ends, Incoming, Outgoing
from embodied.scheduler.transport.records import Codec, Packed
from embodied.scheduler.transport.segments import Arena, Segment

ENTRIES = 64
ENTRY_SIZE = 4096
_ENTRY = struct.Struct("<6Q")  # length, block, segment, offset, how many new segments, how many to forget
_ENTRY_START = 64  # the item itself, or (number, size) of new segments and numbers of those to forget, begin here
INLINE = ENTRY_SIZE - _ENTRY_START
_IN_ENTRY = (1 << 64) - 1  # in place of a block number

_TURNS = 8  # asynchronous operations in a row before the event loop gets a turn

# 64-bit words at the start of the control segment; each side writes its own cache lines
_SENT, _SENDER_CLOSED = 0, 1
_TAKEN, _RECEIVER_CLOSED = 8, 9
_RECEIVER_SLEEPS = 16
_SENDER_SLEEPS = 24
_STATES = 32  # one word a block
BLOCKS = 1024
_FREE, _UNDER_WAY, _HELD = 0, 1, 2
_WORDS_SIZE = -(-(_STATES + BLOCKS) * 8 // ENTRY_SIZE) * ENTRY_SIZE
CONTROL_SIZE = _WORDS_SIZE + ENTRIES * ENTRY_SIZE


class _SharedEnd:
    """What both ends of the link do alike: waiting, dying, closing."""

    ends: Ends
    stats: Any

    def __init__(self, control: Segment, bell: Doorbell, codec: Codec, deadline: float, trace: Trace | None) -> None:
        self._words = control.view[:_WORDS_SIZE].cast("Q")
        self._entries = control.view[_WORDS_SIZE:]
        self._control = control
        self._bell = bell
        self._codec = codec
        self._deadline = deadline
        self._trace = trace
        self._turn = asyncio.Lock()
        self._turns = 0
        self._closed = False

    _sleeps: int
    _closed_here: int
    _closed_there: int

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        begin = time.perf_counter()
        try:
            if self._bell.spin(ready):
                return
            while not self._asleep_unless(ready):
                self._bell.sleep(self._check(begin, what))
        finally:
            self._words[self._sleeps] = 0
            self._waited(begin, what)

    async def _wait_async(self, ready: Callable[[], bool], what: str) -> None:
        begin = time.perf_counter()
        try:
            if await self._bell.spin_async(ready):
                return
            while not self._asleep_unless(ready):
                await self._bell.sleep_async(self._check(begin, what))
        finally:
            self._words[self._sleeps] = 0
            self._waited(begin, what)

    async def _let_others_run(self) -> None:
        """Now and then, also when nothing has to be waited for: a busy link must not keep an event loop to itself."""
        self._turns += 1
        if self._turns % _TURNS == 0:
            await asyncio.sleep(0)

    def _asleep_unless(self, ready: Callable[[], bool]) -> bool:
        """Announce that this side sleeps, then look once more: whoever changes the state after that rings."""
        self._words[self._sleeps] = 1
        fence()
        return ready()

    def _check(self, begin: float, what: str) -> float:
        """Seconds to sleep; raises when there is nothing left to wait for."""
        if self._closed:
            raise self.ends.closed(self.ends.here)
        if self._words[self._closed_there] or self._bell.gone():
            if self._has_item():
                return 0.0
            closed = self._words[self._closed_there]  # looked at last: whoever closes does so before it goes
            raise self.ends.closed(self.ends.there) if closed else self.ends.died(what, self._state())
        left = begin + self._deadline - time.perf_counter()
        if left <= 0:
            raise self.ends.deadline(self._deadline, what, self._state())
        return min(left, RECHECK_SECONDS)

    def _has_item(self) -> bool:
        """Whether there is something to receive."""
        return False

    def _state(self) -> str:
        under_way = self._words[_SENT] - self._words[_TAKEN]
        return f"pid {self._bell.pid or 'unknown'}, {under_way} of {ENTRIES} items under way"

    def _waited(self, begin: float, what: str) -> None:
        self.stats.waited += time.perf_counter() - begin

    def _note(self, begin: float, size: int, what: str) -> None:
        """Account for one item's work; large ones show in the trace."""
        end = time.perf_counter()
        self.stats.items += 1
        self.stats.bytes += size
        self.stats.seconds += end - begin
        if self._trace is not None and size > INLINE:
            self._trace.add(self.ends.here, f"{what} ({size / 1e6:.2f} MB)", TRANSFER, begin, end)

    def _wake_if(self, sleeps: int) -> None:
        fence()
        if self._words[sleeps]:
            self._bell.ring()

    def close(self) -> None:
        """Say that this end is done; safe to call twice. What was sent before can still be received."""
        if self._closed:
            return
        self._closed = True
        self._words[self._closed_here] = 1
        fence()
        self._bell.ring()
        self._bell.close()


class SharedMemoryOutgoing(_SharedEnd, Outgoing):
    """The producer's end; made by `shared_memory.connect`."""

    _sleeps, _closed_here, _closed_there = _SENDER_SLEEPS, _SENDER_CLOSED, _RECEIVER_CLOSED

    def __init__(self, ends: Ends, arena: Arena, control: Segment, *rest: Any) -> None:
        Outgoing.__init__(self, ends)
        _SharedEnd.__init__(self, control, *rest)
        self._sent = 0
        self._arenas = {0: arena}  # by segment number; 0 is the preallocated one
        self._forgotten: list[int] = []
        self._segments = 1
        self._numbers = list(range(BLOCKS))
        self._blocks: dict[int, tuple[int, int, int]] = {}  # number -> (segment, offset, size)
        self._place: tuple[int, int, int] = (_IN_ENTRY, 0, 0)  # (number, segment, offset) for the item being sent
        self._new: list[tuple[int, int]] = []  # (number, size) of segments the receiver has not been told of
        self._seen_taken = -1

    def _waited(self, begin: float, what: str) -> None:
        # a wait to send is the worker's; a wait to receive is not (a channel reads ahead, and traces its own waits)
        super()._waited(begin, what)
        if self._trace is not None:
            self._trace.add(self.ends.here, f"wait {what}", WAIT, begin, time.perf_counter())

    def send(self, item: Any, key: Hashable = 0) -> None:
        packed = self._codec.pack((key, item))
        self._check_open()
        room = functools.partial(self._room, align(packed.size))
        if not room():
            self._wait(room, f"to send to {self.ends.there}")
        self._put(packed)

    async def send_async(self, item: Any, key: Hashable = 0) -> None:
        packed = self._codec.pack((key, item))
        async with self._turn:
            await self._let_others_run()
            self._check_open()
            room = functools.partial(self._room, align(packed.size))
            if not room():
                await self._wait_async(room, f"to send to {self.ends.there}")
            self._put(packed)

    def _check_open(self) -> None:
        if self._closed:
            raise self.ends.closed(self.ends.here)
        if self._words[_RECEIVER_CLOSED]:
            raise self.ends.closed(self.ends.there)
        taken = self._words[_TAKEN]
        # asking costs a system call, and a receiver that has moved since the last item is alive
        if taken == self._seen_taken != self._sent and self._bell.gone():
            if self._words[_RECEIVER_CLOSED]:
                raise self.ends.closed(self.ends.there)
            raise self.ends.died("to send", self._state())
        self._seen_taken = taken

    def _room(self, size: int) -> bool:
        """Find a place for an item of `size` bytes."""
        if self._sent - self._words[_TAKEN] >= ENTRIES:
            return False
        if size <= INLINE:
            self._place = (_IN_ENTRY, 0, 0)
            return True
        if len(self._blocks) <= ENTRIES or self._sent % ENTRIES == 0:  # reuse what is warm; asking costs by the block
            self._reclaim()
        if not self._fits(size):
            self._reclaim()
            if not self._fits(size):
                if any(self._words[_STATES + number] == _UNDER_WAY for number in self._blocks):
                    return False
                self._grow(size)
                return self._fits(size)
        return True

    def _fits(self, size: int) -> bool:
        if not self._numbers:
            return False
        for segment, arena in self._arenas.items():
            offset = arena.take(size)
            if offset is not None:
                number = self._numbers.pop()
                self._blocks[number] = (segment, offset, size)
                self._place = (number, segment, offset)
                return True
        return False

    def _reclaim(self) -> None:
        """Take back the blocks that the receiver has released; of further segments that are empty keep the largest."""
        words = self._words
        free = [number for number in self._blocks if words[_STATES + number] == _FREE]
        for number in free:
            segment, offset, size = self._blocks.pop(number)
            self._arenas[segment].give(offset, size)
            self._numbers.append(number)
        if free and len(self._arenas) > 2:
            spare = sorted((a.segment.size, n) for n, a in self._arenas.items() if n and a.empty)
            self._forget([number for _, number in spare[:-1]])

    def _forget(self, segments: list[int]) -> None:
        for number in segments:
            del self._arenas[number]
        self._forgotten += segments

    def _grow(self, size: int) -> None:
        """Add a segment in which `size` bytes fit."""
        self._forget([n for n, arena in self._arenas.items() if n and arena.empty])
        segment, descriptor = Segment.create(self.ends.link, max(size, self._arenas[0].segment.size))
        try:
            socket.send_fds(self._bell.connection, [b"segment"], [descriptor])
        except OSError:
            raise self.ends.died("to send", self._state()) from None
        finally:
            os.close(descriptor)
        self._arenas[self._segments] = Arena(segment)
        self._new.append((self._segments, segment.size))
        self._segments += 1
        self.stats.oversize += 1

    def _put(self, packed: Packed) -> None:
        begin = time.perf_counter()
        number, segment, offset = self._place
        start = (self._sent % ENTRIES) * ENTRY_SIZE
        body = start + _ENTRY_START
        where = "shared memory"
        if number == _IN_ENTRY:
            _ENTRY.pack_into(self._entries, start, packed.size, number, 0, 0, 0, 0)
            address = self._control.address + _WORDS_SIZE + body
            packed.write(self._entries[body : body + packed.size], address)
        else:
            memory = self._arenas[segment].segment
            # free until it is written: should writing fail, the block is simply found free again
            packed.write(memory.view[offset : offset + packed.size], memory.address + offset)
            self._words[_STATES + number] = _UNDER_WAY
            news = [word for pair in self._new for word in pair] + self._forgotten
            struct.pack_into(f"<{len(news)}Q", self._entries, body, *news)
            note = (packed.size, number, segment, offset, len(self._new), len(self._forgotten))
            _ENTRY.pack_into(self._entries, start, *note)
            where = "a new segment" if self._new else where
            self._new.clear()
            self._forgotten.clear()
        self._sent += 1
        fence()  # the item before the count
        self._words[_SENT] = self._sent
        self._wake_if(_RECEIVER_SLEEPS)
        self._note(begin, packed.size, f"send to {self.ends.there} through {where}")


class SharedMemoryIncoming(_SharedEnd, Incoming):
    """The consumer's end; made by `shared_memory.Listener`."""

    _sleeps, _closed_here, _closed_there = _RECEIVER_SLEEPS, _RECEIVER_CLOSED, _SENDER_CLOSED

    def __init__(self, ends: Ends, segment: Segment, control: Segment, *rest: Any) -> None:
        Incoming.__init__(self, ends)
        _SharedEnd.__init__(self, control, *rest)
        self._taken = 0
        self._segments = {0: segment}
        self._leases: dict[int, weakref.ref[memoryview]] = {}
        self._process = os.getpid()

    @property
    def held(self) -> int:
        """Blocks that views of received items keep."""
        return len(self._leases)

    def recv(self) -> tuple[Hashable, Any]:
        if not self._has_item():
            self._wait(self._has_item, f"for an item from {self.ends.there}")
        return self._take()

    async def recv_async(self) -> tuple[Hashable, Any]:
        async with self._turn:
            await self._let_others_run()
            if not self._has_item():
                await self._wait_async(self._has_item, f"for an item from {self.ends.there}")
            return self._take()

    def _has_item(self) -> bool:
        return self._words[_SENT] != self._taken

    def _take(self) -> tuple[Hashable, Any]:
        begin = time.perf_counter()
        fence()  # the count before the item
        start = (self._taken % ENTRIES) * ENTRY_SIZE
        body = start + _ENTRY_START
        size, number, segment, offset, new, forgotten = _ENTRY.unpack_from(self._entries, start)
        if number == _IN_ENTRY:
            data = memoryview(bytearray(self._entries[body : body + size]))
        else:
            news = struct.unpack_from(f"<{2 * new + forgotten}Q", self._entries, body)
            for i in range(0, 2 * new, 2):
                self._segments[news[i]] = self._receive_segment(news[i + 1])
            for gone in news[2 * new :]:
                del self._segments[gone]  # unmapped: the sender has found all its blocks free
            data = self._lease(number, self._segments[segment].view[offset : offset + size])
        self._taken += 1
        self._words[_TAKEN] = self._taken
        self._wake_if(_SENDER_SLEEPS)
        entry = self._codec.unpack(data)
        self._note(begin, size, f"receive from {self.ends.there}")
        return entry

    def _lease(self, number: int, view: memoryview) -> memoryview:
        """Release the block once nothing refers to `view` any more; tensors made from it do."""
        if len(self._leases) < BLOCKS // 2:
            self._words[_STATES + number] = _HELD
            self._leases[number] = weakref.ref(view, functools.partial(self._release, number))
            return view
        # so many are held that the sender could run out of numbers: this item moves to memory of the receiver's own
        copy = memoryview(bytearray(view))
        self._words[_STATES + number] = _FREE
        return copy

    def _release(self, number: int, _: weakref.ref[memoryview]) -> None:
        if os.getpid() != self._process:
            return  # a forked child drops its copies of the views; the memory is still the parent's
        self._leases.pop(number)  # before the sender can use the number again
        fence()
        self._words[_STATES + number] = _FREE
        self._wake_if(_SENDER_SLEEPS)

    def _receive_segment(self, size: int) -> Segment:
        _, descriptors, _, _ = socket.recv_fds(self._bell.connection, 64, 1)
        try:
            return Segment(descriptors[0], size)
        finally:
            os.close(descriptors[0])
