"""The link: one direction between two workers, whatever carries the bytes, and the choice of what carries them.

A link is not a channel: it joins exactly one producer to one consumer, in order, and knows nothing of rounds, fan-out
or granularity. Channels between processes are made of links.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Hashable
from typing import Any, Self

from embodied.errors import ChannelClosed, DeadlineExceeded, WorkerDied


class PeerDied(WorkerDied):
    """The process at the other end of a link is gone without having closed it."""


class Transport(enum.Enum):
    """How bytes move."""

    IN_PROCESS = "in_process"  # by reference
    SHARED_MEMORY = "shared_memory"  # one copy into shared memory, views on the receiving side
    CUDA_IPC = "cuda_ipc"  # device memory of one GPU, mapped into both processes
    TORCH = "torch"  # torch.distributed point to point: gloo, or NCCL for tensors on GPUs
    RAY_STORE = "ray_store"  # Ray's object store: works anywhere, slowest


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a worker is: its node and process, as the launcher names them, and the torch device of its tensors.

    process_group: whether torch.distributed connects the worker to the other end.
    """

    node: str
    process: str
    device: str = "cpu"
    process_group: bool = False


def choose(producer: Location, consumer: Location) -> Transport:
    """The cheapest transport that connects the two.

    One process shares references. On one node, tensors of one GPU stay on it and everything else goes through shared
    memory, unless both ends hold their tensors on different GPUs of one process group: NCCL then beats the way over the
    CPU. Between nodes it is torch.distributed, and Ray's object store where no process group spans the two.
    """
    if (producer.node, producer.process) == (consumer.node, consumer.process):
        return Transport.IN_PROCESS
    both_grouped = producer.process_group and consumer.process_group
    both_cuda = producer.device.startswith("cuda") and consumer.device.startswith("cuda")
    if producer.node == consumer.node:
        if both_cuda and producer.device == consumer.device:
            return Transport.CUDA_IPC
        return Transport.TORCH if both_cuda and both_grouped else Transport.SHARED_MEMORY
    return Transport.TORCH if both_grouped else Transport.RAY_STORE


@dataclasses.dataclass
class LinkStats:
    """What an end has moved.

    bytes: on the wire, 0 where items pass by reference. seconds: of work (copying, unpacking). waited: seconds, for the
    other side. oversize: items that needed memory beyond what was allocated beforehand.
    """

    items: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    oversize: int = 0


@dataclasses.dataclass(frozen=True)
class Ends:
    """Names for messages and traces: the link, the worker at this end and the one at the other."""

    link: str
    here: str
    there: str

    def deadline(self, seconds: float, what: str, state: str) -> DeadlineExceeded:
        """The error of a wait that took too long."""
        return DeadlineExceeded(
            f"{self.here} waited {seconds:g} s {what} on link {self.link}; the other end is {self.there} ({state}). "
            "Look at what that worker was doing, or raise cluster.deadline_seconds if it is only slow."
        )

    def died(self, what: str, state: str) -> PeerDied:
        """The error of a wait for a process that is gone."""
        return PeerDied(
            f"{self.there} ({state}) died while {self.here} waited {what} on link {self.link}. "
            "Its own log, or the kernel's (out of memory?), says why."
        )

    def closed(self, by: str) -> ChannelClosed:
        """The error of an operation on a link that one side has closed."""
        return ChannelClosed(f"link {self.link} from or to {self.here} was closed by {by}; nothing more can pass")


class _End(abc.ABC):
    """What both ends have."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.stats = LinkStats()

    @abc.abstractmethod
    def close(self) -> None:
        """Say that this end is done; safe to call twice. What was sent before can still be received."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Outgoing(_End):
    """The producer's end of a link."""

    @abc.abstractmethod
    def send(self, item: Any, key: Hashable = 0) -> None:
        """Hand `item` on; it may change again as soon as this returns. Waits while the link is full.

        Raises DeadlineExceeded, PeerDied, ChannelClosed, or NotARecord for an item that cannot travel.
        """

    @abc.abstractmethod
    async def send_async(self, item: Any, key: Hashable = 0) -> None:
        """`send` that lets the event loop run while it waits."""


class Incoming(_End):
    """The consumer's end of a link."""

    @abc.abstractmethod
    def recv(self) -> tuple[Hashable, Any]:
        """The next (key, item), in the order sent. Raises DeadlineExceeded, PeerDied or ChannelClosed, the latter two
        only once everything that was sent has been received."""

    @abc.abstractmethod
    async def recv_async(self) -> tuple[Hashable, Any]:
        """`recv` that lets the event loop run while it waits."""
