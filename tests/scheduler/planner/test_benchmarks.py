import importlib.util
import statistics
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("stages", "devices", "memory", "limit"),
    [(5, 1024, True, 0.3), (8, 8, True, 0.4), (8, 1024, False, 0.3), (8, 1024, True, 0.5), (8, 4096, True, 1.0)],
)
def test_search_is_fast_on_many_devices(stages, devices, memory, limit):
    # about twice what an idle core takes, or more: other programs make the same work take longer
    growth = load("planner_growth")
    growth.seconds(growth.chain(3, 8, 0, memory=True))
    profile = growth.chain(stages, devices, 0, memory=memory)
    assert min(growth.seconds(profile) for _ in range(3)) < limit


def test_profiles_off_by_thirty_percent_cost_little_throughput_on_average():
    robustness = load("planner_robustness")
    for name, devices in (("paper/maniskill_openvla", 16), ("paper/libero_openvla_oft", 16)):
        assert statistics.mean(robustness.losses(name, devices, 0.3, 8)) < 0.05


def test_noise_changes_times_and_nothing_else():
    import random

    from embodied.commands.plan import shipped_profiles
    from embodied.scheduler.planner.profile import load_profile

    profile = load_profile(shipped_profiles()["paper/maniskill_openvla"])
    noisy = load("planner_robustness").noisy(profile, random.Random(0), 0.3)
    before, after = (p.stages["env"].on["accelerator"] for p in (profile, noisy))
    assert 0.7 <= after.time.fixed / before.time.fixed <= 1.3
    assert after.time.per_item / before.time.per_item == pytest.approx(after.time.fixed / before.time.fixed)
    assert after.time != before.time
    assert after.memory == before.memory
