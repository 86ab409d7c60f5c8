"""Moving records between two processes of one machine: this project's links beside Ray, multiprocessing and memcpy.

    OMP_NUM_THREADS=1 python benchmarks/transports.py [--rounds 7] [--write]

Every contender has one child process that answers. Contenders take turns within a round, so that all see the same
machine; the numbers are medians over all rounds. "Delivered" means that the child has the record (a view or a copy, as
the transport gives it) and has said so; "delivered and read" adds a sum over all its bytes. Peers move NumPy arrays
faster than tensors and get those; Ray is measured with both. `--write` saves the table to
benchmarks/results/transports.md.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import ctypes
import dataclasses
import datetime as dt
import multiprocessing
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from embodied.scheduler.transport import Codec, Ends, doorbell
from embodied.scheduler.transport.shared_memory import Listener, connect
from embodied.scheduler.transport.torch_link import Route, TorchIncoming, TorchOutgoing

MB = 1 << 20
ECHO, TAKE, READ, STOP = "echo", "take", "read", "stop"
CAPACITY = 256 * MB
DEADLINE = 120.0
RAY, RAY_TENSORS = "Ray object store, arrays", "Ray object store, tensors"
SPAWN = multiprocessing.get_context("spawn")


@dataclasses.dataclass(frozen=True)
class Workload:
    """repeats: exchanges a round. size: bytes of one item."""

    name: str
    size: int
    mode: str
    parts: int
    repeats: int

    def tensors(self) -> Any:
        """One float32 tensor, or a dict of `parts` tensors."""
        count = self.size // 4 // self.parts
        made = {f"field_{i}": torch.arange(count, dtype=torch.float32) for i in range(self.parts)}
        return made["field_0"] if self.parts == 1 else made

    def arrays(self) -> Any:
        """The same as NumPy arrays."""
        made = self.tensors()
        return made.numpy() if self.parts == 1 else {name: tensor.numpy() for name, tensor in made.items()}


WORKLOADS = [
    Workload("1 KB tensor, round trip", 1024, ECHO, 1, 300),
    Workload("1 KB in 8 tensors, round trip", 1024, ECHO, 8, 300),
    Workload("10 MB, round trip", 10 * MB, ECHO, 1, 8),
    Workload("10 MB, delivered", 10 * MB, TAKE, 1, 12),
    Workload("10 MB, delivered and read", 10 * MB, READ, 1, 8),
    Workload("100 MB, delivered", 100 * MB, TAKE, 1, 3),
    Workload("100 MB, delivered and read", 100 * MB, READ, 1, 2),
]


def answer(mode: str, item: Any) -> Any:
    """What a child sends back."""
    if mode == READ:
        return float(item.sum())
    return item if mode == ECHO else None


class SharedMemory:
    """This project's shared-memory link; both ends wait by `spin` seconds of looking, then asleep. `form` makes what is
    sent."""

    def __init__(self, spin: float = doorbell.SPIN_SECONDS, form: Callable[[Workload], Any] = Workload.tensors) -> None:
        doorbell.SPIN_SECONDS = spin
        self._spin = spin
        self._form = form
        back = Listener(Ends("back", "parent", "child"), Codec(), deadline=DEADLINE)
        address = SPAWN.Pipe()
        self._child = SPAWN.Process(target=self.child, args=(back.address, address[1], spin), daemon=True)
        self._child.start()
        self.incoming = back.accept()
        self.outgoing = connect(
            address[0].recv(), Ends("forth", "parent", "child"), Codec(), deadline=DEADLINE, capacity=CAPACITY
        )

    @staticmethod
    def ends_of_child(address: str, pipe: Any, spin: float) -> tuple[Any, Any]:
        torch.set_num_threads(1)
        doorbell.SPIN_SECONDS = spin
        forth = Listener(Ends("forth", "child", "parent"), Codec(), deadline=DEADLINE)
        outgoing = connect(address, Ends("back", "child", "parent"), Codec(), deadline=DEADLINE, capacity=CAPACITY)
        pipe.send(forth.address)
        return outgoing, forth.accept()

    @classmethod
    def child(cls, address: str, pipe: Any, spin: float) -> None:
        outgoing, incoming = cls.ends_of_child(address, pipe, spin)
        while (entry := incoming.recv())[0] != STOP:
            outgoing.send(answer(*entry))
            del entry

    def measure(self, workload: Workload) -> list[float]:
        doorbell.SPIN_SECONDS = self._spin
        item, times = self._form(workload), []
        for _ in range(workload.repeats):
            begin = time.perf_counter()
            self.outgoing.send(item, workload.mode)
            back = self.incoming.recv()
            times.append(time.perf_counter() - begin)
            del back
        return times

    def stop(self) -> None:
        self.outgoing.send(None, STOP)
        self._child.join()


class SharedMemoryAsync(SharedMemory):
    """The same link, used from event loops at both ends."""

    @classmethod
    def child(cls, address: str, pipe: Any, spin: float) -> None:
        outgoing, incoming = cls.ends_of_child(address, pipe, spin)

        async def serve() -> None:
            while (entry := await incoming.recv_async())[0] != STOP:
                await outgoing.send_async(answer(*entry))
                del entry

        asyncio.run(serve())

    def measure(self, workload: Workload) -> list[float]:
        doorbell.SPIN_SECONDS = self._spin
        item, times = self._form(workload), []

        async def exchange() -> None:
            for _ in range(workload.repeats):
                begin = time.perf_counter()
                await self.outgoing.send_async(item, workload.mode)
                back = await self.incoming.recv_async()
                times.append(time.perf_counter() - begin)
                del back

        asyncio.run(exchange())
        return times


class Gloo:
    """This project's torch.distributed link over gloo on the loopback interface."""

    def __init__(self) -> None:
        self._store = Path(tempfile.mkdtemp()) / "store"
        self._child = SPAWN.Process(target=self.child, args=(self._store,), daemon=True)
        self._child.start()
        self._outgoing, self._incoming = self.ends(0, self._store)

    @staticmethod
    def ends(rank: int, store: Path) -> tuple[TorchOutgoing, TorchIncoming]:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        ends, other = Ends("gloo", str(rank), str(1 - rank)), 1 - rank
        outgoing = TorchOutgoing(ends, Route(other, tag=rank), Codec(), deadline=DEADLINE)
        return outgoing, TorchIncoming(ends, Route(other, tag=other), Codec(), deadline=DEADLINE)

    @classmethod
    def child(cls, store: Path) -> None:
        torch.set_num_threads(1)
        outgoing, incoming = cls.ends(1, store)
        while (entry := incoming.recv())[0] != STOP:
            outgoing.send(answer(*entry))
        dist.destroy_process_group()

    def measure(self, workload: Workload) -> list[float]:
        item, times = workload.tensors(), []
        for _ in range(workload.repeats):
            begin = time.perf_counter()
            self._outgoing.send(item, workload.mode)
            self._incoming.recv()
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        self._outgoing.send(None, STOP)
        dist.destroy_process_group()
        self._child.join()


class Peer:
    """A pair of send and receive functions of multiprocessing."""

    def __init__(self, child: Callable[..., None], *args: Any) -> None:
        self._child = SPAWN.Process(target=child, args=args, daemon=True)
        self._child.start()

    def put(self, entry: tuple[str, Any]) -> None:
        raise NotImplementedError

    def get(self) -> Any:
        raise NotImplementedError

    def measure(self, workload: Workload) -> list[float]:
        item, times = workload.arrays(), []
        for _ in range(workload.repeats):
            begin = time.perf_counter()
            self.put((workload.mode, item))
            self.get()
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        self.put((STOP, None))
        self._child.join()


class Queue(Peer):
    """multiprocessing.Queue, one each way."""

    def __init__(self) -> None:
        self._forth, self._back = SPAWN.Queue(), SPAWN.Queue()
        super().__init__(self.child, self._forth, self._back)
        self.put, self.get = self._forth.put, self._back.get

    @staticmethod
    def child(forth: Any, back: Any) -> None:
        while (entry := forth.get())[0] != STOP:
            back.put(answer(*entry))


class Pipe(Peer):
    """multiprocessing.Pipe."""

    def __init__(self) -> None:
        here, there = SPAWN.Pipe()
        super().__init__(self.child, there)
        self.put, self.get = here.send, here.recv

    @staticmethod
    def child(connection: Any) -> None:
        while (entry := connection.recv())[0] != STOP:
            connection.send(answer(*entry))


class RayStore:
    """A Ray actor; items above Ray's inline limit go through its object store. `form` makes the item to send."""

    def __init__(self, form: Callable[[Workload], Any]) -> None:
        self._form = form
        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30)

        class Child:
            def answer(self, mode: str, item: Any) -> Any:
                return answer(mode, item)

        self._child = ray.remote(Child).options(num_cpus=0).remote()
        ray.get(self._child.answer.remote(TAKE, None))

    def measure(self, workload: Workload) -> list[float]:
        item, times = self._form(workload), []
        for _ in range(workload.repeats):
            begin = time.perf_counter()
            ray.get(self._child.answer.remote(workload.mode, item))
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        ray.shutdown()


class Memcpy:
    """One memmove between two buffers of this process: the rate that bounds every copying transport."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def measure(self, workload: Workload) -> list[float]:
        if workload.mode == ECHO:
            return []
        if workload.size not in self._buffers:
            source = torch.ones(workload.size, dtype=torch.uint8)
            self._buffers[workload.size] = (source, torch.zeros_like(source))
        source, target = self._buffers[workload.size]
        times = []
        for _ in range(workload.repeats):
            begin = time.perf_counter()
            ctypes.memmove(target.data_ptr(), source.data_ptr(), workload.size)
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        self._buffers.clear()


CONTENDERS: dict[str, Callable[[], Any]] = {
    "memcpy": Memcpy,
    "shared memory": SharedMemory,
    "shared memory, arrays": lambda: SharedMemory(form=Workload.arrays),
    "shared memory, asyncio": SharedMemoryAsync,
    "shared memory, no spinning": lambda: SharedMemory(spin=0.0),
    "shared memory, asyncio, no spinning": lambda: SharedMemoryAsync(spin=0.0),
    "torch.distributed (gloo)": Gloo,
    "multiprocessing.Pipe": Pipe,
    "multiprocessing.Queue": Queue,
    RAY: lambda: RayStore(Workload.arrays),
    RAY_TENSORS: lambda: RayStore(Workload.tensors),
}


def run(rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds by contender and workload."""
    torch.set_num_threads(1)
    contenders = {name: make() for name, make in CONTENDERS.items()}
    samples: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    try:
        for number in range(rounds + 1):
            for workload in WORKLOADS:
                for name, contender in contenders.items():
                    times = contender.measure(workload)
                    if number:  # the first round warms up
                        samples[name, workload.name] += times
    finally:
        for contender in contenders.values():
            contender.stop()
    return {
        name: {w.name: statistics.median(samples[name, w.name]) for w in WORKLOADS if samples[name, w.name]}
        for name in contenders
    }


def table(medians: dict[str, dict[str, float]]) -> str:
    """A Markdown table: microseconds for small items, milliseconds and GB/s for large ones."""
    lines = ["| | " + " | ".join(w.name for w in WORKLOADS) + " |", "|---" * (len(WORKLOADS) + 1) + "|"]
    for name, row in medians.items():
        cells = []
        for workload in WORKLOADS:
            seconds = row.get(workload.name)
            if seconds is None:
                cells.append("")
            elif workload.size < MB:
                cells.append(f"{seconds * 1e6:.0f} µs")
            else:
                moved = workload.size * (2 if workload.mode == ECHO else 1)
                cells.append(f"{seconds * 1e3:.2f} ms, {moved / seconds / 1e9:.1f} GB/s")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bars(medians: dict[str, dict[str, float]]) -> str:
    """The numbers that the transport was built to reach."""
    ours, large = medians["shared memory"], "10 MB, delivered"
    small = ours["1 KB tensor, round trip"] * 1e6
    asynchronous = medians["shared memory, asyncio"]["1 KB tensor, round trip"] * 1e6
    of_memcpy = medians["memcpy"][large] / ours[large]
    over_ray = {name: medians[name][large] / ours[large] for name in (RAY_TENSORS, RAY)}
    limit = medians[RAY][large] / (medians["memcpy"][large] + ours["1 KB tensor, round trip"])
    return "\n".join(
        [
            f"- 1 KB round trip: {small:.0f} µs, asyncio {asynchronous:.0f} µs (bar: under 60)",
            f"- 10 MB delivered at {of_memcpy:.0%} of the memcpy rate (bar: over 50 %)",
            f"- 10 MB delivered {over_ray[RAY_TENSORS]:.1f} times as fast as Ray delivers a tensor (bar: over 10), "
            f"{over_ray[RAY]:.1f} times as fast as it delivers an array "
            f"(one memcpy and a 1 KB round trip: {limit:.1f})",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    begin = os.getloadavg()[0]
    medians = run(options.rounds)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    text = (
        "# Transports between two processes\n\n"
        f"{dt.date.today()}, commit {commit or 'unknown'}, {os.cpu_count()} {platform.machine()} cores, "
        f"load {begin:.1f} at the start, torch {torch.__version__}, ray {ray.__version__}; "
        f"`OMP_NUM_THREADS=1 python benchmarks/transports.py --rounds {options.rounds} --write`\n\n"
        f"{table(medians)}\n\n{bars(medians)}\n\n"
        "Medians; one exchange is sending the item and getting the answer (the item, or a word once it is delivered).\n"
        "Delivery through shared memory is one copy: the child gets views, so reading is the child's own cost.\n"
    )
    print(text)
    if options.write:
        path = Path(__file__).parent / "results" / "transports.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
