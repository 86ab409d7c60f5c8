import dataclasses
import random

import pytest
from flow_enumeration import Enumeration, random_profile

from embodied.commands.plan import shipped_profiles
from embodied.errors import ConfigurationError
from embodied.scheduler.planner.bounds import estimate, fits
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile, load_profile
from embodied.scheduler.planner.search import Effort, Style, _Search, search


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
    unbounded = _Search(problem, Style.ANY, float("inf"), Effort.ALL).run()
    assert search(problem)[0].seconds == pytest.approx(unbounded[0].seconds, rel=1e-9)


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
