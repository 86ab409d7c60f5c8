"""Following: what counts as a drift, what the measurements are taken to mean, and when a switch is worth it."""

import dataclasses

import pytest
from test_plans_back import on_cores, plan

from embodied.scheduler.planner.choose import compare
from embodied.scheduler.planner.follow import Following, scaled
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
)
from embodied.scheduler.planner.simulation import simulate
from embodied.scheduler.trace import BUSY, WAIT
from embodied.training.planning import chosen_plan


def spent(env: float, policy: float, learner: float) -> dict:
    return {
        ("env[0]", "simulate", BUSY): env,
        ("policy[0]", "act", BUSY): policy,
        ("learner[0]", "update", BUSY): learner,
        ("policy[0]", "questions", WAIT): 100.0,
    }


def follow(slots=1, processes=0, cores=2) -> Following:
    return Following(on_cores(cores).profile, plan(slots, processes), window=3)


def test_what_is_expected_is_what_the_spans_of_a_plan_as_predicted_show():
    assert follow().expected() == pytest.approx({"env": 8.0, "policy": 2.0, "learner": 1.0})
    assert follow(processes=2).expected()["env"] == pytest.approx(4.0)
    # slots overlap: the simulators' own time is not what their spans add up to
    assert "env" not in follow(slots=2, processes=1).expected()


def test_times_as_predicted_and_short_disturbances_change_nothing():
    following = follow()
    for env in (8.1, 30.0, 7.9, 8.0, 12.0, 8.8, 8.0):
        assert following.note(spent(env, 2.0, 1.0), env + 3, left=100) is None


def test_a_lasting_drift_is_believed_and_a_better_plan_taken_when_it_pays():
    # simulators so fast that another process does not pay: one core does everything
    problem = on_cores(2)
    stages = dict(problem.profile.stages)
    cost = stages["env"].on["cpu"]
    fast = dataclasses.replace(cost, time=TimeModel(per_item=0.001, per_doubling=0.05))
    stages["env"] = dataclasses.replace(stages["env"], on={"cpu": fast})
    profile = dataclasses.replace(problem.profile, stages=stages)
    following = Following(profile, plan(1, 0), window=3)
    following.start_seconds = 5.0
    verdicts = [following.note(spent(8.0, 2.0, 1.0), 11.0, left=100) for _ in range(3)]
    assert verdicts[:2] == [None, None]
    assert verdicts[2].factors == pytest.approx({"env": 100.0})
    assert verdicts[2].plan.stages["env"].processes == 2
    assert "env takes 100.00x its predicted time" in verdicts[2].message
    following.switch_to(verdicts[2].plan)
    # the work has become slow, not what two processes say to each other
    assert following.predicted.seconds == pytest.approx(10 * (0.2 + 0.4 + 0.05) + 1)
    assert following.note(spent(4.5, 2.0, 1.0), 7.5, left=97) is None


def test_few_iterations_left_or_a_dear_start_are_no_reason_to_switch():
    following = follow()
    following.start_seconds = 30.0  # a switch costs about a minute
    for _ in range(3):
        verdict = following.note(spent(16.0, 2.0, 1.0), 19.0, left=4)
    assert verdict.plan is None
    assert "too little to switch" in verdict.message


def test_stages_that_became_faster_are_believed_too_and_said_once():
    following = follow(processes=2)
    for _ in range(3):
        verdict = following.note(spent(2.0, 2.0, 1.0), 5.0, left=100)
    assert verdict.factors == pytest.approx({"env": 0.5})
    assert verdict.plan is None
    assert "stays the best" in verdict.message
    assert [following.note(spent(2.0, 2.0, 1.0), 5.0, left=90) for _ in range(5)] == [None] * 5


def test_the_time_of_overlapping_simulators_is_inferred_from_the_iterations():
    following = follow(slots=2, processes=1)
    slower = Problem(scaled(following.problem, following.schedule, {"env": 3.0}))
    seconds = simulate(slower, following.schedule).seconds
    for _ in range(3):
        verdict = following.note(spent(99.0, 2.0 * 2, 1.0), seconds, left=100)
    assert verdict.factors == pytest.approx({"env": 3.0}, rel=0.01)


def test_scaling_changes_the_work_under_the_schedule_by_the_factor():
    problem = on_cores(2)
    schedule = schedule_of(problem, plan(1, 2))
    before = simulate(problem, schedule).busy("env")
    after = simulate(Problem(scaled(problem, schedule, {"env": 1.7})), schedule).busy("env")
    assert after == pytest.approx(1.7 * before)


def test_a_new_plan_stays_on_the_accelerator_that_was_asked_for():
    stages = {
        "env": StageProfile(items=64, pooled=True, on={"cpu": StageCost(time=TimeModel(per_item=0.001))}),
        "policy": StageProfile(items=64, on={"accelerator": StageCost(time=TimeModel(fixed=0.1))}),
        "learner": StageProfile(items=640, on={"accelerator": StageCost(time=TimeModel(fixed=1.0))}),
    }
    edges = (
        EdgeProfile(source="policy", target="env", latency_seconds=0.05),
        EdgeProfile(source="env", target="policy"),
        EdgeProfile(source="env", target="learner"),
    )
    group = NodeGroup(accelerators_per_node=1, cores_per_node=8, accelerator_memory_bytes=80 * 2.0**30)
    cycles = (CycleProfile(stages=("policy", "env"), rounds=10, slot_counts=(1, 2, 4)),)
    cluster = Cluster(groups={"local": group})
    profile = FlowProfile(flow="f", stages=stages, edges=edges, cycles=cycles, cluster=cluster)
    first = chosen_plan(compare(profile), "cuda:1")
    changes = {"env": {"processes": 1, "slots": 1}, "policy": {"slots": 1}}
    first = dataclasses.replace(
        first, stages={name: dataclasses.replace(p, **changes.get(name, {})) for name, p in first.stages.items()}
    )
    following = Following(profile, first, window=3, device="cuda:1")
    shown = {(f"{name}[0]", "x", BUSY): s * (20 if name == "env" else 1) for name, s in following.expected().items()}
    verdict = [following.note(shown, 100.0, left=10000) for _ in range(3)][-1]
    assert verdict.plan is not None
    assert verdict.plan.stages["policy"].devices == verdict.plan.stages["learner"].devices == ("cuda:1",)
