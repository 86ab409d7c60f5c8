import json
from pathlib import Path

import numpy as np
import pytest

from embodied.commands.plan import shipped_profiles
from embodied.errors import ConfigurationError
from embodied.scheduler.planner import costs
from embodied.scheduler.planner.fit import fit_time
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import (
    Measurement,
    MemoryModel,
    NodeGroup,
    StageCost,
    TimeModel,
    load_profile,
    parse_profile,
)

GROUP = NodeGroup(accelerators_per_node=8, accelerator_memory_bytes=64.0)


@pytest.mark.parametrize("name", sorted(shipped_profiles()))
def test_a_shipped_profile_written_out_reads_as_the_same_profile(name, tmp_path):
    profile = load_profile(shipped_profiles()[name])
    (tmp_path / "again.json").write_text(profile.to_json())
    assert load_profile(tmp_path / "again.json") == profile
    assert profile.source
    assert profile.assumptions


def without_times(values):
    for stage in values["stages"].values():
        for cost in stage["on"].values():
            cost["time"] = {}


def broken(change) -> str:
    values = json.loads(shipped_profiles()["paper/maniskill_openvla"].read_text())
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["stages"]["env"].update(itmes=3), r"'stages.env.itmes'.*Did you mean 'items'"),
        (lambda v: v["stages"]["env"].update(items="many"), r"'stages.env.items' is 'many'"),
        (lambda v: v["stages"]["env"]["on"]["accelerator"]["time"].update(fixed=-1), "fixed is -1"),
        (lambda v: v["edges"].append({"source": "env", "target": "lerner"}), "Did you mean 'learner'"),
        (lambda v: v["cycles"][0].update(stages=["env"]), "joins at least two stages"),
        (lambda v: v["stages"]["env"]["on"]["accelerator"].update(groups=["a100"]), "Valid groups: h100"),
        (lambda v: v["stages"]["learner"].update(arrivals=[0.5, 0.2, 1.0]), "arrivals must rise"),
        (lambda v: v["edges"].append({"source": "env", "target": "env"}), "joins a stage with itself"),
        (lambda v: v["stages"]["env"]["on"]["accelerator"].update(groups=[]), "could run nowhere"),
        (lambda v: v.update(amount=-1), "amount is -1"),
        (without_times, "no stage takes any time"),
        (lambda v: v.pop("cluster"), "'cluster' is missing"),
    ],
)
def test_a_fault_in_a_profile_is_refused_with_its_place(change, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_profile(broken(change), "changed.json")


def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path):
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"p\.json is not JSON"):
        load_profile(tmp_path / "p.json")
    with pytest.raises(ConfigurationError, match=r"q\.json cannot be read"):
        load_profile(tmp_path / "q.json")


def test_stages_in_a_circle_without_a_cycle_entry_are_refused():
    profile = parse_profile(broken(lambda v: v.pop("cycles")), "changed.json")
    with pytest.raises(ConfigurationError, match="no entry of `cycles`"):
        Problem(profile)


def test_memory_that_fits_nowhere_says_what_there_is_and_what_would_fit():
    def change(values):
        values["stages"]["learner"]["on"]["accelerator"]["memory"].update(item_bytes=30 * 2**30, live_items=4)

    wanted = r"(?s)70\.8 GiB on each of h100.*4 items at once 120\.0 GiB.*at most 2 items of learner at once"
    with pytest.raises(ConfigurationError, match=wanted):
        Problem(parse_profile(broken(change), "changed.json"))


def test_seconds_follow_the_busiest_replica():
    cost = StageCost(
        time=TimeModel(fixed=1.0, per_item=2.0, per_item_squared=0.5, per_doubling=3.0), devices_per_replica=2
    )
    # 10 items on 3 replicas: the busiest has 4: 1 + 2 x 4 + 0.5 x 16 + 3 log2(3)
    assert costs.seconds(cost, GROUP, 10, np.array([6]))[0] == pytest.approx(17 + 3 * np.log2(3))


def test_memory_counts_shards_working_space_and_live_items_and_rounds_up_to_a_64th():
    memory = MemoryModel(state_bytes=40.0, state="sharded", working_bytes=2.1, item_bytes=1.0, live_items=3)
    cost = StageCost(time=TimeModel(), memory=memory)
    idle, running = costs.memory_fractions(cost, GROUP, "accelerator", 8, 8, np.array([1, 4]))
    assert idle.tolist() == [40 / 64, 10 / 64]
    assert running.tolist() == [46 / 64, 15 / 64]  # 2 items each on 4 devices: 14.1, rounded up


def test_shards_are_never_counted_smaller_than_they_are():
    devices = np.arange(1, 5000)
    cost = StageCost(time=TimeModel(), memory=MemoryModel(state_bytes=1.0, state="sharded"))
    shard = costs.state_bytes(cost, devices, 1)
    assert (shard >= 1 / devices).all()
    assert (shard <= 1.25 / devices).all()


def measured(cost, points):
    return [
        Measurement(items=i, devices=d, seconds=float(costs.seconds(cost, GROUP, i, np.array([d]))[0]))
        for i, d in points
    ]


def test_fit_recovers_the_model_that_made_the_measurements():
    truth = StageCost(time=TimeModel(fixed=0.4, per_item=0.03, per_doubling=0.2))
    found = fit_time(measured(truth, [(i, d) for i in (8, 32, 128, 512) for d in (1, 2, 8)]))
    assert (found.fixed, found.per_item, found.per_doubling) == pytest.approx((0.4, 0.03, 0.2))
    assert found.per_item_squared == 0
    assert found.error < 1e-6


def test_fit_counts_the_items_of_the_busiest_replica():
    truth = StageCost(time=TimeModel(fixed=0.4, per_item=0.3))
    found = fit_time(measured(truth, [(i, d) for i in (3, 7, 10, 33) for d in (1, 2, 4)]))
    assert (found.fixed, found.per_item) == pytest.approx((0.4, 0.3))
    assert found.error < 1e-6


def test_fit_divides_items_among_replicas_and_not_among_their_devices():
    truth = StageCost(time=TimeModel(fixed=0.4, per_item=0.3), devices_per_replica=2)
    found = fit_time(measured(truth, [(i, d) for i in (8, 32, 128) for d in (2, 4, 8)]), devices_per_replica=2)
    assert (found.fixed, found.per_item) == pytest.approx((0.4, 0.3))
    assert found.error < 1e-6


def test_fit_states_an_error_of_the_size_of_the_noise():
    source = np.random.default_rng(0)
    taken = [
        Measurement(items=i, devices=1, seconds=(0.5 + 0.1 * i) * float(source.normal(1, 0.08)))
        for i in range(4, 400, 6)
    ]
    found = fit_time(taken)
    assert 0.05 < found.error < 0.12
    assert found.per_item == pytest.approx(0.1, rel=0.08)


def test_stages_measured_on_one_device_get_no_term_for_devices():
    taken = [Measurement(items=i, devices=1, seconds=1.0 + i) for i in (1, 2, 4)]
    found = fit_time(taken)
    assert (found.fixed, found.per_item, found.per_doubling) == pytest.approx((1.0, 1.0, 0.0))


def test_profiles_ship_in_the_package():
    import configs

    assert all(Path(configs.__file__).parent in path.parents for path in shipped_profiles().values())
