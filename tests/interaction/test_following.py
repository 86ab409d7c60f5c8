"""A run that notices that its plan is no longer right makes a new one, gets faster, and learns the same to the bit."""

import re

import pytest

from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.interaction.workload import EmbodiedWorkload
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from embodied.scheduler.plan import Plan
from embodied.scheduler.planner import cache
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
from embodied.training.planning import profile_path

ITERATIONS, SLOW_FROM = 16, 2  # slow before a window of iterations is full
OPTIONS = [
    "env.id=gym/tests.interaction.slowing:SlowingPole-v0",
    "rollout.decisions=8",
    "learner.global_batch=32",
    "learner.epochs=2",
    "policy.hidden=[8,8]",
    "evaluation.every=0",
    "evaluation.episodes=1",
    "goal.at_least=null",
    f"goal.env_steps={ITERATIONS * 64}",
    "logger.tensorboard=false",
]


def profile() -> FlowProfile:
    """Simulators so fast that a process for them costs more than it saves, as at the start of the run."""

    one = {"max_replicas": 1}
    return FlowProfile(
        flow="embodied",
        stages={
            "env": StageProfile(
                items=8, pooled=True, on={"cpu": StageCost(time=TimeModel(per_item=5e-5, per_doubling=1e-3))}
            ),
            "policy": StageProfile(items=8, on={"cpu": StageCost(time=TimeModel(fixed=2e-3), **one)}),
            "learner": StageProfile(items=64, on={"cpu": StageCost(time=TimeModel(per_item=3e-4), **one)}),
        },
        edges=(
            EdgeProfile(source="policy", target="env", latency_seconds=1e-3),
            EdgeProfile(source="env", target="policy"),
            EdgeProfile(source="env", target="learner"),
        ),
        cycles=(CycleProfile(stages=("policy", "env"), rounds=8, slot_counts=(1, 2)),),
        cluster=Cluster(groups={"local": NodeGroup(cores_per_node=2)}),
    )


def run(folder, *overrides) -> RunFolder:
    recipe = parse_recipe("slowing", compose_recipe("gym_cartpole_ppo_mlp", [*OPTIONS, *overrides]))
    if recipe.cluster.plan == "auto":
        cache.write_cached(profile(), profile_path(EmbodiedWorkload(recipe)))
    folder.mkdir()
    run_folder = RunFolder(folder)
    train(recipe, run_folder, command="a test")
    return run_folder


def curve(folder: RunFolder) -> list[tuple[int, dict[str, float]]]:
    records = read_metrics(folder.metrics)
    return [
        (r["iteration"], {k: v for k, v in r["metrics"].items() if not k.startswith(("time/", "host/"))})
        for r in records
    ]


@pytest.fixture
def slowing(tmp_path, monkeypatch):
    from tests.interaction.slowing import SlowingPole

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLOWING_POLE_FLAG", str(tmp_path / "slow"))
    monkeypatch.setenv("SLOWING_POLE_STEPS", str(SLOW_FROM * 64))
    monkeypatch.setattr(SlowingPole, "taken", 0)
    return tmp_path


@pytest.mark.slow
def test_a_stage_that_becomes_slow_is_noticed_and_the_run_goes_on_faster_with_the_same_bits(slowing, monkeypatch):
    followed = run(slowing / "followed", "cluster.plan=auto")
    assert (slowing / "slow").exists()
    log = followed.log.read_text()
    assert "env takes" in log
    assert "a new plan takes" in log
    assert Plan.load(followed.plan).stages["env"].processes > 0
    switched = int(re.findall(r"resumed after iteration (\d+)", log)[0])
    records = [r for r in read_metrics(followed.metrics) if "time/iteration_s" in r["metrics"]]
    assert len(records) == ITERATIONS
    seconds = {r["iteration"]: r["metrics"]["time/iteration_s"] for r in records}
    # the least disturbed ones: another program must not decide
    slow = min(seconds[i] for i in range(SLOW_FROM + 2, switched + 1))
    assert min(seconds[i] for i in range(switched + 1, ITERATIONS + 1)) < 0.8 * slow
    result = followed.read_result()["plan"]
    assert result["measured_s"] == pytest.approx(result["predicted_s"], rel=1.0)
    assert followed.plan_picture.is_file()
    monkeypatch.setenv("SLOWING_POLE_FLAG", str(slowing / "never"))
    assert curve(followed) == curve(run(slowing / "fixed"))
