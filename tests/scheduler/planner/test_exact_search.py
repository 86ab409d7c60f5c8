import random

import pytest
from flow_enumeration import Enumeration, random_profile

from embodied.errors import ConfigurationError
from embodied.scheduler.planner.bounds import estimate, fits
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.search import search


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
