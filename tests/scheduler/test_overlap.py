"""How far acting runs ahead of learning: never further than allowed, and really overlapped where it may."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.scheduler.overlap import iterations


class Run:
    """Collects and learns by waiting; notes which weights acted and learnt."""

    def __init__(self, collect_pauses, learn_pauses):
        self.collect_pauses, self.learn_pauses = collect_pauses, learn_pauses
        self.learnt = self.acting = 0
        self.busy = set()
        self.staleness = []
        self.overlapped = 0
        self.drawn_with = {}

    async def collect(self, i):
        self.busy.add("collect")
        self.drawn_with[i] = self.acting
        for _ in range(self.collect_pauses[i % len(self.collect_pauses)]):
            self.overlapped += "learn" in self.busy
            await asyncio.sleep(0)
        self.busy.discard("collect")
        return f"rollout {i}"

    async def learn(self, i):
        self.busy.add("learn")
        self.staleness.append(self.learnt - self.drawn_with[i])
        for _ in range(self.learn_pauses[i % len(self.learn_pauses)]):
            await asyncio.sleep(0)
        self.learnt += 1
        self.busy.discard("learn")
        return f"update {i}"

    async def publish(self):
        assert self.busy == set(), f"weights were published during {self.busy}"
        self.acting = self.learnt

    def go(self, count, staleness):
        async def scenario():
            steps = iterations(0, count, staleness, self.collect, self.learn, self.publish)
            return [(step.collected, step.learnt) async for step in steps]

        return asyncio.run(asyncio.wait_for(scenario(), 20))


pauses = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.integers(1, 12), pauses, pauses)
def test_no_sample_is_staler_than_allowed_and_every_rollout_is_learnt_once_in_order(staleness, count, collect, learn):
    run = Run(collect, learn)
    assert run.go(count, staleness) == [(f"rollout {i}", f"update {i}") for i in range(count)]
    assert max(run.staleness) <= staleness
    assert run.acting == count


def test_without_staleness_collecting_and_learning_take_turns():
    run = Run([3], [3])
    run.go(5, 0)
    assert run.staleness == [0] * 5
    assert run.overlapped == 0


def test_with_staleness_they_overlap():
    run = Run([5], [5])
    run.go(6, 1)
    assert run.staleness == [0, 1, 1, 1, 1, 1]
    assert run.overlapped >= 10


def test_a_failure_while_collecting_is_raised_and_nothing_goes_on():
    run = Run([1], [1])

    async def fail(i):
        if i == 2:
            raise RuntimeError("the simulator broke")
        return await Run.collect(run, i)

    run.collect = fail
    with pytest.raises(RuntimeError, match="the simulator broke"):
        run.go(5, 1)
