"""A host by itself: what its pumps, lanes and links do when something fails."""

import asyncio

import pytest
import torch

from embodied.errors import ChannelClosed, WorkerError
from embodied.scheduler import Worker
from embodied.scheduler.channel import Channel
from embodied.scheduler.host import HostedWorker, LinkLane, WorkerHost, _pump
from embodied.scheduler.trace import Trace


class Link:
    """Brings one number; notes what is sent and that it is closed."""

    def __init__(self):
        self.items = [((0, 1.0, 1), 7)]
        self.sent, self.closed = [], False

    async def recv_async(self):
        if self.items:
            return self.items.pop()
        return await asyncio.Future()

    async def send_async(self, item, key):
        self.sent.append(item)

    def close(self):
        self.closed = True


def test_an_item_that_its_channel_refuses_reaches_the_consumer_as_an_error_at_once():
    async def scenario():
        channel = Channel("a.x -> b.x", ["a[0]"], "b[0]", str, capacity=4, deadline=5.0, trace=Trace())
        pump = asyncio.create_task(_pump(Link(), channel, "a[0]"))
        with pytest.raises(ChannelClosed, match=r"a.x -> b.x carries str, but a\[0\] put a int"):
            await channel.get(0)
        await pump

    asyncio.run(scenario())


def test_a_lane_refuses_an_item_of_another_kind_before_it_travels():
    async def scenario():
        link = Link()
        lane = LinkLane(link, "a.x -> b.x", str, "a[0]")
        with pytest.raises(TypeError, match=r"carries str, but a\[0\] put a int"):
            await lane.put(7, 0, 1.0, 1)
        await lane.put("seven", 0, 1.0, 1)
        assert link.sent == ["seven"]

    asyncio.run(scenario())


class BadAtClosing(Worker):
    async def close(self):
        raise OSError("films could not be finished")


def test_links_are_closed_though_the_worker_fails_to_close():
    async def scenario():
        hosted = HostedWorker(BadAtClosing, None, "a", 0, 1, "cpu", 0, 5.0, None, torch.get_num_threads(), None, 1)
        host = WorkerHost(hosted)
        await host.create()
        link = Link()
        host._links.append(link)
        with pytest.raises(WorkerError, match=r"a\[0\] failed in close: OSError: films"):
            await host.close()
        assert link.closed

    asyncio.run(scenario())
