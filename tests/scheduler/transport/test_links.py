"""What every link promises, checked on each transport; torch.distributed over real gloo, Ray over a real local Ray."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from link_processes import Child, both_ends, reading_from, writer

from embodied.errors import ChannelClosed, ConfigurationError, DeadlineExceeded
from embodied.scheduler.transport import Codec, Ends, Incoming, Location, Outgoing, PeerDied, Transport, choose
from embodied.scheduler.transport.cuda_ipc import CudaIpcCodec
from embodied.scheduler.transport.in_process import pair
from embodied.scheduler.transport.torch_link import Route, TorchIncoming, TorchOutgoing

Pair = tuple[Outgoing, Incoming]
LOCAL = {"in_process": lambda deadline: pair("numbers", "writer[0]", "reader[0]", deadline=deadline, capacity=4),
         "shared_memory": lambda deadline: both_ends(deadline=deadline)}  # fmt: skip


@pytest.fixture(params=sorted(LOCAL))
def make(request: pytest.FixtureRequest) -> Callable[[float], Pair]:
    return LOCAL[request.param]


def test_items_pass_in_order_with_their_keys(make: Callable[[float], Pair]) -> None:
    outgoing, incoming = make(10.0)

    def send() -> None:
        for i in range(200):
            outgoing.send({"number": i}, ("slot", i % 2))

    sending = threading.Thread(target=send)
    sending.start()
    assert [incoming.recv() for _ in range(200)] == [(("slot", i % 2), {"number": i}) for i in range(200)]
    sending.join()
    assert (outgoing.stats.items, incoming.stats.items) == (200, 200)


def test_coroutines_exchange_items_under_back_pressure(make: Callable[[float], Pair]) -> None:
    outgoing, incoming = make(10.0)

    async def send() -> None:
        for i in range(200):
            await outgoing.send_async(i)

    async def main() -> list[int]:
        sending = asyncio.create_task(send())
        received = [(await incoming.recv_async())[1] for _ in range(200)]
        await sending
        return received

    assert asyncio.run(main()) == list(range(200))


def test_waits_have_deadlines_and_closing_is_told(make: Callable[[float], Pair]) -> None:
    outgoing, incoming = make(0.05)
    with pytest.raises(DeadlineExceeded, match=r"reader\[0\] waited 0.05 s for an item from writer\[0\]"):
        incoming.recv()
    with pytest.raises(DeadlineExceeded, match=r"reader\[0\] waited 0.05 s for an item from writer\[0\]"):
        asyncio.run(incoming.recv_async())
    outgoing.send("last")
    outgoing.close()
    assert incoming.recv() == (0, "last")
    with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
        asyncio.run(incoming.recv_async())


def test_in_process_passes_the_object_itself() -> None:
    outgoing, incoming = pair("numbers", "writer[0]", "reader[0]", deadline=1.0, capacity=1)
    item = {"anything": object()}
    outgoing.send(item)
    with pytest.raises(DeadlineExceeded, match="1 of 1 items under way"):
        outgoing.send(item)
    assert incoming.recv()[1] is item


NODE_A = Location("a", "1")


@pytest.mark.parametrize(
    ("producer", "consumer", "transport"),
    [
        (NODE_A, NODE_A, Transport.IN_PROCESS),
        (Location("a", "1", "cuda:0"), Location("a", "1", "cuda:1"), Transport.IN_PROCESS),
        (NODE_A, Location("a", "2"), Transport.SHARED_MEMORY),
        (NODE_A, Location("b", "1"), Transport.RAY_STORE),  # the same process name on another node
        (Location("a", "1", "cpu", True), Location("b", "1", "cuda:0", True), Transport.TORCH),
        (Location("a", "1", "cpu", True), Location("b", "1", "cpu", False), Transport.RAY_STORE),
        (Location("a", "1", "cuda:0"), Location("a", "2", "cuda:0"), Transport.CUDA_IPC),
        (Location("a", "1", "cuda:0", True), Location("a", "2", "cuda:0", True), Transport.CUDA_IPC),
        (Location("a", "1", "cuda:0", True), Location("a", "2", "cuda:1", True), Transport.TORCH),
        (Location("a", "1", "cuda:0"), Location("a", "2", "cuda:1"), Transport.SHARED_MEMORY),
        (Location("a", "1", "cpu", True), Location("a", "2", "cuda:0", True), Transport.SHARED_MEMORY),
        (Location("a", "1", "cuda:0", True), Location("b", "1", "cuda:0", True), Transport.TORCH),
    ],
)
def test_the_cheapest_transport_that_joins_two_places(
    producer: Location, consumer: Location, transport: Transport
) -> None:
    assert choose(producer, consumer) is transport


# torch.distributed: the test process is rank 0, a forked child rank 1


def group(rank: int, store: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=dt.timedelta(seconds=30)
    )


def torch_ends(rank: int, codec: Codec, deadline: float) -> Pair:
    here, there = ("reader[0]", "writer[0]") if rank == 0 else ("writer[0]", "reader[0]")
    outgoing = TorchOutgoing(Ends("numbers", here, there), Route(1 - rank, tag=rank), codec, deadline=deadline)
    return outgoing, TorchIncoming(
        Ends("numbers", here, there), Route(1 - rank, tag=1 - rank), codec, deadline=deadline
    )


@contextlib.contextmanager
def gloo(store: Path, work: Callable[[], None]) -> Iterator[Child]:
    def run() -> None:
        group(1, store)
        work()

    child = Child(run)
    try:
        group(0, store)
        yield child
    finally:
        child.kill()
        child.ended()
        dist.destroy_process_group()


ITEMS = [
    {"small": torch.arange(4), "text": "x"},
    [torch.arange(3 << 20, dtype=torch.int32)[::3], b"bytes"],
    {"empty": torch.zeros(0, 3), "none": None},
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return all(map(same, a, b)) if isinstance(a, list) else a == b


@pytest.mark.parametrize("apart", [None, "cpu"])
def test_gloo_brings_items_there_and_back(tmp_path: Path, apart: str | None) -> None:
    def echo() -> None:
        outgoing, incoming = torch_ends(1, Codec(apart=apart), 20.0)
        for i in range(2 * len(ITEMS)):
            key, item = incoming.recv() if i % 2 else asyncio.run(incoming.recv_async())
            outgoing.send(item, key)
        outgoing.close()

    with gloo(tmp_path / "store", echo):
        outgoing, incoming = torch_ends(0, Codec(apart=apart), 20.0)
        for i, item in enumerate([*ITEMS, *ITEMS]):
            outgoing.send(item, i)
            key, back = incoming.recv()
            assert key == i
            assert same(back, item)
        with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
            incoming.recv()


def test_a_missed_deadline_or_a_cancelled_wait_loses_nothing_over_gloo(tmp_path: Path) -> None:
    def send_late() -> None:
        outgoing, incoming = torch_ends(1, Codec(), 20.0)
        assert incoming.recv() == (0, "go on")
        for i in range(3):
            outgoing.send(i)
        incoming.recv()

    with gloo(tmp_path / "store", send_late):
        outgoing = torch_ends(0, Codec(), 20.0)[0]
        incoming = torch_ends(0, Codec(), 0.1)[1]
        with pytest.raises(DeadlineExceeded, match=r"reader\[0\] waited 0.1 s for an item from writer\[0\]"):
            incoming.recv()

        async def main() -> list[tuple[Any, Any]]:
            with pytest.raises(DeadlineExceeded):
                await incoming.recv_async()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(incoming.recv_async(), 0.02)
            await outgoing.send_async("go on")
            return [await incoming.recv_async(), incoming.recv(), await incoming.recv_async()]

        assert asyncio.run(main()) == [(0, 0), (0, 1), (0, 2)]
        outgoing.send("done")


def test_a_death_is_noticed_over_gloo(tmp_path: Path) -> None:
    def wait_to_be_killed() -> None:
        torch_ends(1, Codec(), 20.0)[1].recv()

    with gloo(tmp_path / "store", wait_to_be_killed) as child:
        incoming = torch_ends(0, Codec(), 20.0)[1]
        threading.Timer(0.2, child.kill).start()
        with pytest.raises(PeerDied, match=r"writer\[0\] \(rank 1\) died while reader\[0\] waited for an item"):
            incoming.recv()
        with pytest.raises(PeerDied, match="after an earlier failure"):
            incoming.recv()


@pytest.mark.slow
def test_ray_store_brings_items_and_says_that_it_is_used(caplog: pytest.LogCaptureFixture) -> None:
    ray = pytest.importorskip("ray")
    from embodied.scheduler.transport.ray_store import RayIncoming, RayOutgoing, mailbox

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        box = mailbox(capacity=2)
        outgoing = RayOutgoing(Ends("numbers", "writer[0]", "reader[0]"), box, Codec(), deadline=0.3)
        incoming = RayIncoming(Ends("numbers", "reader[0]", "writer[0]"), box, Codec(), deadline=0.3)
        assert "goes through Ray's object store" in caplog.text
        for key, item in enumerate(ITEMS[:2]):
            outgoing.send(item, key)
        with pytest.raises(DeadlineExceeded, match="2 items under way"):
            outgoing.send(1)
        for key, item in enumerate(ITEMS[:2]):
            got = incoming.recv()
            assert got[0] == key
            assert same(got[1], item)
        with pytest.raises(DeadlineExceeded, match="for an item"):
            incoming.recv()

        async def exchange() -> object:
            await outgoing.send_async("a")
            return await incoming.recv_async()

        assert asyncio.run(exchange()) == (0, "a")
        outgoing.close()
        with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
            incoming.recv()
    finally:
        ray.shutdown()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_ipc_is_refused_without_a_device() -> None:
    with pytest.raises(ConfigurationError, match="needs a CUDA device"):
        CudaIpcCodec()


def send_from_gpu(address: str) -> None:
    codec = CudaIpcCodec()
    with writer(address, codec) as outgoing:
        tensor = torch.arange(1 << 20, device="cuda")
        outgoing.send({"x": tensor, "part": tensor[5:7], "host": torch.ones(3), "pid": os.getpid()})
        tensor.zero_()
        torch.cuda.synchronize()
        outgoing.send("until here")
        threading.Event().wait(5)  # the sender outlives what it sent


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_stay_on_their_device() -> None:
    with reading_from(send_from_gpu, deadline=120.0, method="spawn") as (incoming, child):
        incoming._codec = CudaIpcCodec()
        item = incoming.recv()[1]
        assert incoming.recv() == (0, "until here")
        assert item["pid"] == child.pid
        assert item["x"].device.type == "cuda"
        assert torch.equal(item["x"].cpu(), torch.arange(1 << 20))
        assert item["part"].tolist() == [5, 6]
        assert item["host"].device.type == "cpu"
