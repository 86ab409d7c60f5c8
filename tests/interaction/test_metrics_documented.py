"""Every metric that a run logs is explained in docs/metrics.md."""

import re
from pathlib import Path

import pytest

from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics

DOCUMENTED = set(
    re.findall(r"^\| `([a-z_]+/[a-z_0-9]+)` \|", (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(), re.M)
)
SMALL = [
    "rollout.decisions=8",
    "evaluation.episodes=4",
    "evaluation.every=1",
    "record.episodes=0",
    "logger.tensorboard=false",
]
GRPO = [
    "algorithm.advantage=grpo",
    "algorithm.loss=ppo",
    "algorithm.group_size=4",
    "algorithm.filter_rewards=[0,1000]",
    "env.auto_reset=disabled",
    "rollout.start=fresh",
    "rollout.decisions=40",
    "env.episode_steps=40",
    "learner.global_batch=null",
    "policy.value=none",
]
ASYNCHRONOUS = [
    "algorithm.loss=decoupled_ppo",
    "algorithm.max_staleness=1",
    "env.slots=2",
    "learner.global_batch=32",
    "evaluation.every=2",  # between two evaluations, acting may run ahead
]


@pytest.mark.parametrize(
    "overrides", [["learner.global_batch=32"], GRPO, ASYNCHRONOUS], ids=["ppo", "grpo", "asynchronous"]
)
def test_every_logged_metric_is_explained(tmp_path, overrides):
    values = compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, "goal.env_steps=128", *overrides])
    folder = create_run_folder(tmp_path, "test")
    train(parse_recipe("test", values), folder, command="test")
    records = [record["metrics"] for record in read_metrics(folder.metrics)]
    assert max(r.get("rollout/staleness_max", 0) for r in records) == (overrides is ASYNCHRONOUS)
    logged = {name for record in records for name in record}
    assert len(logged) > 20
    assert logged - DOCUMENTED == set()
