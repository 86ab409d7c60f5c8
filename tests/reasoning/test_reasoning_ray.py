"""The reasoning flow with a process for every worker: the same run as in one process, shared or split, and sharded."""

from __future__ import annotations

import json

import pytest
import torch

from tests.reasoning.small_runs import metrics_of, run_small, save_small_model, small_recipe, weights_of

PPO = {"advantage": "gae", "kl_coefficient": 0.01, "kl_in": "reward", "kl": "k1"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    return weights_of(run_small(small_recipe(model, algorithm=PPO), folder)), metrics_of(folder)


def expect_same(found, metrics, alone):
    weights, numbers = alone
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, atol=3e-5, rtol=1e-4)
    for mine, theirs in zip(metrics, numbers, strict=True):
        for name in ("reward/mean", "eval/accuracy", "rollout/length"):
            if name in theirs:
                assert mine[name] == pytest.approx(theirs[name], abs=1e-6)


@pytest.mark.parametrize("placement", ["shared", "split"])
def test_processes_give_the_same_run_as_coroutines(model, alone, tmp_path, placement):
    recipe = small_recipe(model, algorithm=PPO, cluster={"launcher": "ray", "placement": placement})
    outcome = run_small(recipe, tmp_path / "run")
    expect_same(weights_of(outcome), metrics_of(tmp_path / "run"), alone)
    plan = json.loads(outcome.folder.plan.read_text())
    assert plan["launcher"] == "ray"
    assert (plan["stages"]["generate"]["devices"] == plan["stages"]["learner"]["devices"]) == (placement == "shared")


def test_several_workers_of_every_stage_give_the_same_run(model, alone, tmp_path):
    workers = {"generate": 2, "reward": 2, "reference": 2, "critic": 2, "learner": 2}
    recipe = small_recipe(model, algorithm=PPO, cluster={"workers": workers})
    outcome = run_small(recipe, tmp_path / "run")
    expect_same(weights_of(outcome), metrics_of(tmp_path / "run"), alone)


def test_stages_that_do_not_fit_together_take_turns(model, alone, tmp_path):
    memory = {"launcher": "ray", "memory_mib": 0.6}
    recipe = small_recipe(model, algorithm=PPO, cluster=memory)
    outcome = run_small(recipe, tmp_path / "run")
    plan = json.loads(outcome.folder.plan.read_text())
    assert not plan["stages"]["generate"]["resident"]
    expect_same(weights_of(outcome), metrics_of(tmp_path / "run"), alone)
