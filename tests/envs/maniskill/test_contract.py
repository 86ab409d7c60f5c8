"""The environment contract's own suite on ManiSkill, and that many episodes cost no memory."""

import functools
import gc

import psutil
import pytest
import torch

from envs.api import Assignments
from envs.conformance import check
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.registry import make
from tests.envs.maniskill.stock_reference import can_render, everyone, start

needs_vulkan = pytest.mark.skipif(not can_render(), reason="no Vulkan device (see `embodied doctor`)")


def test_state_task_obeys_the_contract_in_one_process():
    config = ManiSkillConfig(id="maniskill/PushCube-v1", num_envs=4, slots=2, processes=0, episode_steps=12)
    check(functools.partial(make, config))


@pytest.mark.slow
@needs_vulkan
def test_image_task_obeys_the_contract_in_one_process():
    config = ManiSkillConfig(
        id="maniskill/PickCube-v1",
        obs="rgb",
        image_size=16,
        robot_visual="lowpoly",
        num_envs=2,
        processes=0,
        episode_steps=6,
    )
    check(functools.partial(make, config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "reward"),
    [("PushCube-v1", "dense"), ("PlugCharger-v1", "sparse"), ("MS-HopperHop-v1", "dense")],
)
def test_task_obeys_the_contract_in_this_process_and_in_workers(task, reward):
    check(ManiSkillConfig(id=f"maniskill/{task}", reward=reward, num_envs=4, slots=2, episode_steps=12))


def _megabytes() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def _run_episodes(env: BatchedManiSkill, count: int, pictures: bool) -> None:
    actions = torch.zeros(env.num_envs, env.spec.action.dim)
    for seed in range(count):
        start(env, [seed] * env.num_envs)
        env.step(actions, everyone(env))
        if pictures:
            env.observe()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "pictures"),
    [
        ("PickCube-v1", False),
        pytest.param("PickCube-v1", True, marks=needs_vulkan),
        pytest.param("PutOnPlate-v1", True, marks=needs_vulkan),  # new colours and textures at every reset
    ],
)
def test_a_thousand_resets_cost_no_memory(task, pictures):
    options = {"obs": "rgb", "image_size": 32, "robot_visual": "lowpoly"} if pictures else {}
    env = BatchedManiSkill(ManiSkillConfig(id=f"maniskill/{task}", **options), 2)
    _run_episodes(env, 100, pictures)
    before = _megabytes()
    _run_episodes(env, 500, pictures)
    assert _megabytes() - before < 20
    env.close()


@pytest.mark.slow
def test_closing_frees_the_scenes():
    config = ManiSkillConfig(id="maniskill/PushCube-v1")
    for _ in range(2):
        BatchedManiSkill(config, 8).close()
    before = _megabytes()
    for _ in range(6):
        env = BatchedManiSkill(config, 8)
        env.reset(torch.tensor([0]), Assignments.from_seeds([0]))
        env.close()
    del env
    assert _megabytes() - before < 60
