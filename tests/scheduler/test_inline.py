import asyncio
import json

import pytest

from embodied.errors import WorkerError
from embodied.scheduler import Flow, Input, Output, Worker
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.plan import single_device_plan

events: list[str] = []


class Source(Worker):
    numbers = Output(int)

    async def setup(self, announced):
        events.append("source up")
        return {"limit": self.options}

    async def run(self):
        for number in range(self.options):
            with self.timed("make"):
                await self.numbers.put(number)
        await self.numbers.end()

    def weights(self):
        return {"scale": 3}

    async def close(self):
        events.append("source down")


class Sink(Worker):
    numbers = Input(int)

    async def setup(self, announced):
        self.limit = announced["source"]["limit"]

    def share_weights(self, weights):
        self.scale = weights["scale"]

    def weights_changed(self, version):
        self.version = version

    async def run(self):
        return [number * self.scale async for _, number in self.numbers], self.limit, self.version

    async def fail(self):
        raise ValueError("a bad number")

    async def close(self):
        events.append("sink down")


class BadAtClosing(Worker):
    async def fail(self):
        raise RuntimeError("the real cause")

    async def close(self):
        events.append(f"{self.name} down")
        raise OSError(f"{self.name} could not finish its films")


@pytest.mark.parametrize("failing", [True, False])
def test_all_workers_are_closed_and_the_first_failure_is_the_one_that_is_raised(failing, caplog):
    events.clear()
    flow = Flow("test")
    for name in "xyz":
        flow.stage(name, BadAtClosing, scales_with="items")

    async def scenario():
        async with InlineLauncher(flow, single_device_plan(flow, "cpu", 1), seed=0, deadline=5.0) as system:
            if failing:
                await system.group("x").call("fail")

    with pytest.raises(WorkerError, match="the real cause" if failing else r"x\[0\] could not finish"):
        asyncio.run(scenario())
    assert events == ["x[0] down", "y[0] down", "z[0] down"]
    assert ("x[0] could not finish" in caplog.text) == failing
    assert "y[0] could not finish" in caplog.text
    assert "z[0] could not finish" in caplog.text


def launcher(count=5):
    events.clear()
    flow = Flow("test")
    source = flow.stage("source", Source, count, scales_with="items")
    sink = flow.stage("sink", Sink, scales_with="items")
    flow.edge(source.numbers, sink.numbers, capacity=2)
    flow.weights(source, sink)
    return InlineLauncher(flow, single_device_plan(flow, "cpu", 1), seed=0, deadline=5.0)


def test_workers_exchange_items_weights_and_announcements(tmp_path):
    async def scenario():
        async with launcher() as system:
            await system.sync_weights(7)
            _, results = await system.together(system.group("source").call("run"), system.group("sink").call("run"))
            system.trace.write(tmp_path / "trace.json")
            return results[0]

    assert asyncio.run(scenario()) == ([0, 3, 6, 9, 12], 5, 7)
    assert events == ["source up", "source down", "sink down"]
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert sum(e["name"] == "make" for e in spans) == 5
    assert any(e["cat"] == "wait" for e in spans)


def test_the_first_failure_cancels_the_rest_and_names_its_worker():
    async def scenario():
        async with launcher(count=1000) as system:
            await system.together(system.group("source").call("run"), system.group("sink").call("fail"))

    with pytest.raises(WorkerError, match=r"sink\[0\] failed in fail: ValueError: a bad number") as caught:
        asyncio.run(scenario())
    assert isinstance(caught.value.__cause__, ValueError)
    assert events[-2:] == ["source down", "sink down"]
