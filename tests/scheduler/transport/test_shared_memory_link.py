"""The shared-memory link: order, back-pressure, views and their release, dead peers, deadlines, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_processes import Child, both_ends, listener, reading_from, writer

from embodied.errors import ChannelClosed, DeadlineExceeded, WorkerError
from embodied.scheduler.trace import Trace
from embodied.scheduler.transport import Codec, Incoming, Outgoing, PeerDied
from embodied.scheduler.transport.records import Packed
from embodied.scheduler.transport.ring import BLOCKS, ENTRIES

LARGE = 2048  # float32 numbers: more than fits in an entry


def write_numbers(address: str, count: int, size: int, capacity: int) -> None:
    with writer(address, capacity=capacity) as outgoing:
        for i in range(count):
            outgoing.send(torch.full((size,), i, dtype=torch.float32), i % 3)
        while outgoing._words[8] != count:  # until the reader has everything: then it is free to see us go
            time.sleep(0.001)


@pytest.mark.parametrize(
    ("count", "size", "capacity"), [(20_000, 8, 1 << 16), (2_000, LARGE, 1 << 16), (40, 1 << 20, 8 << 20)]
)
def test_everything_arrives_once_and_in_order(count: int, size: int, capacity: int) -> None:
    with reading_from(write_numbers, count, size, capacity) as (incoming, child):
        for i in range(count):
            key, item = incoming.recv()
            assert (key, item.shape, item[0].item(), item[-1].item()) == (i % 3, (size,), i, i)
        assert incoming.stats.items == count
        assert child.ended() == 0


@given(
    sizes=st.lists(st.sampled_from([1, 500, 1008, 1100, LARGE, 9000, 40_000]), min_size=1, max_size=40),
    held=st.integers(0, 12),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_contents_survive_any_mixture_of_sizes_and_releases(sizes: list[int], held: int, data: st.DataObject) -> None:
    outgoing, incoming = both_ends(capacity=64 << 10)
    kept: list[tuple[int, torch.Tensor]] = []
    with outgoing, incoming:
        for i, size in enumerate(sizes):
            outgoing.send(torch.full((size,), i, dtype=torch.float32), i)
            key, item = incoming.recv()
            kept.append((key, item))
            if len(kept) > held:
                del kept[data.draw(st.integers(0, len(kept) - 1))]
            del item
            for number, tensor in kept:
                assert tensor.eq(number).all()
        assert incoming.held <= len(kept)


def test_received_tensors_alias_shared_memory_and_small_ones_do_not() -> None:
    outgoing, incoming = both_ends()
    outgoing.send({"x": torch.zeros(LARGE)})
    large = incoming.recv()[1]["x"]
    arena = outgoing._arenas[0].segment
    number = next(iter(outgoing._blocks))
    offset = outgoing._blocks[number][1]
    written_by_sender = torch.frombuffer(arena.view, dtype=torch.float32, count=4096, offset=offset)
    written_by_sender.fill_(7)
    assert large.eq(7).all()
    outgoing.send({"x": torch.zeros(8)})
    small = incoming.recv()[1]["x"]
    assert incoming.held == 1
    assert small.eq(0).all()


def test_a_block_is_reused_only_after_the_last_view_of_it_is_gone() -> None:
    outgoing, incoming = both_ends(capacity=1 << 20)
    outgoing.send([torch.full((LARGE,), 1.0), torch.full((LARGE,), 2.0)])
    first, second = incoming.recv()[1]
    row = second[5:6].numpy()  # a view of a view, by way of another library
    place = outgoing._blocks.copy()
    del first, second
    for i in range(3):
        outgoing.send(torch.full((2 * LARGE,), 9.0 + i))
        incoming.recv()
    assert row.tolist() == [2.0]
    assert place.items() <= outgoing._blocks.items()
    del row
    assert incoming.held == 0
    outgoing.send([torch.zeros(LARGE), torch.zeros(LARGE)])
    assert list(outgoing._blocks.values()) == list(place.values())  # the same memory again


def test_a_full_link_holds_its_sender_back_until_something_is_received() -> None:
    for size, capacity, fits in ((8, 1 << 20, ENTRIES), (LARGE, 64 << 10, 7)):
        outgoing, incoming = both_ends(capacity=capacity, deadline=0.2)
        for i in range(fits):
            outgoing.send(torch.full((size,), float(i)))
        with pytest.raises(DeadlineExceeded):
            outgoing.send(torch.zeros(size))
        late = threading.Timer(0.05, incoming.recv)
        late.start()
        outgoing.send(torch.full((size,), float(fits)))
        late.join()
        assert [incoming.recv()[1][0].item() for _ in range(fits)] == [float(i) for i in range(1, fits + 1)]


def test_what_the_receiver_keeps_never_stops_the_link() -> None:
    outgoing, incoming = both_ends(capacity=64 << 10, deadline=5.0)
    kept = []
    for i in range(100):  # 800 KiB held of an arena of 64 KiB
        outgoing.send(torch.full((LARGE,), float(i)))
        kept.append(incoming.recv()[1])
    assert [k[-1].item() for k in kept] == list(range(100))
    assert outgoing.stats.oversize > 0
    kept.clear()
    for _ in range(ENTRIES + 1):
        outgoing.send(torch.zeros(LARGE))
        incoming.recv()
    assert len(outgoing._arenas) == len(incoming._segments) == 2  # the preallocated one and one spare


def test_more_held_items_than_block_numbers() -> None:
    outgoing, incoming = both_ends(capacity=64 << 20, deadline=5.0)
    kept = []
    for i in range(BLOCKS + 50):
        outgoing.send(torch.full((LARGE,), float(i)))
        kept.append(incoming.recv()[1])
    assert [k[0].item() for k in kept] == list(range(BLOCKS + 50))
    assert incoming.held == BLOCKS // 2


def test_an_item_larger_than_the_arena_passes_and_the_trace_says_how() -> None:
    trace = Trace()
    outgoing, incoming = both_ends(capacity=1 << 20, trace=trace)
    for i in range(3):
        outgoing.send(torch.full((1 << 20,), float(i)))
        assert incoming.recv()[1].eq(i).all()
    assert outgoing.stats.oversize == 1  # the further segment is used again
    names = [name for _, name, _ in trace.take_totals()]
    assert "send to reader[0] through a new segment (4.19 MB)" in names
    assert "send to reader[0] through shared memory (4.19 MB)" in names


def test_an_item_that_fails_while_it_is_written_leaves_the_link_whole() -> None:
    class Failing(Packed):
        __slots__ = ()

        def write(self, target: memoryview, address: int) -> None:
            raise RuntimeError("the device is lost")

    class FailingCodec(Codec):
        fails = False

        def pack(self, item: Any) -> Packed:
            packed = super().pack(item)
            if self.fails:
                packed.__class__ = Failing
            return packed

    codec = FailingCodec()
    outgoing, incoming = both_ends(codec=codec, capacity=64 << 10, deadline=1.0)
    for size in (8, LARGE, 1 << 16, 1 << 18):  # in an entry, in the arena, in one new segment, in a second
        codec.fails = True
        with pytest.raises(RuntimeError, match="the device is lost"):
            outgoing.send(torch.zeros(size))
    codec.fails = False
    for size in (LARGE, 1 << 17, 8, LARGE, LARGE):
        outgoing.send(torch.full((size,), 3.0))
        assert incoming.recv()[1].eq(3).all()
    assert set(outgoing._arenas) == set(incoming._segments)


def test_waiting_in_an_event_loop_leaves_it_free() -> None:
    outgoing, incoming = both_ends()

    async def main() -> tuple[int, Any]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        receiving = asyncio.create_task(incoming.recv_async())
        await asyncio.sleep(0.1)
        await outgoing.send_async("late", "key")
        entry = await receiving
        ticking.cancel()
        return ticks, entry

    ticks, entry = asyncio.run(main())
    assert entry == ("key", "late")
    assert ticks > 20


def test_a_busy_link_does_not_keep_the_event_loop_to_itself() -> None:
    outgoing, incoming = both_ends()

    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        for i in range(320):  # there is always room, and always an item
            await outgoing.send_async(i)
            await incoming.recv_async()
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) >= 40


def test_coroutines_that_share_an_end_take_turns() -> None:
    outgoing, incoming = both_ends(capacity=1 << 17)

    async def main() -> list[int]:
        async def send(slot: int) -> None:
            for i in range(50):
                await outgoing.send_async(torch.full((LARGE,), i), slot)

        senders = [asyncio.create_task(send(slot)) for slot in range(3)]
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(150):
            key, item = await incoming.recv_async()
            seen[key].append(int(item[-1]))
        await asyncio.gather(*senders)
        assert all(numbers == list(range(50)) for numbers in seen.values())
        return [len(numbers) for numbers in seen.values()]

    assert asyncio.run(main()) == [50, 50, 50]


def test_a_cancelled_receive_loses_nothing() -> None:
    outgoing, incoming = both_ends()

    async def main() -> Any:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(incoming.recv_async(), 0.05)
        await outgoing.send_async(11)
        return await incoming.recv_async()

    assert asyncio.run(main()) == (0, 11)


def test_deadline_names_both_sides_and_the_operation() -> None:
    outgoing, incoming = both_ends(deadline=0.05)
    message = (
        r"reader\[0\] waited 0.05 s for an item from writer\[0\] on link numbers; "
        rf"the other end is writer\[0\] \(pid {os.getpid()}, 0 of {ENTRIES} items under way\)"
    )
    with pytest.raises(DeadlineExceeded, match=message):
        incoming.recv()
    with pytest.raises(DeadlineExceeded, match=message):
        asyncio.run(incoming.recv_async())
    with pytest.raises(DeadlineExceeded, match=r"reader\[0\] waited 0.05 s for the other end to connect"):
        listener(deadline=0.05).accept()
    outgoing.close()


def test_a_closed_link_gives_what_was_sent_and_then_says_who_closed_it() -> None:
    outgoing, incoming = both_ends()
    outgoing.send("last")
    outgoing.close()
    outgoing.close()
    assert incoming.recv() == (0, "last")
    with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
        incoming.recv()
    with pytest.raises(ChannelClosed, match=r"closed by writer\[0\]"):
        outgoing.send(1)
    outgoing, incoming = both_ends()
    incoming.close()
    with pytest.raises(ChannelClosed, match=r"closed by reader\[0\]"):
        outgoing.send(1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_closing_wakes_a_wait_at_this_very_end(asynchronous: bool) -> None:
    outgoing, incoming = both_ends()
    gc.collect()
    before = traces_left()["fds"]
    threading.Timer(0.1, incoming.close).start()
    begin = time.perf_counter()
    with pytest.raises(ChannelClosed, match=r"closed by reader\[0\]"):
        asyncio.run(incoming.recv_async()) if asynchronous else incoming.recv()
    assert time.perf_counter() - begin < 0.4
    outgoing.close()
    assert traces_left()["fds"] < before


def test_views_that_outlive_the_process_end_without_noise() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\n"
        "from link_processes import both_ends\n"
        "outgoing, incoming = both_ends()\n"
        "outgoing.send([torch.zeros(5000), {'x': torch.ones(5000)}])\n"
        "kept = incoming.recv()\n"
    )
    here = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", script, here], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def write_and_hang(address: str, count: int) -> None:
    outgoing = writer(address)
    for i in range(count):
        outgoing.send(torch.full((LARGE,), float(i)))
    time.sleep(60)


def read_and_hang(address: str, count: int) -> None:
    waiting = writer(address)  # a child that reads needs its own listener; it sends us its address
    mine = listener(link="numbers")
    waiting.send(mine.address)
    incoming = mine.accept()
    for _ in range(count):
        incoming.recv()
    waiting.send("done")
    time.sleep(60)


def test_a_killed_writer_is_noticed_at_once_after_what_it_sent() -> None:
    with reading_from(write_and_hang, 3) as (incoming, child):
        first = incoming.recv()[1]
        time.sleep(0.1)
        child.kill()
        assert [incoming.recv()[1][0].item() for _ in range(2)] == [1, 2]
        begin = time.perf_counter()
        with pytest.raises(
            PeerDied, match=rf"writer\[0\] \(pid {child.pid}.*died while reader\[0\] waited for an item"
        ):
            incoming.recv()
        assert time.perf_counter() - begin < 2
        assert first.eq(0).all()  # its memory outlives it


def write_until_killed(address: str) -> None:
    outgoing = writer(address, capacity=1 << 18)
    for i in itertools.count():
        outgoing.send(torch.full((1 + 997 * i % 20_000,), i, dtype=torch.int32), i)


@pytest.mark.parametrize("milliseconds", [1, 3, 7, 15, 30])
def test_a_writer_killed_at_any_moment_leaves_whole_items_in_order(milliseconds: int) -> None:
    with reading_from(write_until_killed) as (incoming, child):
        entries = [incoming.recv()]
        threading.Timer(milliseconds / 1000, child.kill).start()
        with pytest.raises(PeerDied):
            read_all(incoming, entries)
        for i, (key, item) in enumerate(entries):
            assert (key, len(item)) == (i, 1 + 997 * i % 20_000)
            assert item.eq(i).all()


def read_all(incoming: Incoming, entries: list[tuple[Any, Any]]) -> None:
    while True:
        key, item = incoming.recv()
        entries.append((key, item if key % 10 == 0 else item.clone()))  # some stay views until the end


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_killed_writer_wakes_a_waiting_reader(asynchronous: bool) -> None:
    with reading_from(write_and_hang, 0) as (incoming, child):
        threading.Timer(0.2, child.kill).start()
        begin = time.perf_counter()
        with pytest.raises(PeerDied):
            asyncio.run(incoming.recv_async()) if asynchronous else incoming.recv()
        assert time.perf_counter() - begin < 2


def fill(outgoing: Outgoing) -> None:
    for _ in range(ENTRIES + 1):
        outgoing.send(torch.zeros(LARGE))


def test_a_killed_reader_is_noticed_by_its_writer() -> None:
    with reading_from(read_and_hang, 1) as (control, child):
        outgoing = writer(control.recv()[1])
        outgoing.send(torch.zeros(LARGE))
        assert control.recv() == (0, "done")
        child.kill()
        child.ended()
        with pytest.raises(PeerDied, match=rf"reader\[0\] \(pid {child.pid}.*died while writer\[0\] waited to send"):
            fill(outgoing)


def test_a_child_that_the_writer_forked_does_not_hide_its_death() -> None:
    def write_fork_and_hang(address: str) -> None:
        outgoing = writer(address)
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(1.5)
            os._exit(0)
        outgoing.send("forked")
        time.sleep(60)

    with reading_from(write_fork_and_hang) as (incoming, child):
        assert incoming.recv() == (0, "forked")
        child.kill()
        begin = time.perf_counter()
        with pytest.raises(PeerDied):
            incoming.recv()
        assert time.perf_counter() - begin < 1


def test_a_forked_child_does_not_release_its_parents_views() -> None:
    outgoing, incoming = both_ends()
    outgoing.send(torch.ones(LARGE))
    items = [incoming.recv()[1]]

    def drop() -> None:
        items.clear()
        gc.collect()

    assert Child(drop).ended() == 0
    assert incoming.held == 1
    outgoing.send(torch.zeros(LARGE))
    assert items[0].eq(1).all()


def traces_left() -> dict[str, Any]:
    """Everything this link could leave behind: files, socket addresses, mappings and descriptors of this process."""
    return {
        "files": sorted(p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(("embodied", "numbers"))),
        "sockets": [
            line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "embodied-" in line
        ],
        "maps": Path("/proc/self/maps").read_text().count("memfd:numbers"),
        "fds": len(os.listdir("/proc/self/fd")),
    }


def end_normally(address: str) -> None:
    with writer(address) as outgoing:
        outgoing.send(torch.zeros(LARGE))


def end_by_exception(address: str) -> None:
    writer(address).send(torch.zeros(LARGE))
    os.close(2)  # its traceback is meant to be
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("work", "signal_number"),
    [(end_normally, None), (end_by_exception, None), (write_and_hang, signal.SIGINT), (write_and_hang, signal.SIGKILL)],
)
def test_nothing_is_left_however_the_writer_ends(work: Any, signal_number: int | None) -> None:
    gc.collect()
    before = traces_left()
    with reading_from(work, *([1] if work is write_and_hang else [])) as (incoming, child):
        item = incoming.recv()[1]
        if signal_number is not None:
            child.kill(signal_number)
        child.ended()
        with pytest.raises((PeerDied, ChannelClosed)):
            incoming.recv()
        assert item.eq(0).all()
    del item, incoming, child
    gc.collect()
    assert traces_left() == before


def test_nothing_is_left_when_the_reader_is_killed() -> None:
    gc.collect()
    before = traces_left()
    with reading_from(read_and_hang, 1) as (control, child):
        outgoing = writer(control.recv()[1])
        outgoing.send(torch.zeros(LARGE))
        control.recv()
        child.kill()
        child.ended()
        outgoing.close()
    del outgoing, control, child
    gc.collect()
    assert traces_left() == before


def test_a_stranger_on_the_address_is_turned_away_with_both_sides_named() -> None:
    waiting = listener()
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect("\0" + waiting.address)
    stranger.send(b'{"version": 999}')
    with pytest.raises(WorkerError, match=r"reader\[0\] expected link numbers.*from writer\[0\].*999"):
        waiting.accept()
    stranger.close()


def test_connecting_to_nobody_names_the_address() -> None:
    with pytest.raises(PeerDied, match="nobody listens at embodied-0-nowhere"):
        writer("embodied-0-nowhere")
