"""The alarms ring in a real run, save what they were about, and end it with its reason."""

import json

import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.errors import ConfigurationError, CorrectnessAlarm
from embodied.interaction.learner_worker import LearnerWorker
from embodied.interaction.recipe import parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.state_file import read_state
from policies.mlp import MLPPolicy

SMALL = [
    "rollout.decisions=8",
    "learner.global_batch=32",
    "evaluation.episodes=2",
    "record.episodes=0",
    "logger.tensorboard=false",
    "goal.env_steps=64",
]


def run(tmp_path, *overrides):
    values = compose_recipe("gym_cartpole_ppo_mlp", [*SMALL, *overrides])
    folder = create_run_folder(tmp_path, "test")
    return folder, lambda: train(parse_recipe("test", values), folder, command="test")


def test_acting_and_learning_that_disagree_stop_the_run_and_the_batch_is_saved(tmp_path, monkeypatch):
    genuine = MLPPolicy.evaluate

    def shifted(self, inputs, tokens, sampling):
        evaluation = genuine(self, inputs, tokens, sampling)
        return type(evaluation)(evaluation.logprobs + 0.01, evaluation.entropy, evaluation.value)

    monkeypatch.setattr(MLPPolicy, "evaluate", shifted)
    folder, start = run(tmp_path)
    with pytest.raises(CorrectnessAlarm, match="ratio is not 1"):
        start()
    result = json.loads(folder.result.read_text())
    assert result["status"] == "failed"
    assert "ratio is not 1" in result["reason"]
    (saved,) = (folder.path / "alarms").glob("*.safetensors")
    batch = read_state(saved.with_suffix(""))
    assert batch["tokens"].shape == (32, 1, 1)
    assert batch["inputs"]["state"].shape == (32, 4)


def test_a_loss_that_is_not_finite_stops_the_run_naming_the_ingredient(tmp_path, monkeypatch):
    genuine = MLPPolicy.evaluate

    def broken(self, inputs, tokens, sampling):
        evaluation = genuine(self, inputs, tokens, sampling)
        return type(evaluation)(evaluation.logprobs, evaluation.entropy, evaluation.value * float("nan"))

    monkeypatch.setattr(MLPPolicy, "evaluate", broken)
    folder, start = run(tmp_path)
    with pytest.raises(CorrectnessAlarm, match="loss is nan"):
        start()
    assert list((folder.path / "alarms").glob("*.safetensors"))


def test_an_optimiser_that_changes_nothing_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)
    _, start = run(tmp_path)
    with pytest.raises(CorrectnessAlarm, match=r"none of .* parameters changed"):
        start()


GROUPS = [
    "algorithm.advantage=grpo",
    "algorithm.loss=ppo",
    "algorithm.group_size=2",
    "policy.value=none",
    "env.auto_reset=disabled",
    "rollout.start=fresh",
]


def test_groups_that_all_score_alike_are_said_and_do_not_stop_the_run(tmp_path):
    """Two steps an episode, one point each: nothing can tell attempts apart."""
    short = ["env.episode_steps=2", "rollout.decisions=2", "learner.global_batch=8", "goal.env_steps=32"]
    folder, start = run(tmp_path, *GROUPS, *short)
    start()
    assert json.loads(folder.result.read_text())["status"] == "limit"
    assert "All advantages of this rollout are 0" in (folder.path / "log.txt").read_text()


def test_rollouts_shorter_than_an_episode_are_refused_where_attempts_are_scored(tmp_path):
    with pytest.raises(ConfigurationError, match=r"8 steps, and an episode up to 20.*use rollout.decisions=20"):
        run(tmp_path, *GROUPS, "env.episode_steps=20")[1]()


def test_attempts_of_an_environment_that_alone_knows_its_limit_are_refused_too(tmp_path):
    with pytest.raises(ConfigurationError, match=r"8 steps, and an episode up to 500.*use rollout.decisions=500"):
        run(tmp_path, *GROUPS)[1]()


def test_the_protocol_of_libero_tells_how_long_attempts_are():
    values = compose_recipe("libero_10_grpo_openvla_oft_tiny", ["env.episode_steps=null", "rollout.decisions=20"])
    with pytest.raises(ConfigurationError, match=r"160 steps, and an episode up to 5"):
        parse_recipe("test", values)


def test_environments_that_nothing_starts_again_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"use rollout\.start=fresh"):
        run(tmp_path, "env.auto_reset=disabled")[1]()


def test_fewer_evaluation_episodes_than_workers_are_played(tmp_path):
    overrides = ["cluster.launcher=inline", "cluster.workers.env=2", "evaluation.episodes=1", "goal.env_steps=128"]
    folder, start = run(tmp_path, *overrides)
    start()
    assert json.loads(folder.evaluation.read_text()) != []
    assert json.loads(folder.result.read_text())["status"] == "limit"


def test_log_probabilities_computed_anew_have_the_precision_of_the_loss(tmp_path, monkeypatch):
    gaps, genuine = [], LearnerWorker._require_agreement

    def noted(self, logprobs, old, mask):
        gaps.append(float((logprobs - old).detach().abs()[mask].max()))
        genuine(self, logprobs, old, mask)

    monkeypatch.setattr(LearnerWorker, "_require_agreement", noted)
    monkeypatch.setattr("embodied.interaction.learner_worker._RATIO_TOLERANCE", 0.0)  # not asked for in bfloat16
    overrides = ["algorithm.loss=decoupled_ppo", "learner.precision=bfloat16", "learner.global_batch=64"]
    _, start = run(tmp_path, *overrides)
    start()
    (anew, acting) = gaps
    assert anew == 0.0
    assert 0.0 < acting < 0.1


def test_samples_staler_than_allowed_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(LearnerWorker, "weights", lambda self: {})
    monkeypatch.setattr("embodied.interaction.policy_worker.PolicyWorker.share_weights", lambda self, weights: None)
    monkeypatch.setattr(
        "embodied.interaction.policy_worker.PolicyWorker.weights_changed",
        lambda self, version: setattr(self, "version", 0),
    )
    _, start = run(tmp_path, "goal.env_steps=128")
    with pytest.raises(CorrectnessAlarm, match=r"1 update.* behind"):
        start()


def test_a_goal_that_the_environment_cannot_have_is_refused(tmp_path):
    _, start = run(tmp_path, "goal.metric=success_once")
    with pytest.raises(ConfigurationError, match=r"goal\.metric=return"):
        start()
