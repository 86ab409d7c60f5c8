"""Workers for tests of the Ray launcher; importable by name, as processes of their own need it."""

import asyncio
import os

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

    async def raise_an_error(self):
        raise ValueError("a number of mine is bad")

    async def wait_for_ever(self):
        await asyncio.sleep(3600)


class Consumer(Worker):
    numbers = Input(int)

    async def setup(self, announced):
        self.producer = announced["producer"]

    async def run(self):
        return sum([number async for _, number in self.numbers]), self.producer
