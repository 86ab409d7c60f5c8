"""A one-way byte ring between two processes: the payload goes through shared memory, a pipe says where it lies.

One writer, one reader, each in a single thread. The memory is an anonymous file (`memfd`): it has no name to clash or
leak, does not count against /dev/shm, and is gone when both processes are. If the writer dies in any way, the reader
sees the end of the pipe after everything written before it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import mmap
import os
import select
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from embodied.errors import DeadlineExceeded, RefusedInput

_PLACE = struct.Struct("<QQ")  # offset and length of a message in the ring; below PIPE_BUF, so written in one piece
_HEADER = struct.Struct("<I")  # length of the JSON part in front of the pixels
_MOST_MESSAGES = 4000  # that many places fit into a pipe of 64 KiB: writing one never blocks


class RingWriter:
    """The producing end. `put` copies; it waits only while the ring is full."""

    def __init__(self, capacity: int, *, deadline_s: float, alive: Callable[[], None]):
        """`alive` is called while waiting and raises if the reading process has ended."""
        self.capacity = capacity
        self._deadline_s = deadline_s
        self._alive = alive
        self.memory_fd = os.memfd_create("embodied-video")
        os.ftruncate(self.memory_fd, capacity)
        # populated at once: a page fault for every 4 KiB of a picture would cost as much as copying it
        shared = mmap.mmap(self.memory_fd, capacity, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes = np.frombuffer(shared, np.uint8)
        self.places_fd, self._places = os.pipe()
        self._acks, self.acks_fd = os.pipe()
        os.set_blocking(self._acks, False)
        self._head = self._tail = 0  # bytes ever taken and given back; their difference is what is in use
        self._ends: collections.deque[int] = collections.deque()

    def child_fds(self) -> tuple[int, int, int]:
        """The three file descriptors that `RingReader` takes, to be inherited by the reading process."""
        return self.memory_fd, self.places_fd, self.acks_fd

    def put(self, message: dict[str, Any], pixels: np.ndarray | None = None) -> None:
        """Hand on `message` (JSON) and `pixels` (uint8). Raises DeadlineExceeded if no space comes free."""
        text = json.dumps(message).encode()
        length = _HEADER.size + len(text) + (0 if pixels is None else pixels.nbytes)
        if length > self.capacity:
            raise RefusedInput(
                f"One picture needs {length / 2**20:.1f} MiB and the recorder's buffer holds "
                f"{self.capacity / 2**20:.1f} MiB; give VideoRecorder a larger buffer_mib."
            )
        self._collect()
        position = self._head % self.capacity
        skipped = self.capacity - position if position + length > self.capacity else 0
        if skipped + length > self.capacity:  # a message lies in one piece, so this one needs the ring to itself
            self.wait_until_empty()
            self._head = self._tail = skipped = 0
        while not self._fits(skipped + length):
            self._wait_for_ack()
        start = (self._head + skipped) % self.capacity
        text_end = start + _HEADER.size + len(text)
        self._bytes[start:text_end] = np.frombuffer(_HEADER.pack(len(text)) + text, np.uint8)
        if pixels is not None:
            np.copyto(self._bytes[text_end : start + length].reshape(pixels.shape), pixels)
        self._head += skipped + length
        self._ends.append(self._head)
        os.write(self._places, _PLACE.pack(start, length))

    def wait_until_empty(self) -> None:
        """Return when the reader has dealt with everything put so far."""
        while self._ends:
            self._wait_for_ack()

    def close(self) -> None:
        """Say that nothing more comes. What was put stays readable."""
        # said in words: processes forked meanwhile hold copies of the pipe, so closing ours need not end it
        with contextlib.suppress(BrokenPipeError):
            os.write(self._places, _PLACE.pack(0, 0))
        os.close(self._places)
        os.close(self._acks)
        os.close(self.memory_fd)

    def close_child_fds(self) -> None:
        """Close this process's copies of the reader's pipe ends, so that each side sees the other's end."""
        os.close(self.places_fd)
        os.close(self.acks_fd)

    def _fits(self, length: int) -> bool:
        return self._head + length - self._tail <= self.capacity and len(self._ends) < _MOST_MESSAGES

    def _wait_for_ack(self) -> None:
        if not _readable(self._acks, self._deadline_s):
            self._alive()
            raise DeadlineExceeded(
                f"The loop waited {self._deadline_s:.0f} s for the video process to take a picture; it is alive but "
                "did not answer. Is the disk stalled? Record fewer environments, or every k-th episode."
            )
        if not self._collect():
            self._alive()

    def _collect(self) -> int:
        try:
            count = len(os.read(self._acks, _MOST_MESSAGES))
        except BlockingIOError:
            return 0
        for _ in range(count):
            self._tail = self._ends.popleft()
        return count


class RingReader:
    """The consuming end, in the other process."""

    def __init__(self, memory_fd: int, places_fd: int, acks_fd: int):
        size = os.fstat(memory_fd).st_size
        self._bytes = np.frombuffer(mmap.mmap(memory_fd, size), np.uint8)
        self._places, self._acks = places_fd, acks_fd
        self._writer = os.getppid()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yield (message, pixels) until the writer has closed or died; pixels are flat uint8, valid until the next."""
        while True:
            # a process forked by the writer may hold the pipe open after the writer's death: look for that as well
            while not _readable(self._places, 1.0):
                if os.getppid() != self._writer:
                    return
            place = os.read(self._places, _PLACE.size)
            if not place:
                return
            start, length = _PLACE.unpack(place)
            if not length:
                return
            (text,) = _HEADER.unpack(self._bytes[start : start + _HEADER.size].tobytes())
            body = start + _HEADER.size + text
            yield json.loads(self._bytes[start + _HEADER.size : body].tobytes()), self._bytes[body : start + length]
            try:
                os.write(self._acks, b"\0")
            except BrokenPipeError:
                continue  # the writer is gone; what it left is still read to its end


def _readable(fd: int, seconds: float) -> bool:
    """Wait until `fd` has data or its other end is closed; False if neither comes in time. Any descriptor number."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
