"""M producers meet N consumers: everybody is served, in balance, and answers go back to whoever asked."""

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.scheduler import Flow, Input, Output, Plan, Route, StagePlan, Worker
from embodied.scheduler.inline import InlineLauncher
from embodied.scheduler.routing import Router, balanced_range, consumers_of


@given(st.integers(1, 40), st.integers(0, 300))
def test_balanced_ranges_cover_everything_once_and_differ_by_at_most_one(parts, total):
    ranges = [balanced_range(i, parts, total) for i in range(parts)]
    assert [x for r in ranges for x in r] == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_consumer_is_served_and_every_producer_has_one(producers, consumers):
    chosen = [consumers_of(p, producers, consumers) for p in range(producers)]
    assert all(len(r) >= 1 for r in chosen)
    assert {c for r in chosen for c in r} == set(range(consumers))


def test_a_key_keeps_its_consumer_and_new_keys_go_round():
    router = Router(Route.SPREAD, producer=0, producers=1, consumers=3)
    assert [router.consumer(key) for key in ("a", "b", "c", "d", "a", "b")] == [0, 1, 2, 0, 0, 1]
    with pytest.raises(ValueError, match="OWNER edge needs keys"):
        Router(Route.OWNER, 0, 1, 2).consumer((5, "x"))


@dataclasses.dataclass(frozen=True)
class Numbers:
    items: tuple[int, ...]

    def part(self, index, count):
        return Numbers(tuple(self.items[i] for i in balanced_range(index, count, len(self.items))))


class Asker(Worker):
    questions = Output(int)
    answers = Input(int)
    results = Output(Numbers)

    async def run(self):
        rank = self.context.rank
        collected = []
        for key in range(3):
            await self.questions.put(10 * rank + key, (rank, key))
        for key in range(3):
            collected.append(await self.answers.get((rank, key)))
        await self.questions.end()
        await self.results.put(Numbers(tuple(collected)), rank)
        await self.results.end()


class Answerer(Worker):
    questions = Input(int)
    answers = Output(int)

    async def run(self):
        async for key, number in self.questions:
            await self.answers.put(number + 1000, key)


class Learner(Worker):
    results = Input(Numbers)

    async def run(self):
        parts = sorted([part async for part in self.results])
        return [number for _, numbers in parts for number in numbers.items]


@pytest.mark.parametrize(("askers", "answerers", "learners"), [(1, 1, 1), (3, 1, 2), (1, 3, 2), (2, 3, 5), (5, 2, 1)])
def test_a_cycle_with_any_numbers_of_workers_answers_every_question_to_its_asker(askers, answerers, learners):
    flow = Flow("cycle")
    asker = flow.stage("asker", Asker, scales_with="items")
    answerer = flow.stage("answerer", Answerer, scales_with="items")
    learner = flow.stage("learner", Learner, scales_with="items")
    flow.edge(asker.questions, answerer.questions)
    flow.edge(answerer.answers, asker.answers, route=Route.OWNER)
    flow.edge(asker.results, learner.results, route=Route.SPLIT)
    counts = {"asker": askers, "answerer": answerers, "learner": learners}
    plan = Plan(
        flow="cycle", launcher="inline", stages={name: StagePlan(devices=("cpu",) * n) for name, n in counts.items()}
    )

    async def scenario():
        async with InlineLauncher(flow, plan, seed=0, deadline=5.0) as system:
            for _ in range(2):
                results = await system.together(*(system.group(name).call("run") for name in counts))
            return results[2]

    results = asyncio.run(scenario())
    assert len(results) == learners
    received = sorted(number for part in results for number in part)
    assert received == sorted(1000 + 10 * rank + key for rank in range(askers) for key in range(3))
