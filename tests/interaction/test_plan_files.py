"""A plan of a file is carried out as it is: workers, slots and processes, with the same bits."""

import json

import pytest

from embodied.commands.workloads import recipe_workload
from embodied.config.compose import compose_recipe
from embodied.errors import ConfigurationError
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import RunFolder
from embodied.runs.metrics import read_metrics
from embodied.scheduler.plan import Plan
from embodied.training.planning import check_plan

OPTIONS = [
    "rollout.decisions=8",
    "learner.global_batch=32",
    "learner.epochs=2",
    "policy.hidden=[8,8]",
    "evaluation.every=0",
    "evaluation.episodes=2",
    "goal.at_least=null",
    "goal.env_steps=192",
    "logger.tensorboard=false",
]


def run(folder, *overrides) -> RunFolder:
    folder.mkdir()
    recipe = parse_recipe("planned", compose_recipe("gym_cartpole_ppo_mlp", [*OPTIONS, *overrides]))
    train(recipe, RunFolder(folder), command="a test")
    return RunFolder(folder)


def curve(folder: RunFolder) -> list[dict[str, float]]:
    return [
        {k: v for k, v in r["metrics"].items() if not k.startswith(("time/", "host/"))}
        for r in read_metrics(folder.metrics)
    ]


def workers(folder: RunFolder, stage: str) -> int:
    """How many of a stage's workers the trace has seen at work."""
    events = json.loads(folder.trace.read_text())["traceEvents"]
    return sum(e["ph"] == "M" and e["args"]["name"].startswith(f"{stage}[") for e in events)


def test_a_plan_of_several_workers_and_slots_is_carried_out_and_gives_the_curve_of_one_worker(tmp_path):
    plan = tmp_path / "plan.json"
    stages = {
        "env": {"devices": ["cpu", "cpu"], "slots": 2, "processes": 0},
        "policy": {"devices": ["cpu"], "slots": 2},
        "learner": {"devices": ["cpu"]},
    }
    plan.write_text(json.dumps({"flow": "embodied", "launcher": "inline", "stages": stages}))
    planned = run(tmp_path / "planned", f"cluster.plan={plan}")
    assert Plan.load(planned.plan) == Plan.load(plan)
    assert workers(planned, "env") == 2
    assert curve(planned) == curve(run(tmp_path / "plain"))


def test_a_launcher_beside_a_plan_has_to_be_the_plans(tmp_path):
    plan = tmp_path / "plan.json"
    stages = {name: {"devices": ["cpu"]} for name in ("env", "policy", "learner")}
    plan.write_text(json.dumps({"flow": "embodied", "launcher": "inline", "stages": stages}))
    options = [*OPTIONS, f"cluster.plan={plan}"]
    with pytest.raises(ConfigurationError, match=r"is inline, and cluster.launcher=ray; leave cluster.launcher out"):
        check_plan(recipe_workload("gym_cartpole_ppo_mlp", [*options, "cluster.launcher=ray"]))
    check_plan(recipe_workload("gym_cartpole_ppo_mlp", [*options, "cluster.launcher=inline"]))
    with pytest.raises(ConfigurationError, match=r"so do cluster\.launcher; leave one out"):
        recipe_workload("gym_cartpole_ppo_mlp", [*OPTIONS, "cluster.plan=auto", "cluster.launcher=ray"])
