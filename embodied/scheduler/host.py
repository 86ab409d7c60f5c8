"""The process that a worker lives in when it is not the launcher's own: ports made of links, operations on request.

Lanes of outputs write to links. For every link of an input a pump moves items into the worker's channel; when the
channel is full the pump stops, the link fills, and the producer waits. The worker itself cannot tell the difference
from a run in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import traceback
from collections.abc import Hashable
from typing import Any

import torch
import torch.distributed as dist

from embodied.errors import ChannelClosed, DeadlineExceeded, EmbodiedError
from embodied.scheduler.channel import Channel, Receipt, check_kind
from embodied.scheduler.cluster import share_of_cores
from embodied.scheduler.launcher import run_operation
from embodied.scheduler.ports import Fan, Ledger, Receiver, Sender
from embodied.scheduler.tasks import together
from embodied.scheduler.trace import Trace
from embodied.scheduler.transport import Codec, Ends, Incoming, Outgoing, Transport
from embodied.scheduler.transport import shared_memory as shm
from embodied.scheduler.transport.torch_link import Route as TorchRoute
from embodied.scheduler.transport.torch_link import TorchIncoming, TorchOutgoing
from embodied.scheduler.weights import Bucket, buckets, full_tensors, store, verify
from embodied.scheduler.wiring import Done, HostedEdge, Role
from embodied.scheduler.worker import Worker, WorkerContext


@dataclasses.dataclass(frozen=True)
class HostedWorker:
    """What a host is told about its worker.

    share: (index, number) of the node's cores that it is pinned to; None: any. threads: of the tensor library, at most
    as many as it has cores.
    """

    worker: type[Worker]
    options: Any
    stage: str
    rank: int
    world: int
    device: str
    seed: int
    deadline: float
    share: tuple[int, int] | None
    threads: int
    granularity: int | None
    slots: int


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """How all hosts of a run find each other for collectives: a TCP store, this host's place among all of them, and the
    places of every stage's workers (in the order in which all hosts make the groups). interface: of this host's node
    that leads to the other nodes; None on one node."""

    address: str
    port: int
    place: int
    places: int
    stages: dict[str, tuple[int, ...]]
    backend: str
    interface: str | None


class LinkLane:
    """A lane over a link; the end of a round is an item of its own."""

    def __init__(self, link: Outgoing, channel: str, kind: type, producer: str) -> None:
        self._link = link
        self._channel, self._kind, self._producer = channel, kind, producer

    async def put(self, item: Any, key: Hashable, weight: float, members: int) -> None:
        """Send an item. Raises TypeError here, where the fault is, for one of another kind than the channel's."""
        check_kind(item, self._kind, self._channel, self._producer)
        await self._link.send_async(item, (key, weight, members))

    async def end(self) -> None:
        """Send the end of the round."""
        await self._link.send_async(None, 0)


class WorkerHost:
    """One worker with its links."""

    def __init__(self, hosted: HostedWorker) -> None:
        threads = hosted.threads
        if hosted.share is not None:
            # of the cores that this process may use: a container's, a batch job's or taskset's are not all of the node
            cores = share_of_cores(os.sched_getaffinity(0), *hosted.share)
            os.sched_setaffinity(0, cores)
            threads = min(threads, len(cores))
        torch.set_num_threads(threads)
        self.trace = Trace()
        self._hosted = hosted
        self._context = WorkerContext(
            hosted.stage,
            hosted.rank,
            hosted.world,
            hosted.device,
            hosted.seed,
            self.trace,
            hosted.deadline,
            granularity=hosted.granularity,
            slots=hosted.slots,
        )
        self._listeners: dict[tuple[int, int], shm.Listener] = {}
        self._channels: dict[int, Channel] = {}
        self._pumps: list[asyncio.Task[None]] = []
        self._links: list[Incoming | Outgoing] = []
        self._weights_out: dict[int, list[Outgoing]] = {}
        self._weights_in: dict[int, Incoming] = {}
        self._sent_once: set[int] = set()
        self.worker: Worker | None = None

    async def meet(self, rendezvous: Rendezvous) -> None:
        """Join the other hosts for collectives; the worker's context gets its stage's process group."""
        await asyncio.to_thread(self._meet, rendezvous)

    def _meet(self, rendezvous: Rendezvous) -> None:
        import datetime as dt

        if rendezvous.interface is not None:
            # otherwise a host's own name decides, which may well mean the loopback
            os.environ.setdefault("GLOO_SOCKET_IFNAME", rendezvous.interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", rendezvous.interface)
        store_ = dist.TCPStore(
            rendezvous.address,
            rendezvous.port,
            rendezvous.places,
            is_master=rendezvous.place == 0,
            timeout=dt.timedelta(seconds=self._hosted.deadline),
        )
        dist.init_process_group(
            rendezvous.backend,
            store=store_,
            rank=rendezvous.place,
            world_size=rendezvous.places,
            timeout=dt.timedelta(seconds=self._hosted.deadline),
        )
        groups = {stage: dist.new_group(list(places)) for stage, places in rendezvous.stages.items()}
        self._context = dataclasses.replace(self._context, ranks=groups[self._hosted.stage])

    async def create(self) -> None:
        """Make the worker."""
        self.worker = self._hosted.worker(self._context, self._hosted.options)

    def _ends(self, edge: HostedEdge, producer: int, consumer: int, *, sending: bool) -> Ends:
        names = (edge.producers[producer], edge.consumers[consumer])
        here, there = names if sending else names[::-1]
        return Ends(f"{edge.name} [{producer}>{consumer}]", here, there)

    async def listen(self, edges: list[HostedEdge]) -> dict[tuple[int, int], str]:
        """Addresses, by (edge number, producer rank), where this worker's inputs wait for their producers."""
        addresses = {}
        for edge in edges:
            for producer in range(len(edge.producers)):
                if edge.transports[producer, self._hosted.rank] is Transport.TORCH:
                    continue
                ends = self._ends(edge, producer, self._hosted.rank, sending=False)
                codec = _codec(edge, producer, self._hosted.rank)
                listener = shm.Listener(ends, codec, deadline=self._hosted.deadline, trace=self.trace)
                self._listeners[edge.number, producer] = listener
                addresses[edge.number, producer] = listener.address
        return addresses

    async def join(
        self, inputs: list[HostedEdge], outputs: list[HostedEdge], addresses: dict[tuple[int, int, int], str]
    ) -> None:
        """Connect to every consumer and take in every producer; addresses by (edge, producer, consumer)."""
        ledgers: dict[int, Ledger] = {}
        receipts: dict[int, dict[str, Outgoing]] = {}
        self._join_outputs(outputs, addresses, ledgers, receipts)
        for edge in inputs:
            links = [await self._accept(edge, producer) for producer in range(len(edge.producers))]
            self._links += links
            if edge.role is Role.WEIGHTS:
                (self._weights_in[edge.number],) = links
                continue
            if edge.role is Role.RECEIPTS:
                assert edge.of is not None
                pumps = [_pump_receipts(link, ledgers[edge.of], consumer) for consumer, link in enumerate(links)]
            else:
                channel = self._open(edge, receipts.get(edge.number))
                pumps = [_pump(link, channel, producer) for link, producer in zip(links, edge.producers, strict=True)]
            self._pumps += [asyncio.create_task(pump) for pump in pumps]

    def _join_outputs(
        self,
        outputs: list[HostedEdge],
        addresses: dict[tuple[int, int, int], str],
        ledgers: dict[int, Ledger],
        receipts: dict[int, dict[str, Outgoing]],
    ) -> None:
        """Connect, and notes ledgers and the links of receipts by the number of their edge."""
        rank, worker = self._hosted.rank, self.worker
        assert worker is not None
        fans: dict[str, list[Fan]] = {}
        for edge in outputs:
            if rank >= len(edge.producers):
                continue  # of a sharded source's weights: the first rank sends for all
            links = [self._connect(edge, consumer, addresses) for consumer in range(len(edge.consumers))]
            self._links += links
            if edge.role is Role.WEIGHTS:
                self._weights_out[edge.number] = links
            elif edge.role is Role.RECEIPTS:
                assert edge.of is not None
                receipts[edge.of] = dict(zip(edge.consumers, links, strict=True))
            else:
                if edge.ahead is not None and len(links) > 1:
                    ledgers[edge.number] = self._ledger(edge, edge.ahead)
                rules = {"granularity": self._hosted.granularity, "ledger": ledgers.get(edge.number)}
                lanes = [LinkLane(link, edge.name, edge.kind, worker.name) for link in links]
                fan = Fan(lanes, edge.route, rank, len(edge.producers), **rules)
                fans.setdefault(edge.ports[0], []).append(fan)
        worker.ports.update({port: Sender(port_fans) for port, port_fans in fans.items()})

    def _open(self, edge: HostedEdge, receipts: dict[str, Outgoing] | None) -> Channel:
        """The channel of an input, and its receiver."""
        assert self.worker is not None
        channel = Channel(
            edge.name,
            list(edge.producers),
            self.worker.name,
            edge.kind,
            capacity=edge.capacity,
            deadline=self._hosted.deadline,
            trace=self.trace,
        )
        channel.receipt = _receipt(receipts)
        self._channels[edge.number] = channel
        self.worker.ports[edge.ports[1]] = Receiver(channel, self._hosted.granularity)
        return channel

    def _connect(self, edge: HostedEdge, consumer: int, addresses: dict[tuple[int, int, int], str]) -> Outgoing:
        rank, deadline = self._hosted.rank, self._hosted.deadline
        ends, codec = self._ends(edge, rank, consumer, sending=True), _codec(edge, rank, consumer)
        if edge.transports[rank, consumer] is Transport.TORCH:
            return TorchOutgoing(ends, self._torch_route(edge, edge.places[1][consumer]), codec, deadline=deadline)
        address = addresses[edge.number, rank, consumer]
        return shm.connect(address, ends, codec, deadline=deadline, trace=self.trace)

    async def _accept(self, edge: HostedEdge, producer: int) -> Incoming:
        rank = self._hosted.rank
        if edge.transports[producer, rank] is Transport.TORCH:
            ends, codec = self._ends(edge, producer, rank, sending=False), _codec(edge, producer, rank)
            route = self._torch_route(edge, edge.places[0][producer])
            return TorchIncoming(ends, route, codec, deadline=self._hosted.deadline)
        return await asyncio.to_thread(self._listeners.pop((edge.number, producer)).accept)

    def _torch_route(self, edge: HostedEdge, peer: int) -> TorchRoute:
        return TorchRoute(peer, tag=edge.number, device=self._hosted.device)

    def _ledger(self, edge: HostedEdge, ahead: int) -> Ledger:
        return Ledger(
            edge.name,
            edge.producers[self._hosted.rank],
            list(edge.consumers),
            ahead=ahead,
            deadline=self._hosted.deadline,
            trace=self.trace,
        )

    async def run(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Run one of the worker's operations."""
        assert self.worker is not None
        return await run_operation(self.worker, operation, arguments)

    async def send_weights(self, edge: int, version: int) -> None:
        """Send the worker's weights along a weight edge; after the first time only what can have changed."""
        assert self.worker is not None
        links = self._weights_out.get(edge, [])
        weights = self.worker.weights()
        if edge in self._sent_once:
            weights = {n: t for n, t in weights.items() if t.requires_grad or not isinstance(t, torch.nn.Parameter)}
        self._sent_once.add(edge)
        for bucket in buckets(full_tensors(weights), version):
            await together(link.send_async(bucket) for link in links)

    async def receive_weights(self, edge: int, version: int) -> None:
        """Take weights in, verify them, and tell the worker."""
        assert self.worker is not None
        link, target = self._weights_in[edge], self.worker.weights()
        while True:
            _, bucket = await link.recv_async()
            assert isinstance(bucket, Bucket)
            store(bucket, target)
            if bucket.marks is not None:
                verify(bucket.marks, target, version)
                self.worker.weights_changed(version)
                return

    async def take_times(self) -> dict[tuple[str, str, str], float]:
        """Seconds per span name since the last call."""
        return self.trace.take_totals()

    async def spans(self) -> list[tuple[str, str, str, float, float]]:
        """The newest spans, with times of this machine's monotonic clock."""
        return self.trace.spans()

    async def close(self) -> None:
        """Close the worker, then its links."""
        for pump in self._pumps:
            pump.cancel()
        for channel in self._channels.values():
            await channel.close(asyncio.CancelledError("the run is over"))
        try:
            if self.worker is not None:
                await run_operation(self.worker, "close", ())
        finally:
            for listener in self._listeners.values():
                listener.close()
            for link in self._links:
                with contextlib.suppress(EmbodiedError):  # the other end may be gone already
                    link.close()
            if dist.is_initialized():
                dist.destroy_process_group()


async def _pump(link: Incoming, channel: Channel, producer: str) -> None:
    try:
        while (entry := await _next(link)) is not None:
            key, item = entry
            if item is None:
                await channel.end(producer)
            else:
                key, weight, members = key
                await channel.put(item, key, producer, weight, members)
            del item, entry  # a view of the link's memory must not outlive its use here
    except Exception as error:  # nobody awaits a pump: whatever it is must reach the consumer, or it waits in vain
        await channel.close(error)


async def _pump_receipts(link: Incoming, ledger: Ledger, consumer: int) -> None:
    # should the consumer die, whoever waits for it finds out by its deadline, or sooner by the launcher
    with contextlib.suppress(EmbodiedError):
        while (entry := await _next(link)) is not None:
            await ledger.settle(consumer, entry[1].units, entry[1].weight)


async def _next(link: Incoming) -> tuple[Any, Any] | None:
    """The next (key, item); None once the link is closed."""
    while True:
        try:
            return await link.recv_async()
        except DeadlineExceeded:
            continue  # between rounds nothing comes; whoever needs an item has a deadline of its own
        except ChannelClosed:
            return None


def _receipt(links: dict[str, Outgoing] | None) -> Receipt | None:
    """Sends a consumer's receipts to its producers."""
    if links is None:
        return None

    async def send(producer: str, units: int, weight: float) -> None:
        await links[producer].send_async(Done(units, weight))

    return send


def _codec(edge: HostedEdge, producer: int, consumer: int) -> Codec:
    transport = edge.transports[producer, consumer]
    if transport is Transport.CUDA_IPC:
        from embodied.scheduler.transport.cuda_ipc import CudaIpcCodec

        return CudaIpcCodec(edge.kind)
    both_cuda = all(device.startswith("cuda") for device in (edge.devices[0][producer], edge.devices[1][consumer]))
    # between GPUs the process group moves tensors itself, without a visit to the CPU
    return Codec(edge.kind, apart="cuda" if transport is Transport.TORCH and both_cuda else None)


def describe_failure(error: BaseException) -> tuple[str, str, str]:
    """What travels of an exception: its class, its message, and its traceback as text."""
    return type(error).__name__, str(error), "".join(traceback.format_exception(error))
