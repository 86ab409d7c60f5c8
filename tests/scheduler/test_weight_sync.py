"""Weights over real hosts and links: what travels, that it is verified, and that a swap of names is caught."""

import asyncio

import pytest
import torch

from embodied.errors import CorrectnessAlarm
from embodied.scheduler import Flow, Plan, StagePlan, Worker
from tests.scheduler.network import Hosted


class Model(Worker):
    """A frozen matrix, adapters and a buffer. options: other names that an actor gives them."""

    def __init__(self, context, options):
        super().__init__(context, options)
        value = 1.0 if context.stage == "trainer" else 0.0
        self.tensors = {
            "base": torch.nn.Parameter(torch.full((1000, 1000), value), requires_grad=False),
            "adapter": torch.nn.Parameter(torch.full((1000,), value)),
            "other": torch.nn.Parameter(torch.full((1000,), 2 * value)),
            "count": torch.full((), value),
        }
        self.version = None

    def weights(self):
        names = self.options if self.context.stage == "actor" and self.options else {}
        return {names.get(name, name): tensor for name, tensor in self.tensors.items()}

    def weights_changed(self, version):
        self.version = version

    async def learn(self):
        with torch.no_grad():
            self.tensors["adapter"] += 1
            self.tensors["count"] += 1


def launcher(actors, names=None):
    flow = Flow("weights")
    trainer = flow.stage("trainer", Model, names, scales_with="items")
    actor = flow.stage("actor", Model, names, scales_with="items")
    flow.weights(trainer, actor)
    stages = {"trainer": StagePlan(devices=("cpu",)), "actor": StagePlan(devices=("cpu",) * actors)}
    return Hosted(flow, Plan(flow="weights", launcher="ray", stages=stages), seed=0, deadline=10)


def sent_bytes(system):
    (trainer,) = system.group("trainer").actors
    return [link.stats.bytes for links in trainer._weights_out.values() for link in links]


def test_every_target_has_the_weights_and_after_the_first_time_only_adapters_and_buffers_travel():
    async def scenario():
        async with launcher(actors=3) as system:
            await system.sync_weights(1)
            first = sent_bytes(system)
            assert all(size > 4_000_000 for size in first)
            await system.group("trainer").call("learn")
            await system.sync_weights(2)
            assert all(0 < after - before < 20_000 for before, after in zip(first, sent_bytes(system), strict=True))
            for host in system.group("actor").actors:
                assert host.worker.version == 2
                for name, tensor in system.group("trainer").actors[0].worker.tensors.items():
                    assert torch.equal(host.worker.tensors[name], tensor), name

    asyncio.run(scenario())


def test_names_that_were_swapped_on_the_way_stop_the_run(monkeypatch):
    """The receiver stores each of two equal-shaped tensors where the other belongs; their checksums tell."""
    exchanged = {"adapter": "other", "other": "adapter"}

    def store(bucket, target):
        with torch.no_grad():
            for name, tensor in bucket.tensors.items():
                target[exchanged.get(name, name)].copy_(tensor)

    monkeypatch.setattr("embodied.scheduler.host.store", store)

    async def scenario():
        async with launcher(actors=1) as system:
            await system.sync_weights(1)

    with pytest.raises(CorrectnessAlarm, match="weights version 1 did not arrive as they were sent: adapter, other"):
        asyncio.run(scenario())


def test_a_name_that_the_receiver_lacks_stops_the_run():
    async def scenario():
        async with launcher(actors=1, names={"base": "gone"}) as system:
            await system.sync_weights(1)

    with pytest.raises(CorrectnessAlarm, match="'base', which the receiver does not have"):
        asyncio.run(scenario())
