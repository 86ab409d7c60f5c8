"""The logged gap between the log-probabilities of acting and of learning is what lies between them."""

import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics
from policies.mlp import MLPPolicy

SMALL = [
    "rollout.decisions=8",
    "learner.global_batch=null",
    "learner.epochs=1",
    "evaluation.episodes=2",
    "record.episodes=0",
    "logger.tensorboard=false",
    "goal.env_steps=64",
]


def gaps(tmp_path, *overrides):
    values = compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides])
    folder = create_run_folder(tmp_path, "test")
    train(parse_recipe("test", values), folder, command="test")
    metrics = [record["metrics"] for record in read_metrics(folder.metrics)][1:]
    return [(m["policy/logprob_gap"], m["policy/logprob_gap_max"]) for m in metrics]


def test_acting_and_learning_that_agree_have_no_gap_but_of_rounding(tmp_path):
    found = gaps(tmp_path, "goal.env_steps=128")
    assert len(found) == 2
    for mean, largest in found:
        assert 0 <= mean <= largest < 1e-5


def test_a_gap_is_logged_with_its_mean_size_and_its_largest(tmp_path, monkeypatch):
    genuine = MLPPolicy.evaluate

    def shifted(self, inputs, tokens, sampling):
        evaluation = genuine(self, inputs, tokens, sampling)
        shift = torch.tensor([2e-4, -6e-4]).repeat(len(tokens) // 2)  # within what is tolerated
        logprobs = evaluation.logprobs + shift.reshape(-1, 1, 1)
        return type(evaluation)(logprobs, evaluation.entropy, evaluation.value)

    monkeypatch.setattr(MLPPolicy, "evaluate", shifted)
    (found,) = gaps(tmp_path)
    assert found == pytest.approx((4e-4, 6e-4), rel=0.01)
