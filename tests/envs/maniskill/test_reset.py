"""What an environment does after a reset depends on its assignment, not on its past, its place or the batch."""

import contextlib
import io
import subprocess
import sys

import pytest
import torch

import envs
from embodied.errors import ConfigurationError
from envs.api import Assignments
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.experts import CONTROL_MODE, pick_cube, push_cube
from envs.maniskill.factory import make_batch
from tests.envs.maniskill.stock_reference import everyone, random_actions, start, trajectory

# the charger touches the table and the humanoid falls: without a fresh physics scene both remember the past
CONTACT_RICH = [("PlugCharger-v1", "sparse"), ("UnitreeG1Stand-v1", "sparse")]


@pytest.mark.parametrize(("task", "reward"), CONTACT_RICH)
@pytest.mark.parametrize("stepping", ["batched", "single"])
def test_trajectory_after_a_different_past_is_equal_to_the_bit(task, reward, stepping):
    config = ManiSkillConfig(id=f"maniskill/{task}", reward=reward, stepping=stepping)
    env, fresh = make_batch(config, 2), make_batch(config, 2)
    assert env.spec.exact_reset
    actions, other = (random_actions(fresh, 15, seed)[:, 0] for seed in (1, 2))
    actions[:, 1] = other[:, 1] = 0.8
    expected = trajectory(fresh, 1, 5, actions)
    trajectory(env, 1, 99, other)
    trajectory(env, 1, 5, other)
    assert torch.equal(trajectory(env, 1, 5, actions), expected)
    env.close()
    fresh.close()


def test_body_that_was_pushed_before_falls_asleep_at_the_same_moment():
    """The engine keeps with each body how long it is to stay awake; a push prolongs it beyond a new pose's."""
    config = ManiSkillConfig(id="maniskill/PushCube-v1", control_mode=CONTROL_MODE)
    past, fresh = BatchedManiSkill(config, 1), BatchedManiSkill(config, 1)
    kept = []
    for env in (past, fresh):
        if env is past:
            start(env, [4])
            for _ in range(8):  # until the fingers strike the cube
                env.step(push_cube(env.observe().state), everyone(env))
        start(env, [7])
        cube, awake = next(b for b in env._env.scene.px.rigid_dynamic_components if "cube" in b.entity.name), []
        for _ in range(15):  # the hand stays away, the cube rests on the table
            env.step(torch.zeros(1, 7), everyone(env))
            awake.append(not cube.is_sleeping)
        kept.append((awake, env.observe().state))
        env.close()
    assert kept[1][0][0]
    assert not kept[1][0][-1], "the cube rests and falls asleep"
    assert kept[0][0] == kept[1][0]
    assert torch.equal(kept[0][1], kept[1][1])


def test_an_episode_saved_while_a_cube_is_pushed_goes_on_to_the_bit_elsewhere():
    options = {"num_envs": 2, "processes": 0, "control_mode": CONTROL_MODE, "auto_reset": "disabled"}
    with (
        envs.make("maniskill/PushCube-v1", **options) as saved,
        envs.make("maniskill/PushCube-v1", **options) as loaded,
    ):
        for seed, env in enumerate((saved, loaded)):
            observation = env.reset(Assignments.from_seeds([4 + seed, 9 + seed]))
            for _ in range(9):  # pasts of their own, each with contacts
                observation = env.step(push_cube(observation.state)[:, None]).observation
        observation = saved.reset(Assignments.from_seeds([3, 5]))
        for _ in range(10):
            observation = saved.step(push_cube(observation.state)[:, None]).observation
        restored = loaded.load_state_dict(saved.state_dict())
        assert torch.equal(restored.state, observation.state)
        before = observation.state[:, 28:31].clone()
        for _ in range(8):
            actions = push_cube(observation.state)[:, None]
            observation, other = saved.step(actions).observation, loaded.step(actions).observation
            assert torch.equal(observation.state, other.state)
        assert (observation.state[:, 28:31] - before).abs().amax() > 0.01, "a cube moved, so there were contacts"


def test_environment_does_not_depend_on_batch_size_or_place():
    config = ManiSkillConfig(id="maniskill/PickCube-v1")
    one, many = BatchedManiSkill(config, 1), BatchedManiSkill(config, 32)
    actions = random_actions(one, 12)[:, 0]
    start(many, list(range(32)))
    expected = trajectory(one, 0, 5, actions)
    assert torch.equal(trajectory(many, 0, 5, actions), expected)
    assert torch.equal(trajectory(many, 31, 5, actions), expected)
    one.close()
    many.close()


@pytest.mark.parametrize("control_mode", [None, "pd_ee_target_delta_pose"])
def test_partial_reset_touches_only_its_rows(control_mode):
    config = ManiSkillConfig(id="maniskill/PushCube-v1", control_mode=control_mode)
    env, undisturbed = BatchedManiSkill(config, 4), BatchedManiSkill(config, 4)
    actions = random_actions(env, 12)
    for batch in (env, undisturbed):
        start(batch, [0, 1, 2, 3])
        for action in actions[:6]:
            batch.step(action, everyone(batch))
    env.reset(torch.tensor([1, 3]), Assignments.from_seeds([8, 9]))
    assert torch.equal(env.observe().state[[0, 2]], undisturbed.observe().state[[0, 2]])
    for action in actions[6:]:
        ours, theirs = env.step(action, everyone(env)), undisturbed.step(action, everyone(undisturbed))
        assert torch.equal(ours.reward[[0, 2]], theirs.reward[[0, 2]])
    assert torch.equal(env.observe().state[[0, 2]], undisturbed.observe().state[[0, 2]])
    assert not torch.equal(env.observe().state[[1, 3]], undisturbed.observe().state[[1, 3]])
    env.close()
    undisturbed.close()


def test_equal_seeds_give_equal_worlds_and_different_seeds_different_ones():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/StackCube-v1"), 3)
    start(env, [4, 4, 5])
    state = env.observe().state
    assert torch.equal(state[0], state[1])
    assert not torch.equal(state[0], state[2])
    env.close()


def test_reset_forgets_a_grasp():
    """The engine lists the contacts of the last step until the next one; a new episode must not see them."""
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PickCube-v1", control_mode=CONTROL_MODE), 1)
    start(env, [0])
    for _ in range(30):
        env.step(pick_cube(env.observe().state), everyone(env))
    grasped = 18
    assert env.observe().state[0, grasped] == 1
    start(env, [0])
    assert env.observe().state[0, grasped] == 0
    env.close()


def test_inactive_environments_stand_still():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PushCube-v1"), 2)
    start(env, [0, 1])
    before = env.observe().state
    for action in random_actions(env, 5):
        env.step(action, torch.tensor([True, False]))
    after = env.observe().state
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])
    env.close()


def test_observations_are_not_overwritten_by_later_steps():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PushCube-v1"), 2)
    start(env, [0, 1])
    shown = env.observe()
    kept = shown.clone()
    step = env.step(random_actions(env, 1)[0], everyone(env))
    reward = step.reward.clone()
    start(env, [2, 3])
    env.step(random_actions(env, 1)[0], everyone(env))
    assert torch.equal(shown.state, kept.state)
    assert torch.equal(step.reward, reward)
    env.close()


def test_unknown_task_ids_and_initial_states_are_refused():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PushCube-v1"), 1)
    with pytest.raises(ConfigurationError, match="one task"):
        env.reset(torch.tensor([0]), Assignments.from_seeds([0], task=1))
    with pytest.raises(ConfigurationError, match="no stored initial states"):
        env.reset(torch.tensor([0]), Assignments(torch.tensor([0]), torch.tensor([3]), torch.tensor([0])))
    env.close()


_DIGEST = """
import hashlib, torch
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from tests.envs.maniskill.stock_reference import random_actions, trajectory
env = BatchedManiSkill(ManiSkillConfig(id="maniskill/StackCube-v1"), 2)
values = trajectory(env, 1, 5, random_actions(env, 10)[:, 0])
print(hashlib.sha256(values.numpy().tobytes()).hexdigest())
"""


def test_two_processes_agree_to_the_bit():
    here: dict = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(_DIGEST, here)
    there = subprocess.run([sys.executable, "-c", _DIGEST], capture_output=True, text=True, check=True).stdout
    assert len(there.strip()) == 64
    assert printed.getvalue() == there
