"""Shared memory without names: memfd segments, and the allocator that cuts blocks from them.

A segment exists only as a descriptor that one process passes to the other over a Unix socket. There is nothing in
/dev/shm to clean up: the kernel frees the memory with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os


class Segment:
    """Mapped memory of `size` bytes shared with one other process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, name: str, size: int) -> tuple[Segment, int]:
        """A fresh segment and the descriptor to hand over; the caller closes it. `name` shows in /proc/*/maps only."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            return cls(descriptor, size), descriptor
        except BaseException:
            os.close(descriptor)
            raise


class Arena:
    """First-fit allocation from one segment, lowest address first, so that the same warm pages are used over again."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._free: list[tuple[int, int]] = [(0, segment.size)]  # (offset, size), by offset, never adjacent

    @property
    def empty(self) -> bool:
        """Whether no block is allocated."""
        return self._free == [(0, self.segment.size)]

    def take(self, size: int) -> int | None:
        """The offset of a block of `size` bytes, or None if no gap is large enough."""
        for i, (offset, gap) in enumerate(self._free):
            if gap >= size:
                if gap == size:
                    del self._free[i]
                else:
                    self._free[i] = (offset + size, gap - size)
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """Return a block."""
        i = bisect.bisect(self._free, (offset, size))
        if i < len(self._free) and self._free[i][0] == offset + size:
            size += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == offset:
            before, gap = self._free[i - 1]
            self._free[i - 1] = (before, gap + size)
        else:
            self._free.insert(i, (offset, size))
