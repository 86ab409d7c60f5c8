"""One channel by itself; channels among many workers are in test_channel_networks."""

import asyncio

import pytest

from embodied.errors import ChannelClosed, CorrectnessAlarm, DeadlineExceeded
from embodied.scheduler.channel import Channel
from embodied.scheduler.ports import Fan, InProcessLane, Receiver, Sender
from embodied.scheduler.routing import Route
from embodied.scheduler.trace import WAIT, Trace


def make(producers=("p",), consumer="c", capacity=4, deadline=2.0, kind=int):
    trace = Trace()
    channel = Channel(
        "p.out -> c.in", list(producers), consumer, kind, capacity=capacity, deadline=deadline, trace=trace
    )
    return channel, trace


def senders(channel, *producers):
    fans = [
        Fan([InProcessLane(channel, name)], Route.SPREAD, rank, len(producers)) for rank, name in enumerate(producers)
    ]
    return [Sender([fan]) for fan in fans]


def test_a_reader_of_a_key_never_sees_another_key():
    async def scenario():
        channel, _ = make()
        waiting = asyncio.create_task(channel.get("wanted"))
        await asyncio.sleep(0)
        await channel.put(1, "other", "p")
        await asyncio.sleep(0)
        assert not waiting.done()
        await channel.put(2, "wanted", "p")
        assert await waiting == 2
        assert await channel.get("other") == 1

    asyncio.run(scenario())


def test_a_full_channel_holds_its_producer_back():
    async def scenario():
        channel, _ = make(capacity=1)
        await channel.put(1, 0, "p")
        second = asyncio.create_task(channel.put(2, 0, "p"))
        await asyncio.sleep(0.01)
        assert not second.done()
        assert await channel.get(0) == 1
        await second
        assert await channel.get(0) == 2

    asyncio.run(scenario())


def test_a_group_larger_than_the_channel_still_passes_and_is_seen_only_when_complete():
    async def scenario():
        channel, _ = make(capacity=2)
        receiver = Receiver(channel)
        (sender,) = senders(channel, "p")
        for number in range(3):
            await sender.put(number, "large", members=4)
        assert len(channel) == 0
        await sender.put(10, "alone")
        await sender.put(3, "large", members=4)
        await sender.end()
        groups = [entry async for entry in receiver.groups()]
        assert groups == [("alone", [10]), ("large", [0, 1, 2, 3])]

    asyncio.run(scenario())


def test_members_are_in_the_order_of_their_producers_whoever_came_first():
    async def scenario():
        channel, _ = make(producers=("a", "b"))
        first, second = senders(channel, "a", "b")
        await second.put(20, "g", members=3)
        await second.put(21, "g", members=3)
        await second.end()
        await first.put(10, "g", members=3)
        await first.end()
        assert [entry async for entry in Receiver(channel).groups()] == [("g", [10, 20, 21])]

    asyncio.run(scenario())


def test_a_group_left_incomplete_and_one_of_two_sizes_are_refused():
    async def scenario():
        channel, _ = make(producers=("a", "b"))
        first, second = senders(channel, "a", "b")
        await first.put(1, "g", members=3)
        with pytest.raises(ValueError, match=r"one of 2 members of group 'g'.*a said that it has 3"):
            await second.put(2, "g", members=2)
        await first.end()
        await second.end()
        with pytest.raises(CorrectnessAlarm, match=r"group 'g' has 1 of 3 members at the end of the round.*from a;"):
            await channel.next()

    asyncio.run(scenario())


def test_iteration_ends_when_all_producers_have_ended_and_starts_again_next_round():
    async def scenario():
        channel, _ = make(producers=("a", "b"))
        receiver = Receiver(channel)
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
        receiver = Receiver(channel)
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
        channel, trace = make(producers=("env[0]",), consumer="policy[0]", deadline=0.05)
        with pytest.raises(DeadlineExceeded) as caught:
            await channel.get("slot 1")
        message = str(caught.value)
        assert all(word in message for word in ("policy[0]", "env[0]", "slot 1", "p.out -> c.in", "0.05 s"))
        waits = [
            seconds
            for (worker, _, kind), seconds in trace.take_totals().items()
            if (worker, kind) == ("policy[0]", WAIT)
        ]
        assert 0.04 < sum(waits) < 1.0
        await channel.put(1, "g", "env[0]", members=2)
        with pytest.raises(DeadlineExceeded, match=r"groups with members missing: .'1 of 2': 1"):
            await channel.next()
        for number in range(4):
            await channel.put(number, 0, "env[0]")
        with pytest.raises(DeadlineExceeded, match=r"env\[0\] waited 0.05 s to put an item .* for policy\[0\]"):
            await channel.put(5, 0, "env[0]")

    asyncio.run(scenario())


def test_closing_wakes_everyone_with_the_reason():
    async def scenario():
        channel, _ = make()
        waiting = asyncio.create_task(channel.get(0))
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
