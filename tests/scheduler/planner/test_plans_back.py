"""Plans as schedules again: what the planner writes, and what a person edits, is predicted as it will run."""

import dataclasses
import itertools
import re

import pytest
from flow_enumeration import random_profile

from embodied.commands.plan import shipped_profiles
from embodied.errors import ConfigurationError
from embodied.scheduler.cluster import Node, place
from embodied.scheduler.plan import Plan, StagePlan
from embodied.scheduler.planner import explain
from embodied.scheduler.planner.bounds import estimate, fits
from embodied.scheduler.planner.choose import Choice, choose, compare, to_plan
from embodied.scheduler.planner.from_plan import schedule_of
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import (
    Cluster,
    CycleProfile,
    EdgeProfile,
    FlowProfile,
    NodeGroup,
    StageCost,
    StageProfile,
    TimeModel,
    load_profile,
)
from embodied.scheduler.planner.schedule import Pipeline, Placement, Work
from embodied.scheduler.planner.simulation import simulate


def on_cores(cores: int, **edges: float) -> Problem:
    """env 0.1 s an item, policy 0.2 s for any number, learner 1 s; eight items, ten rounds."""
    stages = {
        "env": StageProfile(items=8, pooled=True, on={"cpu": StageCost(time=TimeModel(per_item=0.1))}),
        "policy": StageProfile(items=8, on={"cpu": StageCost(time=TimeModel(fixed=0.2), max_replicas=1)}),
        "learner": StageProfile(items=80, on={"cpu": StageCost(time=TimeModel(fixed=1.0), max_replicas=1)}),
    }
    joined = (
        EdgeProfile(source="policy", target="env", **edges),
        EdgeProfile(source="env", target="policy"),
        EdgeProfile(source="env", target="learner"),
    )
    cycle = CycleProfile(stages=("policy", "env"), rounds=10, slot_counts=(1, 2, 4))
    cluster = Cluster(groups={"local": NodeGroup(cores_per_node=cores)})
    return Problem(FlowProfile(flow="embodied", stages=stages, edges=joined, cycles=(cycle,), cluster=cluster))


def plan(slots: int, processes: int | None, **changes) -> Plan:
    stages = {
        "env": StagePlan(devices=("cpu",), slots=slots, processes=processes),
        "policy": StagePlan(devices=("cpu",), slots=slots),
        "learner": StagePlan(devices=("cpu",)),
    }
    return Plan(flow="embodied", launcher="inline", stages=stages | changes)


@pytest.mark.parametrize(
    ("slots", "processes", "seconds"),
    [
        (1, 0, 10 * (0.2 + 0.8) + 1),  # one process does everything in turn
        (1, 1, 10 * (0.2 + 0.8) + 1),  # one slot: each waits for the other
        (1, 2, 10 * (0.2 + 0.4) + 1),  # two processes halve the simulators' time
        (2, 1, 0.2 + 10 * 2 * 0.4 + 1),  # two slots: simulators never wait after the first decision
    ],
)
def test_a_plan_takes_what_can_be_worked_out_by_hand(slots, processes, seconds):
    problem = on_cores(2)
    assert simulate(problem, schedule_of(problem, plan(slots, processes))).seconds == pytest.approx(seconds)


SHIPPED = ["maniskill_openvla", "libero_openvla_oft", "grpo_qwen3_30b_a3b"]
OWN = [name.removeprefix("paper/") for name in shipped_profiles()]


@pytest.mark.parametrize(("name", "nodes"), [*itertools.product(SHIPPED, (1, 4)), *((name, None) for name in OWN)])
def test_what_the_planner_writes_reads_back_as_the_same_schedule(name, nodes):
    profile = load_profile(shipped_profiles()[f"paper/{name}"])
    if nodes is not None:
        profile = dataclasses.replace(profile, cluster=profile.cluster.resized(32, nodes))
    comparison = compare(profile)
    for choice in [comparison.best, *comparison.styles.values()]:
        if not isinstance(choice, Choice):
            continue
        written = to_plan(comparison.problem, choice, "because")
        again = simulate(comparison.problem, schedule_of(comparison.problem, Plan.from_json(written.to_json())))
        assert again.seconds == pytest.approx(choice.seconds, rel=0.02)


def test_random_plans_read_back_as_what_they_were_but_for_uneven_pieces():
    compared = off = 0
    for seed in range(60):
        try:
            problem = Problem(random_profile(seed, 3, 4, memory=seed % 2 == 0, cycle=False, groups=False))
            choice = choose(problem)
        except ConfigurationError:
            continue
        again = schedule_of(problem, to_plan(problem, choice, ""))
        compared += 1
        off += abs(simulate(problem, again).seconds / choice.seconds - 1) > 0.05
    assert compared > 50
    assert off <= 0.08 * compared


def test_replicas_on_cores_are_workers_on_shares_of_them():
    stages = {
        "draw": StageProfile(items=8, on={"cpu": StageCost(time=TimeModel(per_item=0.1))}),
        "judge": StageProfile(
            items=8, on={"cpu": StageCost(time=TimeModel(per_item=1.0), devices_per_replica=2, max_replicas=2)}
        ),
    }
    edges = (EdgeProfile(source="draw", target="judge"),)
    cluster = Cluster(groups={"local": NodeGroup(cores_per_node=4)})
    problem = Problem(FlowProfile(flow="f", stages=stages, edges=edges, cluster=cluster))
    choice = choose(problem)
    written = to_plan(problem, choice, "")
    assert written.stages["draw"].devices == ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    assert written.stages["judge"].devices == ("cpu:0", "cpu:1")
    assert simulate(problem, schedule_of(problem, written)).seconds == pytest.approx(choice.seconds)


def test_on_cores_the_best_plan_says_how_many_processes_and_slots():
    problem = on_cores(2)
    comparison = compare(problem.profile)
    found = to_plan(comparison.problem, comparison.best, "")
    assert (found.launcher, found.stages["env"].processes, found.stages["env"].slots) == ("inline", 2, 1)
    assert found.stages["policy"].processes is None
    assert comparison.best.seconds == pytest.approx(10 * 0.6 + 1)
    assert compare(on_cores(4).profile).best.seconds == pytest.approx(10 * 0.4 + 1)


def test_one_core_leaves_simulators_in_the_workers_process():
    comparison = compare(on_cores(1).profile)
    assert to_plan(comparison.problem, comparison.best, "").stages["env"].processes == 0


def test_nodes_are_named_as_launchers_name_them():
    profile = load_profile(shipped_profiles()["paper/maniskill_openvla"])
    comparison = compare(dataclasses.replace(profile, cluster=profile.cluster.resized(16, 2)))
    written = to_plan(comparison.problem, comparison.best, "")
    assert "node1/cuda:3" in written.stages["learner"].devices

    class Flow:
        stages = dict.fromkeys(written.stages)

    spots = place(Flow, written, [Node(f"n{i}", f"10.0.0.{i}", 64, 8) for i in range(2)])
    assert [spot.device for spot in spots["learner"]][:2] == ["cuda:0", "cuda:1"]
    assert {spot.node.id for spot in spots["learner"]} == {"n0", "n1"}


def test_numbers_of_slots_that_do_not_divide_the_items_are_not_considered():
    cycle = dataclasses.replace(on_cores(2).profile.cycles[0], slot_counts=(1, 3))
    problem = Problem(dataclasses.replace(on_cores(2).profile, cycles=(cycle,)))
    slots = {choice.slots for choice, _ in problem.options(0, 1).choices}
    assert slots <= {1, 3}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learner": StagePlan(devices=("gpu:0",))}, "'gpu:0'"),
        ({"learner": StagePlan(devices=("node3/cpu",))}, "node3/cpu"),
        ({"learner": StagePlan(devices=("cuda:0",))}, "does not know what learner costs on a accelerator"),
        ({"policy": StagePlan(devices=("cpu",), slots=4)}, r"slots \[1, 4\]"),
        (
            {"policy": StagePlan(devices=("cpu:0", "cpu:1"))},
            "2 workers; the profile knows what it costs with 1 at most",
        ),
        ({"env": StagePlan(devices=("cpu",), processes=7)}, "7 devices of group local, which has 2"),
        (
            {stage: StagePlan(devices=("cpu",), slots=3) for stage in ("env", "policy")},
            r"3 slots; the profile allows \[1, 2, 4\]",
        ),
        ({"learner": StagePlan(devices=("cpu",), granularity=40)}, "needs all items together"),
    ],
)
def test_plans_that_cannot_be_predicted_are_refused_with_the_reason(changed, message):
    with pytest.raises(ConfigurationError, match=message):
        schedule_of(on_cores(2), plan(1, 0, **changed))


def given(**stages: dict) -> Plan:
    """The planner's own plan for ManiSkill on two nodes of eight, with some keys of some stages changed by hand."""
    problem = two_nodes()
    wanted = to_plan(problem, choose(problem), "")
    changed = {name: dataclasses.replace(wanted.stages[name], **keys) for name, keys in stages.items()}
    return dataclasses.replace(wanted, stages=wanted.stages | changed)


def two_nodes() -> Problem:
    profile = load_profile(shipped_profiles()["paper/maniskill_openvla"])
    return Problem(dataclasses.replace(profile, cluster=profile.cluster.resized(16, None)))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"env": {"devices": ("node0/cuda:0", "node0/cuda:0")}}, "several workers of env on node0/cuda:0"),
        ({"env": {"devices": ("cuda:9",)}}, "cuda:9 of node 0; the profile's cluster has 8 accelerators a node"),
        ({"policy": {"devices": ("node0/cuda:7", "node1/cuda:0")}}, "share only some of their devices: node0/cuda:7"),
        ({"learner": {"granularity": 7}}, "2926 pieces; the profile allows 128: use at least 160"),
        ({"env": {"granularity": 8}}, "the plan hands on"),
        ({"env": {"granularity": 8}, "policy": {"granularity": 8}}, "use null, for it needs all items together"),
        ({"env": {"processes": 3}}, "without processes of its own"),
    ],
)
def test_edits_that_cannot_be_are_refused_with_what_can(stages, message):
    with pytest.raises(ConfigurationError, match=message):
        schedule_of(two_nodes(), given(**stages))


def test_plans_of_other_flows_and_other_stages_are_refused():
    with pytest.raises(ConfigurationError, match="is for flow 'reasoning', the profile for flow 'embodied'"):
        schedule_of(two_nodes(), dataclasses.replace(given(), flow="reasoning"))
    more = given().stages | {"learners": StagePlan(devices=("cuda:0",))}
    with pytest.raises(
        ConfigurationError, match=r"'learners', which the profile does not know. Did you mean 'learner'"
    ):
        schedule_of(two_nodes(), dataclasses.replace(given(), stages=more))


def test_a_stage_without_state_cannot_leave_its_device_and_replicas_take_their_devices():
    profile = load_profile(shipped_profiles()["paper/grpo_qwen3_30b_a3b"])
    problem = Problem(dataclasses.replace(profile, cluster=profile.cluster.resized(32, None)))
    wanted = to_plan(problem, choose(problem), "")
    fewer = dataclasses.replace(wanted.stages["generate"], devices=wanted.stages["generate"].devices[:6])
    with pytest.raises(ConfigurationError, match=r"6 devices; one replica of it takes 4. Nearest valid numbers: 4, 8"):
        schedule_of(problem, dataclasses.replace(wanted, stages=wanted.stages | {"generate": fewer}))
    away = plan(1, 0, learner=StagePlan(devices=("cpu",), resident=False))
    with pytest.raises(ConfigurationError, match="no state"):
        schedule_of(on_cores(2), away)


def test_the_first_node_need_not_be_named():
    devices = tuple(f"cuda:{i}" for i in range(8))
    named = schedule_of(two_nodes(), given())
    assert schedule_of(two_nodes(), given(env={"devices": devices})) == named


def test_a_given_plan_that_does_not_fit_says_what_would(capsys):
    problem = two_nodes()
    found = {}
    for name, edits in {"whole": {"learner": {"granularity": None}}, "kept": {"env": {"resident": True}}}.items():
        schedule = schedule_of(problem, given(**edits))
        choice = Choice(schedule, estimate(problem, schedule).latency, simulate(problem, schedule))
        found[name] = explain.given_report(problem, choice, choose(problem), "plan.json")
    assert "does NOT fit" in found["whole"]
    most = int(re.search(r"granularity of at most (\d+)", found["whole"])[1])
    assert "resident: false" in found["kept"]
    for granularity, fit in ((most, True), (2 * most, False)):
        # on 16 devices, whatever else is loaded there
        work = Pipeline(-(-20480 // granularity), Work((Placement("learner", "accelerator", "h100", 16),)))
        assert fits(problem, estimate(problem, work)) == fit
