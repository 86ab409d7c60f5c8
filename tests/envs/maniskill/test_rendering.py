"""Pictures: what the policy's cameras and people see, and that nothing is drawn where nothing was asked for."""

import os
import subprocess
import sys

import psutil
import pytest
import torch

from embodied.errors import ConfigurationError, SimulatorError
from envs.api import Assignments
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.factory import make_batch
from tests.envs.maniskill.stock_reference import can_render, everyone, random_actions, start, stock

needs_vulkan = pytest.mark.skipif(not can_render(), reason="no Vulkan device (see `embodied doctor`)")


@pytest.fixture(scope="module")
def drawn():
    config = ManiSkillConfig(
        id="maniskill/PickCube-v1", obs="rgb", image_size=64, robot_visual="lowpoly", rendering="on_demand"
    )
    env = BatchedManiSkill(config, 3)
    yield env
    env.close()


@needs_vulkan
def test_pictures_are_those_of_the_stock_environment():
    config = ManiSkillConfig(id="maniskill/PickCube-v1", obs="rgb", image_size=(48, 64), rendering="on_demand")
    env = BatchedManiSkill(config, 2)
    start(env, [5, 6])
    options = {"obs_mode": "rgb", "render_backend": "cpu", "render_mode": "rgb_array"}
    with stock("PickCube-v1", sensor_configs={"width": 64, "height": 48}, **options) as reference:
        observation, _ = reference.reset(seed=6)
        seen = observation["sensor_data"]["base_camera"]["rgb"][0]
        for_people = reference.render()[0]
        sensed = torch.cat([observation["agent"]["qpos"][0], observation["agent"]["qvel"][0]])
    ours = env.observe(torch.tensor([1]))
    assert ours.images.shape == (1, 1, 48, 64, 3)
    assert ours.images.dtype == torch.uint8
    assert (ours.images[0, 0].int() - seen.int()).abs().float().mean() < 1
    assert seen.float().std() > 10
    torch.testing.assert_close(ours.state[0, :18], sensed)
    people = env.render(torch.tensor([1]))
    assert people.shape == (1, 512, 512, 3)
    assert (people[0].int() - for_people.int()).abs().float().mean() < 1
    env.close()


@needs_vulkan
@pytest.mark.parametrize("stepping", ["batched", "single"])
def test_the_state_beside_pictures_can_do_without_velocities(stepping):
    shown = {}
    for velocities in (True, False):
        config = ManiSkillConfig(
            id="maniskill/PickCube-v1",
            obs="rgb",
            image_size=16,
            robot_visual="lowpoly",
            stepping=stepping,
            velocities=velocities,
        )
        env = make_batch(config, 2)
        start(env, [5, 6])
        for action in random_actions(env, 2):
            env.step(action, everyone(env))
        shown[velocities] = env.observe()
        assert env.spec.state_dim == shown[velocities].state.shape[1]
        env.close()
    moving = shown[True].state[:, 9:18]
    assert moving.abs().max() > 0.01
    torch.testing.assert_close(moving, shown[True].privileged[:, 9:18])
    assert torch.equal(shown[False].state, torch.cat([shown[True].state[:, :9], shown[True].state[:, 18:]], dim=1))
    assert torch.equal(shown[False].privileged, shown[True].privileged)


@needs_vulkan
def test_only_the_rows_asked_for_are_shown_and_a_reset_shows_the_new_world(drawn):
    start(drawn, [0, 1, 2])
    first = drawn.observe()
    assert torch.equal(drawn.observe(torch.tensor([2])).images[0], first.images[2])
    for action in random_actions(drawn, 4):
        drawn.step(action, everyone(drawn))
    moved = drawn.observe()
    assert not torch.equal(moved.images[0], first.images[0])
    drawn.reset(torch.tensor([0]), Assignments.from_seeds([0]))
    again = drawn.observe()
    assert torch.equal(again.images[0], first.images[0])
    assert torch.equal(again.images[1], moved.images[1])


@needs_vulkan
def test_goal_marker_is_hidden_from_the_policy_but_not_from_people(drawn):
    start(drawn, [0, 1, 2])
    green = drawn.observe().images[:, 0].float()
    assert not ((green[..., 1] > 150) & (green[..., 0] < 100) & (green[..., 2] < 100)).any()
    people = drawn.render(torch.tensor([0]))[0].float()
    assert ((people[..., 1] > 150) & (people[..., 0] < 100) & (people[..., 2] < 100)).any()


@needs_vulkan
def test_image_tasks_show_what_the_robot_senses_and_keep_the_full_state_apart(drawn):
    start(drawn, [0, 1, 2])
    shown = drawn.observe()
    assert shown.state.shape == (3, drawn.spec.state_dim) == (3, 29)
    assert shown.privileged.shape == (3, drawn.spec.privileged_dim) == (3, 42)
    full = BatchedManiSkill(ManiSkillConfig(id="maniskill/PickCube-v1"), 3)
    start(full, [0, 1, 2])
    assert torch.equal(shown.privileged, full.observe().state)
    assert full.observe().privileged is None
    assert full.observe().images is None
    full.close()


@needs_vulkan
def test_low_poly_robot_changes_pictures_and_nothing_else(drawn):
    stock_looks = BatchedManiSkill(ManiSkillConfig(id="maniskill/PickCube-v1", obs="rgb", image_size=64), 3)
    for env in (drawn, stock_looks):
        start(env, [0, 1, 2])
    for action in random_actions(drawn, 3):
        rewards = [env.step(action, everyone(env)).reward for env in (drawn, stock_looks)]
        assert torch.equal(*rewards)
    ours, theirs = drawn.observe(), stock_looks.observe()
    assert torch.equal(ours.privileged, theirs.privileged)
    difference = (ours.images.float() - theirs.images.float()).abs().mean()
    assert 0.5 < difference < 15
    stock_looks.close()


@needs_vulkan
def test_single_stepping_shows_the_same_pictures(drawn):
    config = ManiSkillConfig(
        id="maniskill/PickCube-v1", obs="rgb", image_size=64, robot_visual="lowpoly", stepping="single"
    )
    env = make_batch(config, 1)
    start(env, [1])
    start(drawn, [0, 1, 2])
    ours, theirs = env.observe(), drawn.observe(torch.tensor([1]))
    assert (ours.images.float() - theirs.images.float()).abs().mean() < 1
    torch.testing.assert_close(ours.privileged, theirs.privileged, atol=1e-5, rtol=0)
    env.close()


@needs_vulkan
def test_unknown_camera_and_unknown_object_are_refused():
    with pytest.raises(ConfigurationError, match="base_camera"):
        make_batch(ManiSkillConfig(id="maniskill/PickCube-v1", obs="rgb", cameras=("base_cam",)), 1)
    with pytest.raises(ConfigurationError, match="table-workspace"):
        make_batch(ManiSkillConfig(id="maniskill/PickCube-v1", obs="rgb", hidden=("table",)), 1)


def test_picture_of_an_environment_made_without_rendering_is_refused_with_the_reason():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PushCube-v1"), 1)
    with pytest.raises(SimulatorError, match="rendering=on_demand"):
        env.render(torch.tensor([0]))
    env.close()


_WITHOUT_VULKAN = """
import torch
from embodied.errors import SimulatorError
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.factory import make_batch
env = make_batch(ManiSkillConfig(id="maniskill/StackCube-v1"), 2)
print(env.step(torch.zeros(2, env.spec.action.dim), torch.ones(2, dtype=torch.bool)).reward.shape)
try:
    make_batch(ManiSkillConfig(id="maniskill/StackCube-v1", obs="rgb"), 2)
except SimulatorError as error:
    print("refused:", error)
"""


def test_state_tasks_need_no_vulkan_and_image_tasks_say_that_they_do():
    environment = {**os.environ, "VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent.json"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_VULKAN], capture_output=True, text=True, env=environment, check=True
    )
    assert "torch.Size([2])" in done.stdout
    assert "refused: StackCube-v1 needs a Vulkan device" in done.stdout


@pytest.mark.slow
@needs_vulkan
def test_memory_does_not_grow_with_resets_and_pictures():
    """New looks and colours in every episode; a thousand resets are in benchmarks/results/soak.md."""
    config = ManiSkillConfig(id="maniskill/PutOnPlate-v1", obs="rgb", image_size=32, robot_visual="lowpoly")
    env, sizes = BatchedManiSkill(config, 2), []
    for index in range(500):
        start(env, [2 * index, 2 * index + 1])
        env.observe()
        if index in (150, 499):
            sizes.append(psutil.Process().memory_info().rss / 2**20)
    env.close()
    assert sizes[1] - sizes[0] < 20
