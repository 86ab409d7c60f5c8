"""GRPO with a tiny OpenVLA-OFT in LIBERO, whole: groups, sparse reward, filter, and the saved policy.

The task's goal is replaced by one that random actions reach now and then: to move the hand a centimetre to the left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from embodied.config.compose import compose_recipe
from embodied.interaction import learner_worker
from embodied.interaction.evaluate import evaluate_policy
from embodied.interaction.recipe import Recipe, parse_recipe
from embodied.interaction.train import train
from embodied.runs.folder import create_run_folder
from embodied.runs.metrics import read_metrics
from envs.libero import task

NAME = "libero_object_grpo_openvla_oft_tiny"


def _recipe(folder: Path, *overrides: str) -> Recipe:
    short = ["record.episodes=0", "logger.tensorboard=false", f"run.folder={folder}", *overrides]
    return parse_recipe(NAME, compose_recipe(NAME, short))


@pytest.fixture
def hand_to_the_left(monkeypatch) -> None:
    def goal(env, model):
        hand = model.site("gripper0_grip_site").id
        return lambda data: bool(data.site_xpos[hand][1] > 0.01)

    monkeypatch.setattr(task, "compile_goal", goal)


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("hand_to_the_left")
def test_an_iteration_compares_attempts_at_one_start_by_the_sparse_reward(tmp_path, monkeypatch) -> None:
    seen = []
    make_samples = learner_worker.make_samples

    def watched(trajectory, options, ranks=None):
        result = make_samples(trajectory, options, ranks)
        seen.append((trajectory.clone(), result[0].clone()))
        return result

    monkeypatch.setattr(learner_worker, "make_samples", watched)
    folder = tmp_path / "run"
    recipe = _recipe(
        folder,
        "env.num_envs=16",
        "env.episode_steps=16",
        "policy.checkpoint=null",
        "rollout.decisions=2",
        "evaluation={every: 1, episodes: 6}",
        "goal={at_least: null, env_steps: 1}",
        "learner.global_batch=16",
        "learner.epochs=1",
    )
    outcome = train(recipe, create_run_folder(tmp_path, NAME, folder), command="test")
    assert outcome.result["iterations"] == 1
    trajectory, samples = seen[0]
    groups = trajectory.group_ids[0].reshape(2, 8)
    assert len(groups.unique()) == 2
    assert (groups == groups[:, :1]).all(), "a group is eight environments in a row"
    pictures = trajectory.inputs["pixels"][0].reshape(2, 8, -1)
    assert (pictures == pictures[:, :1]).all(), "attempts of a group see the same start"
    assert not torch.equal(pictures[0, 0], pictures[1, 0])
    tokens = trajectory.tokens[0].reshape(2, 8, -1)
    assert len(tokens[0].unique(dim=0)) > 1, "and differ in what is drawn"

    scores = trajectory.rewards.sum((0, 2))
    assert set(scores.tolist()) <= {0.0, 1.0}, "success pays once"
    ended = trajectory.terminated.any(2)
    assert torch.equal(scores > 0, ended.any(0))
    after = ended.cumsum(0) - ended.long() > 0
    assert not trajectory.valid[after].any(), "nothing counts after success"

    rates = scores.reshape(2, 8).mean(1)
    kept = (rates >= 0.1) & (rates <= 0.9)
    metrics = [r["metrics"] for r in read_metrics(folder / "metrics.jsonl") if "group/kept_fraction" in r["metrics"]]
    assert metrics[0]["group/kept_fraction"] == pytest.approx(kept.float().mean().item())
    counted = trajectory.valid.any(2).reshape(-1, 2, 8)[:, kept].sum()
    assert len(samples) == counted, "decisions of the other groups are left out"
    assert kept.any(), "some group both succeeds and fails"
    best = samples.advantages.amax(1) > 0
    assert best.any()
    assert not best.all()

    policy = Path(outcome.result["checkpoint"]) / "policy"
    saved, _ = evaluate_policy(policy, recipe.env, recipe.evaluation, forward_rows=recipe.rollout.forward_rows)
    after = outcome.result["after"]
    assert saved.success_once == after["eval/success_once"]
    assert saved.mean_return == after["eval/return"]
    assert json.loads((folder / "result.json").read_text())["status"] == "limit"
