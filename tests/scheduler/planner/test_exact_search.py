import dataclasses
import random

import numpy as np
import pytest
from flow_enumeration import Enumeration, random_profile

from embodied.commands.plan import shipped_profiles
from embodied.errors import ConfigurationError
from embodied.scheduler.planner.bounds import estimate, fits, units_of
from embodied.scheduler.planner.leaves import Style, leaves_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import (
    Cluster,
    CycleProfile,
    EdgeProfile,
    FlowProfile,
    MemoryModel,
    NodeGroup,
    StageCost,
    StageProfile,
    TimeModel,
    load_profile,
)
from embodied.scheduler.planner.pruning import Deadlines, prune
from embodied.scheduler.planner.schedule import Beside, InTurn, Pipeline, Schedule, Work
from embodied.scheduler.planner.search import _Search, search


def compare_with_enumeration(seeds: range, units: tuple[int, ...], devices: dict[int, tuple[int, ...]]) -> int:
    """How many random flows were compared; fails on the first whose best schedule differs from plain enumeration."""
    compared = 0
    for seed in seeds:
        draw = random.Random(seed)
        number = draw.choice(units)
        profile = random_profile(
            seed,
            number,
            draw.choice(devices[number]),
            memory=draw.random() < 0.5,
            cycle=draw.random() < 0.3,
            groups=draw.random() < 0.25,
        )
        try:
            problem = Problem(profile, pieces=draw.choice([(1, 2, 4), (1, 2), (1, 3)]))
        except ConfigurationError:
            continue  # a stage that fits nowhere: both would have nothing to compare
        best = Enumeration(problem).best()
        if best == float("inf"):
            with pytest.raises(ConfigurationError, match="no plan"):
                search(problem)
            continue
        found = search(problem)[0]
        assert found.seconds == pytest.approx(best, rel=1e-9), f"flow of seed {seed}"
        again = estimate(problem, found.schedule)
        assert again.latency == pytest.approx(found.seconds, rel=1e-9), f"flow of seed {seed}"
        assert fits(problem, again), f"flow of seed {seed}"
        compared += 1
    return compared


def test_search_finds_what_enumeration_finds_on_small_random_flows():
    devices = {1: (1, 3, 8), 2: (1, 2, 4, 8), 3: (2, 3, 4)}
    assert compare_with_enumeration(range(300), (1, 2, 2, 3), devices) > 200


def test_search_finds_what_enumeration_finds_on_flows_of_four_and_five_units():
    assert compare_with_enumeration(range(5000, 5020), (4, 5), {4: (2, 3), 5: (2,)}) > 8


def start_with_a_stream(profile: FlowProfile, seed: int) -> FlowProfile:
    """The flow, with a first stage that streams and others that take what it hands on."""
    arrivals = random.Random(seed).choice([(0.1, 0.4, 1.0), (0.3, 0.5, 0.9, 1.0), (0.25, 0.5, 0.75, 1.0)])
    stages = {name: dataclasses.replace(stage, max_pieces=4) for name, stage in profile.stages.items()}
    stages["s0"] = dataclasses.replace(stages["s0"], arrivals=arrivals)
    return dataclasses.replace(profile, stages=stages)


def compare_streams(seeds: range) -> None:
    for seed in seeds:
        units = random.Random(seed).choice([3, 4])
        profile = random_profile(seed, units, {3: 5, 4: 4}[units], memory=False, cycle=False, groups=False)
        problem = Problem(start_with_a_stream(profile, seed), pieces=(1, 2, 4))
        best = Enumeration(problem).best()
        if best < float("inf"):
            assert search(problem)[0].seconds == pytest.approx(best, rel=1e-9), f"flow of seed {seed}"


def test_search_finds_what_enumeration_finds_on_flows_that_start_with_a_stream():
    compare_streams(range(40))


@pytest.mark.slow
def test_search_finds_what_enumeration_finds_on_many_flows_that_start_with_a_stream():
    compare_streams(range(1000, 1400))


@pytest.mark.parametrize(
    ("name", "devices"),
    [("maniskill_openvla", 8), ("libero_openvla_oft", 8), ("grpo_qwen3_30b_a3b", 32), ("ppo_qwen2_5_7b", 16)],
)
def test_bounds_change_nothing_on_the_papers_flows(name, devices):
    profile = load_profile(shipped_profiles()[f"paper/{name}"])
    problem = Problem(dataclasses.replace(profile, cluster=profile.cluster.resized(devices, None)))
    unbounded = _Search(problem, Style.ANY, leaves_of(problem, Style.ANY), None, problem.pieces[-1]).run()
    assert search(problem)[0].seconds == pytest.approx(unbounded[0].seconds, rel=1e-9)


def totals(problem: Problem, schedule: Schedule, pieces: int = 1) -> list[tuple[int, int, list[int], float]]:
    """(part, pieces, devices by column, least seconds from its first piece to its last) of every node of a schedule,
    from the formula applied to the node alone."""
    part = units_of(problem, schedule)
    # a stage that streams works on all items as one and takes at least as long as that
    whole = pieces == 1 or (isinstance(schedule, Work) and problem.streams(part.bit_length() - 1))
    alone = estimate(problem, schedule if whole else Pipeline(pieces, schedule))
    devices = [alone.resources.get(column, 0) for column in problem.columns]
    found = [(part, pieces, devices, alone.latency)]
    if isinstance(schedule, Pipeline):
        found += totals(problem, schedule.body, pieces * schedule.pieces)
    elif isinstance(schedule, InTurn | Beside):
        found += totals(problem, schedule.first, pieces) + totals(problem, schedule.second, pieces)
    return found


def compare_with_deadlines(seeds: range, steps: int) -> int:
    """How many parts of best schedules were compared; fails on the first that is not within its deadline."""
    compared = 0
    for seed in seeds:
        draw = random.Random(seed)
        units, devices = draw.choice([3, 4, 5]), draw.choice([5, 8, 24])
        profile = random_profile(seed, units, devices, memory=draw.random() < 0.5, cycle=False, groups=False)
        if draw.random() < 0.5:
            profile = start_with_a_stream(profile, seed)
        try:
            problem = Problem(profile, pieces=(1, 2, 4))
            best = search(problem)[0]
        except ConfigurationError:
            continue
        deadlines = Deadlines(problem, leaves_of(problem, Style.ANY), best.seconds * (1 + 1e-9), steps)
        for part, pieces, devices, seconds in totals(problem, best.schedule):
            limit = deadlines.of(part, pieces, np.array([devices], float))[0]
            assert seconds <= limit, f"flow of seed {seed}, units {part:b} in {pieces} pieces"
            assert not deadlines.hopeless(part, pieces)
            compared += 1
    return compared


@pytest.mark.parametrize("steps", [2, 7, 32])
def test_every_part_of_the_best_schedule_is_within_its_deadline(steps):
    assert compare_with_deadlines(range(7000, 7040), steps) > 200


def test_a_bound_below_the_best_schedule_leaves_nothing_of_a_single_stage():
    profile = random_profile(3, 1, 8, memory=False, cycle=False, groups=False)
    problem = Problem(profile)
    best = search(problem)[0].seconds
    leaves, deadlines = prune(problem, leaves_of(problem, Style.ANY), 0.99 * best)
    assert leaves.rows() == 0
    assert not deadlines.possible
    assert search(problem, known=0.99 * best) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_search_finds_what_enumeration_finds_on_thousands_of_flows(block):
    devices = {1: (1, 3, 8), 2: (1, 2, 4, 8), 3: (2, 3, 4, 6), 4: (2, 3, 4), 5: (2, 3)}
    start = 10_000 + 400 * block
    assert compare_with_enumeration(range(start, start + 400), (1, 2, 2, 2, 3, 3, 3, 4), devices) > 280


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_search_finds_what_enumeration_finds_with_five_units_and_eight_devices(seed):
    # enumeration without memory, whose different values are few enough on eight devices
    profile = random_profile(900 + seed, 5, 8, memory=False, cycle=False, groups=False)
    problem = Problem(profile, pieces=(1, 2))
    assert search(problem)[0].seconds == pytest.approx(Enumeration(problem).best(), rel=1e-9)


def test_more_devices_for_the_state_of_what_is_loaded_are_not_pruned_for_the_items_of_a_call():
    """Two sub-batches of 13 share out alike over 7 to 12 devices, what is loaded of all 26 does not: 9 fit."""
    gib = 2.0**30
    memory = MemoryModel(item_state_bytes=3 * gib)
    stages = {
        "env": StageProfile(items=26, on={"accelerator": StageCost(time=TimeModel(per_item=1.0), memory=memory)}),
        "policy": StageProfile(items=26, on={"accelerator": StageCost(time=TimeModel(per_item=1.0), max_replicas=1)}),
    }
    edges = (EdgeProfile(source="env", target="policy"), EdgeProfile(source="policy", target="env"))
    cycles = (CycleProfile(stages=("env", "policy"), rounds=10, slot_counts=(1, 2)),)
    cluster = Cluster(groups={"g": NodeGroup(accelerators_per_node=10, accelerator_memory_bytes=10 * gib)})
    problem = Problem(FlowProfile(flow="f", stages=stages, edges=edges, cycles=cycles, cluster=cluster))
    assert search(problem)[0].seconds == pytest.approx(262.0)
    assert Enumeration(problem).best() == pytest.approx(262.0)
