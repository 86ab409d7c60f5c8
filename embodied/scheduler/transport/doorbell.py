"""How two processes of a node wake each other, and how each learns that the other is gone.

A side that waits spins briefly, then sleeps in one epoll that holds its eventfd (the bell), the other process's pidfd
and the socket between the two; so a ring, a death and a hang-up all end the wait at once, with no polling, in a thread
or in an event loop. State itself lives in shared memory; this module never looks at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

SPIN_SECONDS = 100e-6  # longer than a wake-up takes (30-50 us), so spinning at most doubles what sleeping would cost
# A sleeper also looks by itself this often. Nothing depends on it: it bounds the damage of a ring lost to a fault.
RECHECK_SECONDS = 0.5
_CREDENTIALS = struct.Struct("3i")


def fence() -> None:
    """A full memory barrier: what this thread stored before is visible to others before it loads anything after.

    A fresh lock's acquire is an atomic read-modify-write (a full barrier on x86-64); with the second pair, a
    store-release followed by a load-acquire, the same holds on ARMv8.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()
    lock.release()


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, as the kernel knows it; pid 0 if it is in another pid namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class Doorbell:
    """One side's bell, and the other side's bell to ring. Owns all descriptors given to it.

    Args:
        own, other: eventfds; this side sleeps on `own` and rings `other`.
        connection: Unix socket to the other process.
        pid: the other process, 0 if unknown (then only the socket tells of its death).
    """

    def __init__(self, own: int, other: int, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.connection = connection
        self._own = own
        self._other = _Descriptor(other)
        self._closed = False
        self._sleeping = False
        self._spin = SPIN_SECONDS
        self._epoll = select.epoll()
        self._epoll.register(own, select.EPOLLIN)
        # hang-ups only: the bytes on this socket belong to whoever passes descriptors over it
        self._epoll.register(connection.fileno(), select.EPOLLRDHUP)
        self._process = self._open_process(pid)
        if self._process >= 0:
            self._epoll.register(self._process, select.EPOLLIN)

    @staticmethod
    def _open_process(pid: int) -> int:
        if pid <= 0:
            return -1
        try:
            return os.pidfd_open(pid)
        except OSError:
            return -1  # already gone, or not ours to watch: the socket's hang-up says so

    def ring(self) -> None:
        """Wake the other side if it sleeps; safe from any thread and after `close`."""
        os.eventfd_write(self._other.number, 1)

    def gone(self) -> bool:
        """Whether the other process has died or hung up."""
        return any(fd != self._own for fd, _ in self._epoll.poll(0))

    def spin(self, ready: Callable[[], bool]) -> bool:
        """Look again and again, yielding the core each time, for as long as that has paid off lately."""
        end = time.perf_counter() + self._spin
        while time.perf_counter() < end:
            if ready():
                self._spin = min(SPIN_SECONDS, self._spin * 2)
                return True
            os.sched_yield()
        self._spin = max(SPIN_SECONDS / 16, self._spin / 2)
        return ready()

    async def spin_async(self, ready: Callable[[], bool]) -> bool:
        """`spin` that gives every other coroutine a turn between two looks."""
        end = time.perf_counter() + self._spin
        while time.perf_counter() < end:
            await asyncio.sleep(0)
            if ready():
                self._spin = min(SPIN_SECONDS, self._spin * 2)
                return True
            os.sched_yield()
        self._spin = max(SPIN_SECONDS / 16, self._spin / 2)
        return False

    def sleep(self, seconds: float) -> None:
        """Return when the bell rings, the other side is gone, or `seconds` have passed."""
        with self._asleep() as awake:
            if not awake:
                self._epoll.poll(max(seconds, 0.0))

    async def sleep_async(self, seconds: float) -> None:
        """`sleep` that lets the event loop run."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        with self._asleep() as awake:
            if awake:
                return
            timer = loop.call_later(max(seconds, 0.0), wake)
            loop.add_reader(self._epoll.fileno(), wake)
            try:
                await woken
            finally:
                loop.remove_reader(self._epoll.fileno())
                timer.cancel()

    @contextlib.contextmanager
    def _asleep(self) -> Iterator[bool]:
        """Around a sleep; yields whether there is no point in it. `close` leaves the descriptors to a sleeper."""
        begin = time.perf_counter()
        self._sleeping = True
        try:
            yield self._closed
        finally:
            self._sleeping = False
            if self._closed:
                self._give_back()
            else:
                with contextlib.suppress(BlockingIOError):  # woken by something else than the bell
                    os.eventfd_read(self._own)
        slept = time.perf_counter() - begin
        if slept < 2 * SPIN_SECONDS:
            self._spin = min(SPIN_SECONDS, self._spin * 2)  # spinning would have met it, or nearly

    def close(self) -> None:
        """Hang up; the other side sees it. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.connection.close()
        if self._sleeping:
            os.eventfd_write(self._own, 1)
        else:
            self._give_back()

    def _give_back(self) -> None:
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._own)
            if self._process >= 0:
                os.close(self._process)


class _Descriptor:
    """A descriptor that lives as long as whoever may still use it: finalisers ring the bell after `close`, in any
    thread, and must never write to a number that the system has given to another file."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)
