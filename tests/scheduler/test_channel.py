import asyncio
import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import ChannelClosed, DeadlineExceeded
from embodied.scheduler.channel import Channel, Fan, InProcessLane, Receiver, Sender
from embodied.scheduler.routing import Route
from embodied.scheduler.trace import WAIT, Trace


def make(producers=("p",), consumers=("c",), capacity=4, deadline=2.0, kind=int):
    trace = Trace()
    channel = Channel(
        "p.out -> c.in", list(producers), list(consumers), kind, capacity=capacity, deadline=deadline, trace=trace
    )
    return channel, trace


def senders(channel, *producers):
    fans = [
        Fan([InProcessLane(channel, name)], Route.SPREAD, rank, len(producers)) for rank, name in enumerate(producers)
    ]
    return [Sender([fan]) for fan in fans]


@settings(max_examples=60, deadline=None)
@given(
    producers=st.integers(1, 4),
    consumers=st.integers(1, 4),
    capacity=st.integers(1, 5),
    counts=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    pauses=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_nothing_is_lost_doubled_or_reordered_within_a_key(producers, consumers, capacity, counts, pauses):
    received: list[tuple[int, int]] = []

    async def produce(channel, name, index):
        for number in range(counts[index]):
            for _ in range(pauses[number % 4]):
                await asyncio.sleep(0)
            await channel.put(number, key=index, producer=name)
        await channel.end(name)

    async def consume(channel, name, index, stop):
        while not stop.is_set():
            entry = await channel.get_any(name)
            if entry is None:
                stop.set()
                return
            received.append(entry)
            for _ in range(pauses[4 + index]):
                await asyncio.sleep(0)

    async def scenario():
        names = [f"p{i}" for i in range(producers)]
        channel, _ = make(names, [f"c{i}" for i in range(consumers)], capacity)
        stop = asyncio.Event()
        makers = [asyncio.create_task(produce(channel, name, i)) for i, name in enumerate(names)]
        takers = [asyncio.create_task(consume(channel, f"c{i}", i, stop)) for i in range(consumers)]
        await asyncio.gather(*makers)
        await stop.wait()
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
        assert len(channel) == 0

    asyncio.run(scenario())
    by_key = collections.defaultdict(list)
    for key, number in received:
        by_key[key].append(number)
    assert dict(by_key) == {i: list(range(counts[i])) for i in range(producers) if counts[i]}


def test_a_reader_of_a_key_never_sees_another_key():
    async def scenario():
        channel, _ = make()
        waiting = asyncio.create_task(channel.get("wanted", "c"))
        await asyncio.sleep(0)
        await channel.put(1, "other", "p")
        await asyncio.sleep(0)
        assert not waiting.done()
        await channel.put(2, "wanted", "p")
        assert await waiting == 2
        assert await channel.get("other", "c") == 1

    asyncio.run(scenario())


def test_a_full_channel_holds_its_producer_back():
    async def scenario():
        channel, _ = make(capacity=1)
        await channel.put(1, 0, "p")
        second = asyncio.create_task(channel.put(2, 0, "p"))
        await asyncio.sleep(0.01)
        assert not second.done()
        assert await channel.get(0, "c") == 1
        await second
        assert await channel.get(0, "c") == 2

    asyncio.run(scenario())


def test_iteration_ends_when_all_producers_have_ended_and_starts_again_next_round():
    async def scenario():
        channel, _ = make(producers=("a", "b"))
        receiver = Receiver(channel, "c")
        first, second = senders(channel, "a", "b")
        for round_number in range(2):
            await first.put(round_number, key="a")
            await first.end()
            await second.put(round_number + 10, key="b")
            await second.end()
            assert [item async for item in receiver] == [("a", round_number), ("b", round_number + 10)]

    asyncio.run(scenario())


def test_rounds_that_overlap_are_told_apart():
    """A fast producer may be rounds ahead of a slow one, and of the reader."""

    async def scenario():
        channel, _ = make(producers=("a", "b"), capacity=10)
        receiver = Receiver(channel, "c")
        first, second = senders(channel, "a", "b")
        for number in (1, 2, 3):
            await first.put(number)
            await first.end()
        await second.put(10)
        await second.end()
        assert [item for _, item in [entry async for entry in receiver]] == [1, 10]
        await second.end()
        assert [item for _, item in [entry async for entry in receiver]] == [2]
        await second.put(30)
        await second.end()
        assert [item for _, item in [entry async for entry in receiver]] == [3, 30]

    asyncio.run(scenario())


def test_a_wait_past_its_deadline_names_both_sides_and_what_was_waited_for():
    async def scenario():
        channel, trace = make(producers=("env[0]",), consumers=("policy[0]",), deadline=0.05)
        with pytest.raises(DeadlineExceeded) as caught:
            await channel.get("slot 1", "policy[0]")
        message = str(caught.value)
        assert all(word in message for word in ("policy[0]", "env[0]", "slot 1", "p.out -> c.in", "0.05 s"))
        waits = [
            seconds
            for (worker, _, kind), seconds in trace.take_totals().items()
            if (worker, kind) == ("policy[0]", WAIT)
        ]
        assert 0.04 < sum(waits) < 1.0

    asyncio.run(scenario())


def test_closing_wakes_everyone_with_the_reason():
    async def scenario():
        channel, _ = make()
        waiting = asyncio.create_task(channel.get(0, "c"))
        await asyncio.sleep(0)
        await channel.close(RuntimeError("the simulator broke"))
        with pytest.raises(ChannelClosed, match="the simulator broke"):
            await waiting
        with pytest.raises(ChannelClosed):
            await channel.put(1, 0, "p")

    asyncio.run(scenario())


def test_an_item_of_another_type_is_refused():
    async def scenario():
        channel, _ = make()
        with pytest.raises(TypeError, match="carries int, but p put a str"):
            await channel.put("text", 0, "p")

    asyncio.run(scenario())
