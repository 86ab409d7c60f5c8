"""Wider starts and the smooth reward change where things are and what is paid, and nothing else."""

import pytest
import torch

from embodied.config import parse
from embodied.errors import ConfigurationError
from envs.api import Assignments
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.experts import EXPERTS, STRAIGHT, without_turns
from envs.maniskill.factory import make_batch

STATE = {"id": "maniskill/PushCube-v1", "rendering": "never", "sim_backend": "cpu"}
GOAL, CUBE = slice(25, 28), slice(28, 31)


def make(num_envs=3, **options):
    return make_batch(parse(ManiSkillConfig, {**STATE, **options}, at="env"), num_envs)


def first_states(**options):
    env = make(**options)
    env.reset(torch.arange(3), Assignments.from_seeds([5, 6, 7]))
    state = env.observe().state.clone()
    env.close()
    return state


@pytest.mark.parametrize("stepping", ["batched", pytest.param("single", marks=pytest.mark.slow)])
def test_cubes_start_further_from_the_middle_and_targets_move_with_them(stepping):
    plain, wide = first_states(stepping=stepping), first_states(stepping=stepping, spread=[1.0, 2.0])
    assert torch.allclose(wide[:, 28], plain[:, 28], atol=1e-6)
    assert torch.allclose(wide[:, 29], 2 * plain[:, 29], atol=1e-6)
    assert torch.allclose(wide[:, GOAL] - wide[:, CUBE], plain[:, GOAL] - plain[:, CUBE], atol=1e-6)
    others = [*range(25), *range(31, 35)]
    assert torch.allclose(wide[:, others], plain[:, others], atol=1e-6)


def test_the_smooth_reward_grows_towards_success_which_pays_one_more():
    env = make(reward="smooth", control_mode="pd_ee_delta_pos")
    env.reset(torch.arange(3), Assignments.from_seeds([5, 6, 7]))
    script = without_turns(EXPERTS["PushCube-v1"])
    paid = []
    active = torch.ones(3, dtype=torch.bool)
    for _ in range(30):
        result = env.step(script(env.observe().state), active)
        paid.append(torch.where(active, result.reward, paid[-1] if paid else result.reward))
        assert bool((result.reward[active & result.success] > 1).all())
        assert bool((result.reward[active & ~result.success] <= 1).all())
        active = active & ~result.success
        if not active.any():
            break
    env.close()
    assert not active.any()
    assert bool((paid[-1] > paid[0] + 1).all())


def test_a_cube_is_picked_up_without_turning_the_hand():
    env = make(num_envs=8, id="maniskill/PickCube-v1", control_mode="pd_ee_delta_pos")
    env.reset(torch.arange(8), Assignments.from_seeds(range(8)))
    script = without_turns(STRAIGHT["PickCube-v1"])
    active = torch.ones(8, dtype=torch.bool)
    for _ in range(50):
        active = active & ~env.step(script(env.observe().state), active).success
        if not active.any():
            break
    env.close()
    assert not active.any()


def test_gentle_experts_answer_with_half_of_what_is_left():
    state = torch.zeros(1, 42)
    state[0, 18] = 1.0  # held
    state[0, 26:29] = torch.tensor([0.04, -0.02, 0.3])  # where the goal is; the cube is at the origin
    quick, gentle = EXPERTS["PickCube-v1"](state), STRAIGHT["PickCube-v1"](state)
    assert quick[0, :3].tolist() == pytest.approx([0.4, -0.2, 1.0])
    assert gentle[0, :3].tolist() == pytest.approx([0.2, -0.1, 1.0])  # a step's own limit stays


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "maniskill/StackCube-v1", "spread": [1.0, 2.0]}, ["cannot be spread", "PushCube-v1"]),
        ({"id": "maniskill/StackCube-v1", "reward": "smooth"}, ["has no reward 'smooth'"]),
        ({"spread": [1.0, 9.0]}, ["from 0 to 4"]),
        ({"field_of_view": 50.0}, ["obs: state"]),
        ({"field_of_view": 200.0, "obs": "rgb"}, ["below 180"]),
        ({"velocities": False}, ["no effect with obs: state"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, words):
    with pytest.raises(ConfigurationError) as caught:
        make(1, **options)
    assert all(word in str(caught.value) for word in words), caught.value
