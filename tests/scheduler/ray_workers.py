"""Workers for tests of the Ray launcher; importable by name, as processes of their own need it."""

import asyncio
import os
import time

import torch

from embodied.scheduler import Input, Output, Worker


class Producer(Worker):
    numbers = Output(int)

    async def setup(self, announced):
        return os.getpid()

    async def run(self, count):
        for number in range(count):
            await self.numbers.put(number)
        await self.numbers.end()

    async def die(self):
        os._exit(7)

    async def cores_and_threads(self):
        return sorted(os.sched_getaffinity(0)), torch.get_num_threads()

    async def raise_an_error(self):
        raise ValueError("a number of mine is bad")

    async def process_id(self):
        return os.getpid()

    def compute(self, seconds):
        """Without a turn of the event loop."""
        time.sleep(seconds)
        return self.context.rank

    async def wait_for_ever(self):
        await asyncio.sleep(3600)


class Consumer(Worker):
    numbers = Input(int)

    async def setup(self, announced):
        self.producer = announced["producer"]

    async def run(self):
        return sum([number async for _, number in self.numbers]), self.producer

    async def die_after(self, count):
        async for _ in self.numbers:
            count -= 1
            if not count:
                os._exit(7)
