"""Links through shared memory between two processes of a node: how the two meet and attach.

The consumer listens at an abstract Unix socket, the producer connects, and the socket passes the memory over as
descriptors: nothing has a name in the file system, so nothing is left behind however a process ends, and the size of
/dev/shm (64 MB in a default container) does not matter. The socket stays open: its hang-up tells of a death. The ends
themselves are in `ring`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time

from embodied.errors import WorkerError
from embodied.scheduler.trace import Trace
from embodied.scheduler.transport.doorbell import Doorbell, peer_of
from embodied.scheduler.transport.layout import align
from embodied.scheduler.transport.link import Ends
from embodied.scheduler.transport.records import Codec
from embodied.scheduler.transport.ring import CONTROL_SIZE, SharedMemoryIncoming, SharedMemoryOutgoing
from embodied.scheduler.transport.segments import Arena, Segment

DEFAULT_CAPACITY = 64 << 20  # bytes of the arena; pages cost memory only once they are used
_VERSION = 1


class Listener:
    """Where the consumer's end of one link waits for its producer.

    `address` is a short text for the producer's `connect`; a link is complete after `connect` and `accept`, in either
    order (`connect` does not wait). Processes of other users are turned away.
    """

    def __init__(self, ends: Ends, codec: Codec, *, deadline: float, trace: Trace | None = None) -> None:
        self.ends = ends
        self._codec = codec
        self._deadline = deadline
        self._trace = trace
        self.address = f"embodied-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind("\0" + self.address)
        self._socket.listen(1)

    def accept(self) -> SharedMemoryIncoming:
        """Wait for the producer; raises DeadlineExceeded. The listener is closed afterwards."""
        end = time.perf_counter() + self._deadline
        with self._socket:
            while True:
                try:
                    self._socket.settimeout(max(end - time.perf_counter(), 1e-3))
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    raise self.ends.deadline(self._deadline, "for the other end to connect", "never seen") from None
                pid, uid = peer_of(connection)
                if uid == os.getuid():
                    return self._attach(connection, pid)
                connection.close()

    def _attach(self, connection: socket.socket, pid: int) -> SharedMemoryIncoming:
        connection.settimeout(self._deadline)
        try:
            hello, descriptors, _, _ = socket.recv_fds(connection, 4096, 4)
        except TimeoutError:
            connection.close()
            raise self.ends.deadline(self._deadline, "for the other end's memory", f"pid {pid}, connected") from None
        connection.setblocking(True)
        offer = json.loads(hello) if hello else {}
        if offer.get("version") != _VERSION or offer.get("link") != self.ends.link or len(descriptors) != 4:
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            raise WorkerError(
                f"{self.ends.here} expected link {self.ends.link} (version {_VERSION}) from {self.ends.there}, "
                f"but {offer or 'nothing'} connected; all processes of a run must run the same code"
            )
        control, arena, own, other = descriptors
        segments = Segment(arena, offer["arena"]), Segment(control, CONTROL_SIZE)
        os.close(control)
        os.close(arena)
        bell = Doorbell(own, other, connection, pid)
        return SharedMemoryIncoming(self.ends, *segments, bell, self._codec, self._deadline, self._trace)

    def close(self) -> None:
        """Stop waiting; `accept` has done so already."""
        self._socket.close()


def connect(
    address: str,
    ends: Ends,
    codec: Codec,
    *,
    deadline: float,
    capacity: int = DEFAULT_CAPACITY,
    trace: Trace | None = None,
) -> SharedMemoryOutgoing:
    """The producer's end of the link whose consumer listens at `address`; `capacity` is the arena's size in bytes."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        try:
            connection.connect("\0" + address)
        except ConnectionRefusedError:
            raise ends.died("to connect", f"nobody listens at {address}") from None
        control, control_fd = Segment.create(ends.link, CONTROL_SIZE)
        undo.callback(os.close, control_fd)
        arena, arena_fd = Segment.create(ends.link, align(capacity))
        undo.callback(os.close, arena_fd)
        theirs = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        undo.callback(os.close, theirs)
        ours = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        undo.callback(os.close, ours)
        hello = json.dumps({"version": _VERSION, "link": ends.link, "arena": arena.size}).encode()
        socket.send_fds(connection, [hello], [control_fd, arena_fd, theirs, ours])
        undo.pop_all()
    os.close(control_fd)
    os.close(arena_fd)
    bell = Doorbell(ours, theirs, connection, peer_of(connection)[0])
    return SharedMemoryOutgoing(ends, Arena(arena), control, bell, codec, deadline, trace)
