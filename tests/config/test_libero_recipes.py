"""The LIBERO recipes: all there, possible, short, and with the numbers that were published."""

from __future__ import annotations

import pytest
import yaml

from embodied.commands.main import main
from embodied.config.compose import compose_recipe, find_recipe, recipe_names
from embodied.errors import EXIT_DONE
from embodied.interaction.recipe import Recipe, parse_recipe

SUITES = ("spatial", "object", "goal", "10", "90", "130")
NAMES = [
    f"libero_{suite}_{algorithm}_{policy}{size}"
    for suite in SUITES
    for algorithm in ("grpo", "ppo")
    for policy in ("openvla_oft", "openvla")
    for size in ("", "_tiny")
]


def _recipe(name: str, *overrides: str) -> Recipe:
    return parse_recipe(name, compose_recipe(name, list(overrides)))


def test_every_suite_has_both_algorithms_and_both_policies_in_both_sizes() -> None:
    assert sorted(name for name in recipe_names() if name.startswith("libero_")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_accepts_it_and_it_is_short(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--dry-run"]) == EXIT_DONE
    recipe = parse_recipe(name, yaml.safe_load(capsys.readouterr().out))
    assert recipe.description
    assert recipe.env.id.startswith(f"libero/{name.split('_grpo')[0].split('_ppo')[0]}")
    assert len(find_recipe(name).read_text().splitlines()) <= 30
    chunk = recipe.policy.actions
    assert chunk > 1 or recipe.policy.value != "action", "one action a decision has one value"
    if "_grpo_" in name:
        limit = recipe.env.episode_steps or max(recipe.env.step_limits)
        assert (recipe.rollout.decisions - 1) * chunk < limit <= recipe.rollout.decisions * chunk, "whole episodes"
        assert (recipe.env.auto_reset, recipe.env.reward_form) == ("disabled", "relative")
        assert (recipe.algorithm.logprob_level == "token") == (chunk > 1)


def test_the_published_grpo_recipe() -> None:
    recipe = _recipe("libero_10_grpo_openvla_oft")
    algorithm, learner = recipe.algorithm, recipe.learner
    assert (algorithm.advantage, algorithm.loss, algorithm.group_size) == ("grpo", "ppo", 8)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.sampling.temperature) == (0.2, 0.28, 1.6)
    assert (algorithm.reward_level, algorithm.logprob_level, algorithm.entropy_level) == ("action", "token", "token")
    assert algorithm.filter_rewards == (0.1, 0.9), "0.5 to 4.5 of a reward of 5"
    assert (learner.lr, learner.grad_clip, learner.micro_batch, learner.global_batch) == (2e-5, 1.0, 32, 16384)
    assert (recipe.env.num_envs, recipe.rollout.decisions, learner.epochs) == (64 * 16, 512 // 8, 1)
    assert recipe.policy.lora is None
    assert (recipe.env.protocol, max(recipe.env.step_limits)) == ("rlinf", 512)
    assert recipe.evaluation.sampling.temperature == 1.6


def test_the_published_ppo_recipe() -> None:
    recipe = _recipe("libero_spatial_ppo_openvla_oft")
    algorithm, learner = recipe.algorithm, recipe.learner
    assert (algorithm.advantage, algorithm.loss) == ("gae", "ppo_actor_critic")
    assert (algorithm.gamma, algorithm.gae_lambda) == (0.99, 0.95)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.value_clip, algorithm.huber_delta) == (
        0.2,
        0.28,
        0.2,
        10,
    )
    assert (learner.lr, learner.value_lr, learner.grad_clip, learner.global_batch) == (1e-4, 3e-3, 10, 640)
    assert (recipe.policy.lora.rank, recipe.policy.value) == (32, "action")
    assert _recipe("libero_spatial_ppo_openvla").algorithm.clip_high == 0.2
