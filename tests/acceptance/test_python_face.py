"""The library from Python, as the README shows it."""

import numpy as np
import pytest
import torch

import embodied
from embodied.errors import ConfigurationError
from embodied.random import RowNoise
from envs.api import Observation
from policies.api import Sampling


def test_train_evaluate_and_act_in_a_few_lines(tmp_path):
    overrides = ["rollout.decisions=8", "learner.global_batch=32", "evaluation.episodes=4", "goal.env_steps=128"]
    run = embodied.train("gym_cartpole_ppo_mlp", [*overrides, "record.episodes=0", f"run.folder={tmp_path / 'run'}"])
    assert run.status == "limit"
    steps, returns = run.metric("eval/return")
    assert steps.tolist() == [0, 128]
    assert returns.shape == (2,)
    assert run.metric("no/such")[0].shape == (0,)
    result = embodied.evaluate(run.folder, "gym/CartPole-v1", episodes=5, num_envs=2, processes=0)
    assert len(result.episodes) == 5
    policy = embodied.load_policy(run.folder)
    observation = Observation(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), [""] * 3)
    with torch.no_grad():
        output = policy.act(policy.prepare(observation), Sampling(), RowNoise(0, np.arange(3), np.zeros(3)))
    assert set(output.actions.flatten().tolist()) <= {0.0, 1.0}


def test_bad_input_raises_before_anything_starts(tmp_path):
    with pytest.raises(ConfigurationError, match="num_envs"):
        embodied.train("gym_cartpole_ppo_mlp", ["env.num_env=2", f"run.folder={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = embodied.trian
