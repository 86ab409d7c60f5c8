"""Contacts, velocities of inner links and forces: the parts of the physics interface that bulk reads do not give."""

import numpy as np
import torch

from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.experts import CONTROL_MODE, pick_cube
from tests.envs.maniskill.stock_reference import everyone, random_actions, start, stock


def test_contacts_while_grasping_agree_with_the_stock_environment():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PickCube-v1", control_mode=CONTROL_MODE), 2)
    start(env, [21, 22])
    task = env._env
    grasped = []
    with stock("PickCube-v1", control_mode=CONTROL_MODE) as reference:
        reference.reset(seed=22)
        for _ in range(22):
            action = pick_cube(env.observe().state)
            env.step(action, everyone(env))
            reference.step(action[1])
            for ours, theirs in (
                (task.agent.is_grasping(task.cube)[1], reference.agent.is_grasping(reference.cube)[0]),
                (
                    task.scene.get_pairwise_contact_impulses(task.agent.finger1_link, task.cube)[1],
                    reference.scene.get_pairwise_contact_impulses(reference.agent.finger1_link, reference.cube)[0],
                ),
                (task.cube.get_net_contact_impulses()[1], reference.cube.get_net_contact_impulses()[0]),
                (
                    task.agent.finger1_link.get_net_contact_impulses()[1],
                    reference.agent.finger1_link.get_net_contact_impulses()[0],
                ),
            ):
                torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-3, rtol=2e-2)
            grasped.append(bool(task.agent.is_grasping(task.cube)[1]))
    assert grasped[0] is False
    assert grasped[-1] is True
    env.close()


def test_velocities_of_inner_links_agree_with_the_stock_environment():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PushCube-v1"), 2)
    start(env, [1, 2])
    actions = random_actions(env, 4)
    with stock("PushCube-v1") as reference:
        reference.reset(seed=2)
        for action in actions:
            env.step(action, everyone(env))
            reference.step(action[1])
        for name in ("panda_link3", "panda_hand", "panda_leftfinger"):
            ours, theirs = env._env.agent.robot.links_map[name], reference.agent.robot.links_map[name]._objs[0]
            assert np.abs(theirs.linear_velocity).max() > 1e-3
            for now, then in (
                (ours.linear_velocity[1], theirs.linear_velocity),
                (ours.angular_velocity[1], theirs.angular_velocity),
            ):
                torch.testing.assert_close(now, torch.from_numpy(then), atol=1e-4, rtol=1e-4)
    env.close()


def test_force_accelerates_only_the_body_it_acts_on():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/PickCube-v1"), 2)
    start(env, [0, 1])
    task = env._env
    mass = task.cube.mass[0]
    upward = 30.0 * mass  # of which gravity takes 9.81
    task.scene.px.cuda_rigid_body_force.torch()[task.cube._body_data_index[0], 2] = upward
    task.scene.px.gpu_apply_rigid_dynamic_force()
    task.scene.step()
    task.scene._gpu_fetch_all()
    velocity = task.cube.linear_velocity[:, 2]
    torch.testing.assert_close(velocity[0].item(), (30.0 - 9.81) / task.sim_freq, atol=2e-3, rtol=0)
    assert abs(velocity[1].item()) < 1e-3
    env.close()


def test_state_of_the_simulator_round_trips():
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/StackCube-v1"), 3)
    start(env, [0, 1, 2])
    for action in random_actions(env, 5):
        env.step(action, everyone(env))
    task = env._env
    state = task.get_state_dict()
    start(env, [3, 4, 5])
    task.set_state_dict(state)
    for kind in ("actors", "articulations"):
        for name, values in task.get_state_dict()[kind].items():
            torch.testing.assert_close(values, state[kind][name], atol=1e-6, rtol=0)
    env.close()
