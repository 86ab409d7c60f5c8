"""The put-on-plate family: what a seed and a split mean, and that the task is sound and can be done."""

import dataclasses
import functools
import math

import pytest
import torch

import envs
from embodied.errors import AssetError, ConfigurationError
from envs.api import Assignments
from envs.maniskill.batched import BatchedManiSkill
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.experts import EXPERTS, STRAIGHT, without_turns
from envs.maniskill.factory import make_batch
from envs.maniskill.put_on_plate.draw import draw_episode
from envs.maniskill.put_on_plate.looks import table_image
from envs.maniskill.put_on_plate.things import SPLITS, contents
from envs.registry import make
from tests.envs.maniskill.stock_reference import can_render

needs_vulkan = pytest.mark.skipif(not can_render(), reason="no Vulkan device (see `embodied doctor`)")

SEEDS = range(400)
IN = contents("in")


def config(**options) -> ManiSkillConfig:
    return ManiSkillConfig(id="maniskill/PutOnPlate-v1", control_mode="pd_ee_delta_pose", **options)


def play(env, seeds, expert) -> torch.Tensor:
    """bool [n]: which environments the expert brings to success within the time limit."""
    n = env.num_envs
    env.reset(torch.arange(n), Assignments.from_seeds(seeds))
    done = torch.zeros(n, dtype=torch.bool)
    for _ in range(env.spec.episode_steps):
        observation = env.observe()
        full = observation.state if observation.privileged is None else observation.privileged
        done |= env.step(expert(full), ~done).success
        if done.all():
            break
    return done


# -- what a seed means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "same"),
    [
        ("out_object", ("plate", "plate_colour", "plate_place", "look", "tint", "distractor")),
        ("out_plate", ("target", "look", "tint", "distractor")),
        ("out_layout", ("plate", "plate_colour", "instruction", "look", "tint", "distractor")),
        ("out_texture", ("target", "plate", "plate_colour", "plate_place", "instruction", "tint", "distractor")),
        ("out_instruction", ("target", "plate", "plate_colour", "plate_place", "look", "tint", "distractor")),
        ("out_distractor", ("target", "plate", "plate_colour", "plate_place", "instruction", "look", "tint")),
        ("out_robot_start", tuple(field.name for field in dataclasses.fields(draw_episode(0, IN)))),
    ],
)
def test_a_split_differs_from_training_in_one_respect_alone(split, same):
    apart = 0
    for seed in SEEDS:
        ours, theirs = draw_episode(seed, IN), draw_episode(seed, contents(split))
        if split == "out_object" and ours.target.place != theirs.target.place:
            apart += 1  # a larger or smaller object may need another place
            continue
        for name in same:
            if split == "out_plate" and name == "target":
                assert (ours.target.shape, ours.target.colour) == (theirs.target.shape, theirs.target.colour)
            else:
                assert getattr(ours, name) == getattr(theirs, name), (seed, name)
    assert apart < 0.2 * len(SEEDS)


def test_what_is_held_out_does_not_occur_in_training():
    seen = IN
    for split, names in {
        "out_object": ("shapes", "colours"),
        "out_plate": ("plates",),
        "out_texture": ("looks",),
        "out_instruction": ("phrases",),
    }.items():
        for name in names:
            assert not set(getattr(seen, name)) & set(getattr(contents(split), name))
    assert not set(seen.instructions()) & set(contents("out_instruction").instructions())


def test_a_wide_layout_lies_outside_the_trained_one_and_everything_has_room():
    for split in SPLITS:
        stock = contents(split)
        for seed in SEEDS:
            episode = draw_episode(seed, stock)
            thing, plate = episode.target.place, episode.plate_place
            gap = math.dist((thing.x, thing.y), (plate.x, plate.y))
            assert gap >= stock.shapes[episode.target.shape].outline + stock.plates[episode.plate].outline
            trained = -0.09 <= thing.x <= 0.05 and -0.16 <= thing.y <= -0.03
            assert trained is not stock.wide_layout
            if episode.distractor is not None:
                assert episode.distractor.shape != episode.target.shape
                assert episode.distractor.colour != episode.target.colour


def test_instructions_name_the_object_and_the_plate():
    for split in SPLITS:
        stock = contents(split)
        texts = stock.instructions()
        assert len(set(texts)) == len(texts)
        for seed in SEEDS:
            episode = draw_episode(seed, stock)
            text = texts[episode.instruction]
            shape, colour = stock.shapes[episode.target.shape].name, stock.colours[episode.target.colour]
            assert f"{colour} {shape}" in text
            assert stock.plates[episode.plate].name in text


def test_every_shape_colour_plate_look_and_phrase_occurs():
    for split in SPLITS:
        stock = contents(split)
        drawn = [draw_episode(seed, stock) for seed in SEEDS]
        assert {e.target.shape for e in drawn} == set(range(len(stock.shapes)))
        assert {e.target.colour for e in drawn} == set(range(len(stock.colours)))
        assert {e.plate for e in drawn} == set(range(len(stock.plates)))
        assert {e.look for e in drawn} == set(range(len(stock.looks)))
        for look in stock.looks:
            assert table_image(look).shape == (512, 512, 4)


def test_other_tasks_have_no_splits_and_unknown_splits_are_refused():
    with pytest.raises(ConfigurationError, match="has no split 'out_object'"):
        make_batch(ManiSkillConfig(id="maniskill/PickCube-v1", split="out_object"), 1)
    with pytest.raises(ConfigurationError, match="out_object"):
        envs.make("maniskill/PutOnPlate-v1", split="out_objects")


def test_rl4vlas_tasks_without_their_assets_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.setenv("EMBODIED_ASSETS", str(tmp_path))
    with pytest.raises(AssetError, match=r"(?s)embodied assets fetch maniskill-widowx250s.*rl4vla-put-on-plate"):
        make_batch(ManiSkillConfig(id="maniskill/PutOnPlateInScene25Main-v3"), 1)


# -- the task --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four():
    env = make_batch(config(reward="dense"), 4)
    yield env
    env.close()


def test_it_is_stepped_as_a_batch_and_the_expert_does_it(four):
    assert isinstance(four, BatchedManiSkill)
    assert four.spec.state_dim == 48
    assert play(four, range(4), EXPERTS["PutOnPlate-v1"]).all()


def test_each_environment_is_told_of_its_own_object_and_shows_its_pose(four):
    four.reset(torch.arange(4), Assignments.from_seeds([11, 12, 13, 14]))
    observation = four.observe()
    for row, seed in enumerate([11, 12, 13, 14]):
        episode = draw_episode(seed, IN)
        assert observation.instruction[row] == IN.instructions()[episode.instruction]
        rest = IN.shapes[episode.target.shape].rest
        place = torch.tensor([episode.target.place.x, episode.target.place.y, rest])
        torch.testing.assert_close(observation.state[row, 26:29], place, atol=1e-5, rtol=0)
        assert observation.state[row, 46] == pytest.approx(rest)
    again = four.observe(torch.tensor([2]))
    assert again.instruction == [observation.instruction[2]]
    four.reset(torch.tensor([1]), Assignments.from_seeds([11]))
    assert four.observe().instruction[1:3] == [observation.instruction[0], observation.instruction[2]]


def test_rewards_rise_along_the_way(four):
    four.reset(torch.arange(4), Assignments.from_seeds(range(4)))
    rewards = []
    for _ in range(26):
        rewards.append(four.step(EXPERTS["PutOnPlate-v1"](four.observe().state), torch.ones(4).bool()).reward)
    table = torch.stack(rewards)
    assert (table >= 0).all()
    assert (table <= 8).all()
    assert (table[0] < 2).all()
    assert (table.max(0).values >= 6).all()


def test_an_object_held_over_the_plate_has_not_been_put_there(four):
    four.reset(torch.arange(4), Assignments.from_seeds(range(4)))
    for _ in range(80):
        action = EXPERTS["PutOnPlate-v1"](four.observe().state)
        held = four.observe().state[:, 25] > 0.5
        action[held, 6] = -1.0  # never lets go
        result = four.step(action, torch.ones(4).bool())
        assert not (result.success & held).any()


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_does_every_split_with_and_without_turning_the_hand(split):
    for mode, expert in (
        ("pd_ee_delta_pose", EXPERTS["PutOnPlate-v1"]),
        ("pd_ee_delta_pos", without_turns(STRAIGHT["PutOnPlate-v1"])),
    ):
        env = make_batch(dataclasses.replace(config(split=split), control_mode=mode), 32)
        assert play(env, range(32), expert).float().mean() >= 0.9, mode
        env.close()


@pytest.mark.slow
def test_the_contract_holds_in_this_process_and_in_workers():
    envs.check(config(num_envs=4, episode_steps=9, reward="smooth"))


@pytest.mark.slow
@needs_vulkan
def test_the_contract_holds_with_pictures():
    options = config(num_envs=2, episode_steps=6, processes=0, obs="rgb", image_size=16, robot_visual="lowpoly")
    envs.check(functools.partial(make, options))


@pytest.mark.slow
@needs_vulkan
def test_pictures_differ_where_the_split_differs():
    pictures = {}
    for split in ("in", "out_texture", "out_object", "out_instruction"):
        env = make_batch(config(split=split, obs="rgb", image_size=64, robot_visual="lowpoly"), 2)
        env.reset(torch.arange(2), Assignments.from_seeds([0, 2]))
        pictures[split] = env.observe().images.int()
        env.close()
    change = {split: (pictures[split] - pictures["in"]).abs().float().mean() for split in pictures}
    assert change["out_instruction"] == 0
    assert change["out_texture"] > 10
    assert 0 < change["out_object"] < 10
    assert (pictures["in"][0] - pictures["in"][1]).abs().float().mean() > 5  # scenes have looks of their own
