"""The shared-memory link in an event loop: waiting leaves it free, ends are shared, nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from link_processes import both_ends

LARGE = 2048  # float32 numbers: more than fits in an entry


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
