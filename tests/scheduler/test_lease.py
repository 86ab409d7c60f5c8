import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.scheduler import Plan, StagePlan
from embodied.scheduler.lease import Leases

DEVICES = ("cuda:0", "cuda:1", "cuda:2")


class World:
    """Stages on devices; notes what is loaded where and refuses what must not happen."""

    def __init__(self, stages: dict[str, StagePlan]) -> None:
        self.stages = stages
        self.loaded = set(stages)
        self.running: set[str] = set()
        self.switches = 0
        self.leases = Leases(Plan(flow="test", launcher="ray", stages=stages), self.load, self.unload)

    async def load(self, name):
        await asyncio.sleep(0)
        assert name not in self.loaded
        self.loaded.add(name)
        self.switches += 1

    async def unload(self, name):
        await asyncio.sleep(0)
        assert name in self.loaded
        assert name not in self.running, f"{name} was unloaded while it ran"
        self.loaded.discard(name)
        self.switches += 1

    async def run(self, *names, pauses=1):
        async with self.leases.turn(*names):
            for name in names:
                assert name in self.loaded
                mine = set(self.stages[name].devices)
                others = [o for o in self.running if mine & set(self.stages[o].devices)]
                assert not others, f"{name} runs beside {others} on one device"
            self.running |= set(names)
            for _ in range(pauses):
                await asyncio.sleep(0)
            self.running -= set(names)


stage_plans = st.builds(
    lambda devices, resident: StagePlan(devices=tuple(sorted(devices)), resident=resident),
    st.sets(st.sampled_from(DEVICES), min_size=1),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(("env", "policy", "critic", "learner"), stage_plans)),
    st.lists(
        st.tuples(st.sets(st.sampled_from(["env", "policy", "critic", "learner"]), min_size=1), st.integers(0, 3)),
        max_size=12,
    ),
)
def test_any_interleaving_of_turns_ends_and_never_shares_or_misses_state(stages, turns):
    async def scenario():
        world = World(stages)
        work = [world.run(*sorted(names), pauses=pauses) for names, pauses in turns]
        await asyncio.wait_for(asyncio.gather(*work), 10)
        assert world.running == set()

    asyncio.run(scenario())


def test_stages_that_may_not_stay_swap_and_turns_in_a_row_cost_nothing():
    async def scenario():
        world = World({n: StagePlan(devices=("cuda:0",), resident=False) for n in ("policy", "learner")})
        await world.run("policy")
        assert world.loaded == {"policy"}
        await world.run("learner")
        assert world.loaded == {"learner"}
        switches = world.switches
        await world.run("learner")
        assert world.switches == switches

    asyncio.run(scenario())


def test_turns_on_different_devices_run_at_the_same_time():
    async def scenario():
        world = World({"a": StagePlan(devices=("cuda:0",)), "b": StagePlan(devices=("cuda:1",))})
        met = asyncio.Event()

        async def first():
            async with world.leases.turn("a"):
                await asyncio.wait_for(met.wait(), 5)

        async def second():
            async with world.leases.turn("b"):
                met.set()

        await asyncio.gather(first(), second())
        assert world.switches == 0

    asyncio.run(scenario())
