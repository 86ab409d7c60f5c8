"""Many producers and many consumers: nothing is lost, doubled, reordered within a key, or given to the wrong one; by
any route, in groups, in batches, over channels in one process and over real links and hosts."""

import asyncio
import collections
import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import CorrectnessAlarm, DeadlineExceeded
from embodied.scheduler import Route
from embodied.scheduler.routing import Router, consumers_of
from tests.scheduler.network import Script, network

ROUNDS = 2
SIZES = (1, 2, 3, 5)


@st.composite
def scripts(draw, producers, consumers, route, how):
    """Items of few keys, so that keys collide; groups where they are read as such."""
    items = []
    for producer in range(producers):
        rounds = []
        for _ in range(ROUNDS):
            count = draw(st.integers(0, 6))
            rounds.append([])
            for number in range(count):
                weight = draw(st.sampled_from([None, 1.0, 7.5, 100.0]))
                if how != "items" and draw(st.booleans()):
                    members = draw(st.sampled_from(SIZES))
                    key = (draw(st.integers(0, consumers - 1)), producer, "group", number)
                    rounds[-1] += [(key, weight, members)] * members
                else:
                    rounds[-1].append(((draw(st.integers(0, consumers - 1)), draw(st.integers(0, 2))), weight, 1))
        items.append(rounds)
    pauses = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))
    # within a ring's entry and far beyond it
    sizes = draw(st.lists(st.sampled_from([0, 10, 5_000, 300_000]), min_size=1, max_size=3))
    return Script(items, pauses, how, tuple(sizes))


@st.composite
def cases(draw):
    producers, consumers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    route = draw(st.sampled_from([Route.SPREAD, Route.KEY, Route.OWNER, Route.READY]))
    how = draw(st.sampled_from(["items", "groups", "batches"]))
    script = draw(scripts(producers, consumers, route, how))
    options = {
        "route": route,
        "capacity": draw(st.integers(1, 5)),
        "granularity": draw(st.sampled_from([None, 1, 3])) if how == "batches" else None,
    }
    return script, producers, consumers, options


async def play(launcher, script, producers, consumers, options):
    """By round and consumer, the units that it took."""
    async with network(launcher, script, producers, consumers, **options) as system:
        put, take = system.group("put"), system.group("take")
        return [(await system.together(put.call("run", number), take.call("run")))[1] for number in range(ROUNDS)]


def check(rounds, script, producers, consumers, options):
    for number, taken in enumerate(rounds):
        sent = [
            (producer, i, key)
            for producer in range(producers)
            for i, (key, _, _) in enumerate(script.items[producer][number])
        ]
        received = [item for units in taken for unit in units for item in unit]
        assert all(item.round == number and item.payload == script.payload(item.number) for item in received)
        assert sorted((i.producer, i.number) for i in received) == sorted((p, i) for p, i, _ in sent)
        homes = collections.defaultdict(set)
        for consumer, units in enumerate(taken):
            last: dict = {}
            for item in (item for unit in units for item in unit):
                assert item.number > last.get((item.producer, item.key), -1), "reordered within a key"
                last[item.producer, item.key] = item.number
                homes[item.producer, item.key].add(consumer)
                if options["route"] is Route.OWNER:
                    assert item.key[0] == consumer
                if options["route"] is Route.KEY:
                    assert Router(Route.KEY, 0, producers, consumers).consumer(item.key) == consumer
                if options["route"] is Route.SPREAD:
                    assert consumer in consumers_of(item.producer, producers, consumers)
            check_units(units, script.how, options["granularity"])
        if options["route"] is not Route.READY:
            assert all(len(found) == 1 for found in homes.values()), "a key changed its consumer"


def check_units(units, how, granularity):
    for index, unit in enumerate(units):
        in_unit = collections.Counter((item.key, item.members) for item in unit)
        if how != "items":
            assert all(count == members for (_, members), count in in_unit.items() if members > 1), "a group was torn"
        if how == "groups":
            assert len(in_unit) == 1
        if how == "batches" and granularity is not None and index < len(units) - 1:
            assert granularity <= len(unit) < granularity + max(SIZES)
    if how == "batches" and granularity is None:
        assert len(units) <= 1


@settings(max_examples=150, deadline=None)
@given(cases())
def test_in_one_process_every_item_arrives_once_in_order_where_it_should(case):
    check(asyncio.run(play("inline", *case)), *case)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_over_links_and_hosts_every_item_arrives_once_in_order_where_it_should(case):
    check(asyncio.run(play("hosted", *case)), *case)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 60), st.sampled_from(["inline", "hosted"]))
def test_a_killed_consumer_takes_only_what_was_in_its_hands(case, turns, launcher):
    """Whoever reads on in its place gets everything else, once."""
    script, producers, consumers, options = case
    if script.how == "batches":
        script, options = dataclasses.replace(script, how="groups"), options | {"granularity": None}

    async def scenario():
        async with network(launcher, script, producers, consumers, **options) as system:
            put, take = system.group("put"), system.group("take")
            putting = asyncio.create_task(put.call("run", 0))
            victim = asyncio.create_task(take.call_one(0, "run"))
            others = [asyncio.create_task(take.call_one(rank, "run")) for rank in range(1, consumers)]
            for _ in range(turns):
                await asyncio.sleep(0)
            done = victim.done()
            victim.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                first = await victim
            rest = first if done else await take.call_one(0, "run")  # it remembers what it took before it was killed
            taken = [rest, *[await other for other in others]]
            await putting
            return taken

    one_round = dataclasses.replace(script, items=[rounds[:1] for rounds in script.items])
    check([asyncio.run(scenario())], one_round, producers, consumers, options)


def busy(launcher, weights, pauses, consumers=2, **options):
    """How many units each consumer took of those with `weights`, where consumers pause differently."""
    script = Script([[[((0, i), w, 1) for i, w in enumerate(weights)]]], pauses)

    async def scenario():
        async with network(launcher, script, 1, consumers, **options) as system:
            put, take = system.group("put"), system.group("take")
            _, taken = await system.together(put.call("run", 0), take.call("run"))
            return [[item.number for unit in units for item in unit] for units in taken]

    return asyncio.run(scenario())


def test_whoever_is_free_gets_the_next_item():
    """The second consumer is slow: its pauses are long; the first one takes nearly everything."""
    script = Script([[[((0, i), None, 1) for i in range(40)]]], [0])

    async def scenario():
        async with network("inline", script, 1, 2, route=Route.READY, capacity=1) as system:
            put, take = system.group("put"), system.group("take")
            take.workers[1].options = Script([], [50])
            _, taken = await system.together(put.call("run", 0), take.call("run"))
            return [len(units) for units in taken]

    fast, slow = asyncio.run(scenario())
    assert fast + slow == 40
    assert fast > 4 * slow > 0


@pytest.mark.parametrize("launcher", ["inline", "hosted"])
def test_weights_balance_what_consumers_get(launcher):
    """One heavy item against many light ones: the heavy one's consumer gets hardly anything else."""
    weights = [100.0] + [10.0] * 10
    taken = busy(launcher, weights, [0], route=Route.SPREAD)
    loads = sorted(sum(weights[i] for i in numbers) for numbers in taken)
    assert loads == [100.0, 100.0]
    assert sorted(map(len, busy(launcher, [None] * 11, [0], route=Route.SPREAD))) == [5, 6]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1, 100), min_size=1, max_size=40), st.integers(1, 5))
def test_weighted_routing_is_within_one_item_of_balance(weights, consumers):
    """Greedy balancing: no consumer has more than the least loaded one and its own heaviest item."""
    router = Router(Route.SPREAD, 0, 1, consumers)
    loads = [0.0] * consumers
    for key, weight in enumerate(weights):
        loads[router.consumer(key, weight)] += weight
    assert max(loads) - min(loads) <= max(weights) + 1e-9


def test_a_group_over_several_producers_needs_a_route_by_key():
    def script(*counts):
        return Script([[[("g", None, 4)] * count] for count in counts], [1], "groups")

    async def scenario(route, counts):
        async with network("inline", script(*counts), 2, 2, route=route, deadline=1) as system:
            _, taken = await system.together(system.group("put").call("run", 0), system.group("take").call("run"))
            return [unit for units in taken for unit in units]

    assert [len(unit) for unit in asyncio.run(scenario(Route.KEY, (1, 3)))] == [4]
    assert [len(unit) for unit in asyncio.run(scenario(Route.READY, (4, 0)))] == [4]
    with pytest.raises(CorrectnessAlarm, match=r"Route\.KEY where several producers"):
        asyncio.run(scenario(Route.SPREAD, (1, 3)))
    with pytest.raises(CorrectnessAlarm, match=r"only 1 member\(s\) at the end.*Route\.KEY"):
        asyncio.run(scenario(Route.READY, (1, 3)))


def test_a_wait_for_a_free_consumer_has_a_deadline_that_names_everyone():
    script = Script([[[((0, i), None, 1) for i in range(9)]]], [0])

    async def scenario():
        async with network("hosted", script, 1, 2, route=Route.READY, capacity=2, deadline=0.2) as system:
            await system.group("put").call("run", 0)

    with pytest.raises(DeadlineExceeded, match=r"put\[0\] waited 0.2 s for a free consumer on put.out -> take.came: "
                       r"take\[0\] has 2, take\[1\] has 2 of at most 2"):  # fmt: skip
        asyncio.run(scenario())
