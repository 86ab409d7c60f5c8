"""The shared-memory link: order, back-pressure, views of shared memory and their release."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_processes import both_ends, reading_from, writer

from embodied.errors import DeadlineExceeded
from embodied.scheduler.trace import Trace
from embodied.scheduler.transport import Codec
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
