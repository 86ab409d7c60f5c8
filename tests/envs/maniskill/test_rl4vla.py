"""RL4VLA's put-on-plate-in-scene tasks in the simulator, with stand-in assets of the published layout."""

import itertools

import numpy as np
import pytest
import torch
from mani_skill.agents.robots.widowx.widowx import WidowX250S

import envs
from embodied.errors import ConfigurationError
from envs.api import Assignments
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.factory import make_batch
from envs.maniskill.rl4vla.draw import draw_episode
from envs.maniskill.rl4vla.variants import VARIANTS
from tests.envs.maniskill.rl4vla_stand_in import PLATE, TABLE_TOP, TEXTURE, colour_of, write_assets
from tests.envs.maniskill.stock_reference import can_render, everyone, start

needs_vulkan = pytest.mark.skipif(not can_render(), reason="no Vulkan device (see `embodied doctor`)")


MAIN = "PutOnPlateInScene25Main-v3"


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    return write_assets(tmp_path_factory.mktemp("rl4vla"))


@pytest.fixture(autouse=True)
def _assets(request, monkeypatch):
    """This process finds the assets; where the robot's file is, ManiSkill has noted when it was imported."""
    if "assets" in request.fixturenames:
        found = request.getfixturevalue("assets")
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(WidowX250S, "urdf_path", f"{found['MS_ASSET_DIR']}/data/robots/widowx/wx250s.urdf")


def config(task: str = MAIN, **options) -> ManiSkillConfig:
    return ManiSkillConfig(id=f"maniskill/{task}", **options)


@pytest.fixture(scope="module")
def two(assets):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in assets.items():
            patch.setenv(name, value)
        patch.setattr(WidowX250S, "urdf_path", f"{assets['MS_ASSET_DIR']}/data/robots/widowx/wx250s.urdf")
        env = make_batch(config(reward="dense"), 2)
    yield env
    env.close()


def test_it_is_stepped_as_a_batch_at_five_hertz_with_the_published_arm(two):
    assert isinstance(two, BatchedManiSkill)
    assert two.spec.control_hz == 5
    assert two.spec.episode_steps == 80
    assert two.spec.action.dim == 7
    assert two.spec.has_success
    assert two._env.agent.uid == "widowx250s_bridgedataset_flat_table"
    assert two._env.agent.control_mode == "arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos"


def test_an_episode_begins_at_rest_where_its_seed_says(two):
    start(two, [3, 4])
    observation = two.observe()
    collection = two._env.collection
    for row, seed in enumerate((3, 4)):
        episode = draw_episode(seed, VARIANTS[MAIN], "in")
        assert observation.instruction[row] == collection.instruction(0, episode.thing, episode.plate)
        thing = two._env.things[episode.thing].pose.p[row]
        plate = two._env.plates[episode.plate].pose.p[row]
        np.testing.assert_allclose(thing[:2], episode.places[0], atol=5e-3)
        np.testing.assert_allclose(plate[:2], episode.places[1], atol=5e-3)
        assert thing[2] == pytest.approx(TABLE_TOP - collection.objects[episode.thing].low[2], abs=2e-3)
        assert plate[2] == pytest.approx(TABLE_TOP + PLATE[2] / 2, abs=2e-3)
        speed = two._env.things[episode.thing].linear_velocity[row].norm()
        assert speed < 0.02
    np.testing.assert_allclose(two._env.agent.robot.get_qpos()[0, :3], [-0.01840777, 0.0398835, 0.22242722], atol=1e-4)
    np.testing.assert_allclose(two._env.agent.robot.pose.p[0], [0.147, 0.028, 0.870], atol=1e-5)


def put(env, row: int, offset: tuple[float, float, float]) -> None:
    """Place the object of an environment at `offset` from its plate, at rest."""
    task = env._env
    thing, plate = task.things[int(task._thing[row])], task.plates[int(task._plate[row])]
    target = thing.pose.raw_pose.clone()
    target[row, :3] = plate.pose.p[row] + torch.tensor(offset)
    thing.set_pose(target)
    thing.set_linear_velocity(torch.zeros(env.num_envs, 3))
    thing.set_angular_velocity(torch.zeros(env.num_envs, 3))
    task.scene._gpu_apply_all()
    task.scene._gpu_fetch_all()


def test_success_is_over_the_plate_and_pressing_on_it(two):
    still = torch.zeros(2, 7)
    rest = (PLATE[2] + 0.03) / 2
    start(two, [5, 6])
    assert not two.step(still, everyone(two)).success.any()
    put(two, 0, (0.01, 0.02, rest))
    put(two, 1, (0.0, 0.12, -PLATE[2] / 2 + 0.015))
    result = two.step(still, everyone(two))
    assert result.success.tolist() == [True, False]
    assert result.terminated.tolist() == [True, False]
    # never grasped: success ends the episode and is not paid
    assert result.reward.tolist() == [0.0, 0.0]


def test_an_object_over_the_plate_that_does_not_touch_it_is_no_success(two):
    start(two, [5, 6])
    put(two, 0, (0.0, 0.0, (PLATE[2] + 0.03) / 2 + 0.03))
    assert not two._env.evaluate()["success"][0]
    two.step(torch.zeros(2, 7), everyone(two))  # it falls onto the plate
    assert two._env.evaluate()["success"][0]


def test_rewards_add_up_what_was_reached_and_looking_twice_counts_once(two):
    start(two, [5, 6])
    task, info = two._env, {}
    grasped = torch.tensor([True, False])
    for step in range(1, 8):
        task._elapsed_steps[:] = step
        task._count(grasped)
        task._count(grasped)  # an observation in between
        assert bool(task._held_once[0]) is (step >= 5)
    info = {"grasped_once": task._grasped_once, "held_once": task._held_once, "success": torch.tensor([True, True])}
    torch.testing.assert_close(task.compute_dense_reward(None, None, info), torch.tensor([1.2, 0.0]))
    start(two, [5, 6])
    assert not task._held_once.any()
    assert not task._grasped_once.any()


def test_a_reset_of_one_environment_leaves_the_other(two):
    start(two, [7, 8])
    two.step(torch.zeros(2, 7), everyone(two))
    before = two.observe().state[1]
    two.reset(torch.tensor([0]), Assignments.from_seeds([9]))
    torch.testing.assert_close(two.observe().state[1], before, rtol=0, atol=0)
    first = two.observe().state[0]
    start(two, [9, 9])
    torch.testing.assert_close(two.observe().state[0], first, rtol=0, atol=0)
    torch.testing.assert_close(two.observe().state[1], first, rtol=0, atol=1e-6)


def test_the_object_moves_in_the_fifth_step_where_that_is_held_out(assets):
    moved = {}
    for split in ("in", "out"):
        env = make_batch(config("PutOnPlateInScene25PositionChangeTo-v1", split=split, stepping="batched"), 2)
        start(env, [1, 2])
        at = []
        for _ in range(6):
            env.step(torch.zeros(2, 7), everyone(env))
            at.append(env._env._raw_pose(env._env._of(env._env.things, env._env._thing))[:, :2])
        jumps = [(b - a).norm(dim=1) for a, b in itertools.pairwise(at)]
        moved[split] = [bool((jump > 0.1).all()) for jump in jumps]
        assert all(bool((jump < 0.02).all()) for jump, big in zip(jumps, moved[split], strict=True) if not big)
        env.close()
    assert moved == {"in": [False] * 5, "out": [False, False, False, True, False]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "out_plate"}, "Did you mean 'out'|in, out, both"),
        ({"robot": "panda"}, "has its own robot"),
        ({"obs": "rgb", "field_of_view": 60.0}, "has its own field of view"),
        ({"reward": "smooth"}, "no reward 'smooth'"),
    ],
)
def test_what_these_tasks_do_not_have_is_refused(assets, options, says):
    with pytest.raises(ConfigurationError, match=says):
        make_batch(config(**options), 1)


def test_a_stock_single_environment_gives_the_same(assets, two):
    single = make_batch(config(stepping="single", reward="dense"), 1)
    start(single, [3])
    start(two, [3, 4])
    torch.testing.assert_close(single.observe().state[0], two.observe().state[0], atol=1e-4, rtol=0)
    action = torch.tensor([[0.02, 0.01, -0.02, 0.0, 0.0, 0.1, 1.0]])
    for _ in range(3):
        single.step(action, everyone(single))
        two.step(action.expand(2, -1), everyone(two))
    torch.testing.assert_close(single.observe().state[0], two.observe().state[0], atol=1e-3, rtol=0)
    single.close()


def test_intrinsics_keep_the_whole_view_whatever_the_size():
    from envs.maniskill.rl4vla.task import intrinsic

    whole, small = intrinsic(480, 640), intrinsic(96, 64)
    assert whole[0, 0] == 623.588
    np.testing.assert_allclose(small[0], whole[0] * 0.1)
    np.testing.assert_allclose(small[1], whole[1] * 0.2)


@pytest.mark.slow
@needs_vulkan
@pytest.mark.parametrize("split", ["in", "out"])
@pytest.mark.parametrize("task", VARIANTS)
def test_every_task_is_built_stepped_and_drawn(assets, task, split):
    env = make_batch(config(task, split=split, obs="rgb", image_size=64), 2)
    assert isinstance(env, BatchedManiSkill)
    start(env, [11, 12])
    for _ in range(2):
        env.step(torch.zeros(2, 7), everyone(env))
    images = env.observe().images
    assert images.shape == (2, 1, 64, 64, 3)
    variant = VARIANTS[task]
    for row, seed in enumerate((11, 12)):
        episode = draw_episode(seed, variant, split)
        corner = torch.tensor(colour_of(episode.table)).float()
        if variant.blend == "everything" and episode.texture:
            corner = corner * (1 - variant.strength) + torch.tensor(TEXTURE) * variant.strength
        torch.testing.assert_close(images[row, 0, 0, 0].float(), corner, atol=1.0, rtol=0)
        assert (images[row, 0].float() - corner).abs().sum(dim=-1).gt(30).float().mean() > 0.02  # the arm and things
    env.close()


@pytest.mark.slow
@needs_vulkan
def test_textures_are_blended_into_the_things_alone_or_into_everything(assets):
    pictures = {}
    for task in ("Main-v3", "VisionTexture05-v1", "VisionWhole05-v1"):
        split = "in" if task == "Main-v3" else "out"
        env = make_batch(config(f"PutOnPlateInScene25{task}", split=split, obs="rgb", image_size=64), 1)
        start(env, [21])
        pictures[task] = env.observe().images[0, 0].int()
        env.close()
    main = pictures["Main-v3"]
    photograph = (main - torch.tensor(colour_of(draw_episode(21, VARIANTS[MAIN], "in").table))).abs().sum(-1) <= 3
    changed = {task: (picture - main).abs().sum(-1) > 3 for task, picture in pictures.items()}
    assert not changed["VisionTexture05-v1"][photograph].any()
    assert changed["VisionTexture05-v1"][~photograph].float().mean() > 0.9
    assert changed["VisionWhole05-v1"].float().mean() > 0.95


@needs_vulkan
def test_a_picture_of_the_published_size_shows_the_photograph_behind_the_arm(assets):
    env = make_batch(config(obs="rgb", rendering="on_demand"), 1)
    start(env, [31])
    images = env.observe().images
    assert images.shape == (1, 1, 480, 640, 3)
    table = draw_episode(31, VARIANTS[MAIN], "in").table
    same = images[0, 0].eq(torch.tensor(colour_of(table), dtype=torch.uint8)).all(dim=-1)
    assert 0.5 < same.float().mean() < 0.97
    assert env.render(torch.tensor([0])).shape == (1, 512, 512, 3)
    env.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contract_holds_in_this_process_and_in_workers(assets):
    envs.check(config(num_envs=2, episode_steps=7, reward="dense"))
