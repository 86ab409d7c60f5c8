"""Producers and consumers that follow a script, under the launcher of one process and over real links and hosts.

`Hosted` makes hosts, shared-memory links and pumps exactly as the Ray launcher does, but all in this process and
without Ray: hundreds of networks a minute.
"""

import asyncio
import dataclasses

from embodied.scheduler import Flow, Input, Output, Plan, Route, StagePlan, Worker
from embodied.scheduler.cluster import Node, place
from embodied.scheduler.host import WorkerHost
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.ray_launcher import RayGroup, RayLauncher
from embodied.scheduler.transport import record


@record
@dataclasses.dataclass(frozen=True)
class Item:
    """The `number`-th that `producer` put in `round`: key, weight and members as it was put, and its own payload."""

    producer: int
    round: int
    number: int
    key: object
    weight: float
    members: int
    payload: bytes


@dataclasses.dataclass(frozen=True)
class Script:
    """items: by producer and round, the (key, weight, members) to put. pauses: turns of the event loop between steps.
    how: what consumers read: "items", "groups" or "batches". sizes: bytes of payload, in turn."""

    items: list[list[list[tuple]]]
    pauses: list[int]
    how: str = "items"
    sizes: tuple[int, ...] = (0,)

    def payload(self, number):
        """What the `number`-th item of a producer carries."""
        return bytes([number % 251]) * self.sizes[number % len(self.sizes)]


async def pause(pauses, number):
    for _ in range(pauses[number % len(pauses)]):
        await asyncio.sleep(0)


class Putter(Worker):
    out = Output(Item)

    async def run(self, number):
        rank = self.context.rank
        for i, (key, weight, members) in enumerate(self.options.items[rank][number]):
            await pause(self.options.pauses, i + rank)
            item = Item(rank, number, i, key, weight, members, self.options.payload(i))
            await self.out.put(item, key, weight=weight, members=members)
        await self.out.end()


class Taker(Worker):
    """Returns what it took, as lists: one a group or batch, or of one item."""

    follows = frozenset({"granularity"})
    came = Input(Item)

    def __init__(self, context, options):
        super().__init__(context, options)
        self.taken = []

    async def run(self):
        how, rank = self.options.how, self.context.rank
        if how == "items":
            units = ([entry] async for entry in self.came)
        elif how == "groups":
            units = ([(key, item) for item in group] async for key, group in self.came.groups())
        else:
            units = self.came.batches()
        async for unit in units:
            assert all(key == item.key for key, item in unit)
            self.taken.append([item for _, item in unit])
            await pause(self.options.pauses, len(self.taken) + 2 * rank)
        taken, self.taken = self.taken, []
        return taken


class LocalGroup(RayGroup):
    """Hosts of this process."""

    async def host(self, rank, method, *arguments):
        return await getattr(self.actors[rank], method)(*arguments)


class Hosted(RayLauncher):
    """The Ray launcher without Ray."""

    async def start(self):
        self._placed = placed = place(self.flow, self.plan, [Node("a", "127.0.0.1", cores=2, gpus=0)])
        for name, spots in placed.items():
            hosts = [WorkerHost(self._hosted(name, rank, spot)) for rank, spot in enumerate(spots)]
            world = len(hosts)
            self.groups[name] = LocalGroup(name, [f"{name}[{i}]" for i in range(world)], hosts, self._deadline)
            for host in hosts:
                await host.create()
        await self._join(placed)

    def _hosted(self, name, rank, spot):
        return super()._hosted(name, rank, dataclasses.replace(spot, share=None))  # this process is not to be pinned

    async def stop(self, error):
        for group in self.groups.values():
            for host in group.actors:
                await host.close()


LAUNCHERS = {"inline": InlineLauncher, "hosted": Hosted}


def network(
    launcher, script, producers, consumers, *, route=Route.SPREAD, capacity=None, granularity=None, deadline=10
):
    """A launcher of producers `put` and consumers `take`, not started."""
    flow = Flow("network")
    put = flow.stage("put", Putter, script, scales_with="items")
    take = flow.stage("take", Taker, script, scales_with="items")
    flow.edge(put.out, take.came, route=route, capacity=capacity)
    stages = {
        "put": StagePlan(devices=("cpu",) * producers),
        "take": StagePlan(devices=("cpu",) * consumers, granularity=granularity),
    }
    plan = Plan(flow="network", launcher="inline", stages=stages)
    return LAUNCHERS[launcher](flow, plan, seed=0, deadline=deadline)
