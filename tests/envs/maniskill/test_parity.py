"""Batched stepping gives what stock single environments give."""

import pytest
import torch

from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from tests.envs.maniskill.stock_reference import everyone, random_actions, start, stock

CASES = [
    ("PushCube-v1", None),
    ("PickCube-v1", "pd_ee_delta_pose"),
    ("StackCube-v1", "pd_joint_target_delta_pos"),
    ("PegInsertionSide-v1", None),
    ("PokeCube-v1", None),
    ("LiftPegUpright-v1", None),
    ("PlaceSphere-v1", None),
    ("RollBall-v1", None),
    ("TwoRobotPickCube-v1", None),
]
MORE_CASES = [
    ("PickCube-v1", None),
    ("PushCube-v1", "pd_ee_target_delta_pos"),
    ("PullCube-v1", "pd_joint_vel"),
    ("PullCubeTool-v1", "pd_joint_pos"),
    ("PickCubeSO100-v1", None),
    ("TriFingerRotateCubeLevel4-v1", None),
    ("MS-CartpoleBalance-v1", None),
    ("MS-HumanoidRun-v1", None),
    ("UnitreeG1TransportBox-v1", None),
]
GEOMETRY_SEED = 3


@pytest.mark.parametrize(
    ("task", "control_mode"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_ten_random_steps_agree_with_the_stock_environment(task, control_mode):
    config = ManiSkillConfig(id=f"maniskill/{task}", control_mode=control_mode, scene_seed=GEOMETRY_SEED)
    ours = BatchedManiSkill(config, 3)
    seeds = [11, GEOMETRY_SEED, 12345678901234567]
    start(ours, seeds)
    first = ours.observe().state
    actions = random_actions(ours, 10)
    states, rewards, successes = [], [], []
    for action in actions:
        step = ours.step(action, everyone(ours))
        states.append(ours.observe().state)
        rewards.append(step.reward)
        successes.append(step.success)
    # drawn geometry is the same in all our environments, so only the row of its own seed has the stock geometry
    rows = [1] if ours.scene_is_drawn else [0, 1, 2]
    options = {"control_mode": control_mode, "reward_mode": "normalized_dense"}
    with stock(task, **{k: v for k, v in options.items() if v is not None}) as reference:
        for row in rows:
            observation, _ = reference.reset(seed=seeds[row] % 2**32)
            torch.testing.assert_close(first[row], observation[0].float(), atol=1e-5, rtol=0)
            for t, action in enumerate(actions[:, row]):
                observation, reward, _, _, info = reference.step(_for_stock(reference, action))
                torch.testing.assert_close(states[t][row], observation[0].float(), atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(rewards[t][row], reward.float().reshape(()), atol=1e-6, rtol=0)
                assert bool(successes[t][row]) == bool(info.get("success", False))
    ours.close()


def _for_stock(reference, action):
    if not hasattr(reference.single_action_space, "spaces"):
        return action
    parts = action.split([space.shape[0] for space in reference.single_action_space.values()])
    return dict(zip(reference.single_action_space, [part[None] for part in parts], strict=True))


def test_every_environment_has_its_own_ground():
    """On a GPU one plane serves all scenes; a CPU scene without a plane of its own lets things fall for ever."""
    env = BatchedManiSkill(ManiSkillConfig(id="maniskill/MS-HumanoidStand-v1"), 3)
    start(env, [7, 7, 7])
    for action in random_actions(env, 40)[:, :1]:
        env.step(action.expand(3, -1), everyone(env))
    states = env.observe().state
    assert torch.equal(states[0], states[2])
    env.close()
