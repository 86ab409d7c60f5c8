"""Choosing how to step, refusing what cannot be, and leaving ManiSkill itself as it was."""

import logging
import subprocess
import sys

import pytest
import torch

from embodied.config import parse
from embodied.errors import AssetError, ConfigurationError
from envs.maniskill.config import ManiSkillConfig
from envs.maniskill.experts import CONTROL_MODE, EXPERTS
from envs.maniskill.factory import describe, in_process, make_batch
from envs.maniskill.instructions import instruction
from tests.envs.maniskill.stock_reference import everyone, random_actions, start, stock


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "maniskill/PickCub-v1"}, "Did you mean maniskill/PickCube-v1"),
        ({"control_mode": "pd_ee_delta_pos3"}, "Did you mean 'pd_ee_delta_pos'"),
        ({"robot": "pandaa"}, "Did you mean 'panda'"),
        (
            {"robot": "unitree_g1"},
            "'unitree_g1' .* does not work in PickCube-v1, which is made for: panda, .*failed with ",
        ),
        ({"id": "maniskill/PutOnPlate-v1", "robot": "fetch"}, "made for: panda, panda_wristcam"),
        ({"id": "maniskill/PlugCharger-v1", "reward": "dense"}, "Valid rewards: sparse"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_valid_one(options, words):
    with pytest.raises(ConfigurationError, match=words):
        make_batch(parse(ManiSkillConfig, {"id": "maniskill/PickCube-v1", **options}), 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_size": 64}, "no effect with obs: state"),
        ({"obs": "rgb", "image_size": 4}, "between 8 and 2048 pixels"),
        ({"obs": "rgb", "image_size": [64, 4096]}, "between 8 and 2048 pixels"),
        ({"obs": "rgb", "image_size": "large"}, "image_size"),
        ({"obs": "rgb", "cameras": []}, "cameras names none"),
        ({"obs": "rgb", "cameras": ["base_camera", "base_camera"]}, "one camera twice"),
        ({"spread": [float("nan"), 1.0]}, "spread"),
        ({"sim_backend": "cuda", "stepping": "single"}, "steps all environments together"),
        ({"obs": "rbg"}, "Did you mean 'rgb'"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_built(options, words):
    with pytest.raises(ConfigurationError, match=words):
        parse(ManiSkillConfig, {"id": "maniskill/PickCube-v1", **options})


@pytest.mark.parametrize(
    "task",
    [
        "AnymalC-Reach-v1",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("PickSingleYCB-v1", "OpenCabinetDoor-v1")),
    ],
)
def test_missing_assets_are_an_error_and_never_a_question(task, tmp_path, monkeypatch):
    code = (
        "from envs.maniskill.config import ManiSkillConfig\nfrom envs.maniskill.factory import make_batch\n"
        f"make_batch(ManiSkillConfig(id='maniskill/{task}'), 2)"
    )
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert AssetError.__name__ in done.stderr
    assert "download_asset" in done.stderr
    assert done.stdout == ""


def test_task_that_cannot_be_batched_is_stepped_singly_and_the_log_says_why(caplog):
    with caplog.at_level(logging.WARNING, logger="envs.maniskill"):
        env = make_batch(ManiSkillConfig(id="maniskill/RotateValveLevel0-v1"), 2)
    assert type(env).__name__ == "StockManiSkill"
    assert "one after the other, because its code does not support a partial reset" in caplog.text
    start(env, [0, 1])
    step = env.step(random_actions(env, 1)[0], everyone(env))
    assert torch.isfinite(step.reward).all()
    env.close()


def test_task_with_drawn_geometry_is_rebuilt_in_every_episode_unless_batching_is_asked_for(caplog):
    config = ManiSkillConfig(id="maniskill/PegInsertionSide-v1")
    env = make_batch(config, 1)
    assert type(env).__name__ == "StockManiSkill"
    assert "geometry of its own" in caplog.text
    peg_size = slice(32, 35)
    sizes = []
    for seed in (1, 2, 1):
        start(env, [seed])
        sizes.append(env.observe().state[0, peg_size])
    assert torch.equal(sizes[0], sizes[2])
    assert not torch.equal(sizes[0], sizes[1])
    env.close()
    batched = make_batch(ManiSkillConfig(id="maniskill/PegInsertionSide-v1", stepping="batched"), 2)
    start(batched, [1, 2])
    shown = batched.observe().state[:, peg_size]
    assert torch.equal(shown[0], shown[1])
    assert "all episodes share the one geometry" in caplog.text
    batched.close()


def test_single_and_batched_stepping_agree():
    envs = [make_batch(ManiSkillConfig(id="maniskill/PushCube-v1", stepping=s), 2) for s in ("single", "batched")]
    assert envs[0].spec == envs[1].spec
    for env in envs:
        start(env, [3, 4])
    for action in random_actions(envs[0], 5):
        single, batched = (env.step(action, everyone(env)) for env in envs)
        torch.testing.assert_close(single.reward, batched.reward, atol=1e-6, rtol=0)
    torch.testing.assert_close(envs[0].observe().state, envs[1].observe().state, atol=1e-5, rtol=0)
    for env in envs:
        env.close()
        env.close()


def test_description_names_what_the_environment_is():
    spec = describe(ManiSkillConfig(id="maniskill/PickCube-v1", control_mode=CONTROL_MODE))
    assert spec.action.dim == 7
    assert spec.action.low == (-1.0,) * 7
    assert (spec.state_dim, spec.privileged_dim, spec.cameras) == (42, 0, ())
    assert (spec.episode_steps, spec.control_hz, spec.has_success, spec.exact_reset) == (50, 20.0, True, True)
    assert spec.instructions == ("pick up the red cube and hold it at the green goal",)
    assert spec.versions["mani_skill"] == "3.0.1"


def test_time_limits_are_left_to_the_stepper():
    env = make_batch(ManiSkillConfig(id="maniskill/PushCube-v1"), 1)
    start(env, [0])
    for _ in range(env.spec.episode_steps + 5):
        step = env.step(torch.zeros(1, env.spec.action.dim), everyone(env))
    assert not step.truncated.any()
    assert not step.terminated.any()
    env.close()


def test_task_without_a_reward_pays_its_success():
    env = make_batch(ManiSkillConfig(id="maniskill/Empty-v1", reward="sparse"), 2)
    start(env, [0, 1])
    assert env.step(random_actions(env, 1)[0], everyone(env)).reward.tolist() == [0.0, 0.0]
    env.close()


def test_stock_environments_work_unchanged_beside_ours():
    """Nothing that construction changes may stay: materials, builders and scenes are ManiSkill's own afterwards."""
    import mani_skill.envs.sapien_env as stock_module
    import sapien.render
    from mani_skill.utils.building.actor_builder import ActorBuilder

    def fingerprint():
        return (
            sapien.render.RenderMaterial,
            sapien.render.RenderShapeBox,
            ActorBuilder.add_plane_repeated_visual,
            ActorBuilder.add_box_visual,
            vars(stock_module.BaseEnv)["_setup_scene"],
            vars(stock_module.BaseEnv)["step"],
            stock_module.CPU_SIM_BACKENDS,
            sys.stdin,
        )

    before = fingerprint()
    with stock("PushCube-v1") as reference:
        reference.reset(seed=0)
        rewards = [float(reference.step(torch.zeros(8))[1]) for _ in range(3)]
    ours = make_batch(ManiSkillConfig(id="maniskill/PushCube-v1"), 2)
    start(ours, [0, 1])
    ours.step(torch.zeros(2, 8), everyone(ours))
    with stock("PushCube-v1") as reference:
        reference.reset(seed=0)
        assert [float(reference.step(torch.zeros(8))[1]) for _ in range(3)] == rewards
    ours.step(torch.zeros(2, 8), everyone(ours))
    ours.close()
    assert fingerprint() == before


def test_importing_the_configuration_does_not_import_the_simulator():
    code = (
        "import sys, envs.maniskill.config, envs.maniskill.factory as f\n"
        "f.in_process(envs.maniskill.config.ManiSkillConfig(id='maniskill/PickCube-v1'))\n"
        "print([m for m in ('sapien', 'mani_skill') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none_and_auto_takes_the_cpu():
    with pytest.raises(ConfigurationError, match="no CUDA device"):
        make_batch(ManiSkillConfig(id="maniskill/PickCube-v1", sim_backend="cuda"), 2)
    assert not in_process(ManiSkillConfig(id="maniskill/PickCube-v1"))


@pytest.mark.parametrize("task", list(EXPERTS))
def test_scripted_expert_solves_its_task(task):
    env = make_batch(ManiSkillConfig(id=f"maniskill/{task}", control_mode=CONTROL_MODE), 24)
    start(env, list(range(100, 124)))
    solved = torch.zeros(24, dtype=torch.bool)
    for _ in range(env.spec.episode_steps):
        solved |= env.step(EXPERTS[task](env.observe().state), everyone(env)).success
    assert solved.float().mean() >= 0.95
    env.close()


def test_instruction_of_an_unknown_task_is_made_of_its_id():
    assert instruction("PullCubeTool-v1") == "use the tool to pull the cube within reach"
    assert instruction("WipeTheTable-v2") == "wipe the table"
    assert instruction("MS-AntRun-v1") == "ant run"


@pytest.mark.parametrize("task", ["PickCube-v1", "StackCube-v1", "PutOnPlate-v1"])
def test_scripted_expert_finds_back_when_it_is_pushed_about(task):
    """Two centimetres of noise a step; measured in benchmarks/results/scripted_experts.md."""
    env = make_batch(ManiSkillConfig(id=f"maniskill/{task}", control_mode=CONTROL_MODE), 32)
    start(env, list(range(32)))
    generator, solved = torch.Generator().manual_seed(0), torch.zeros(32, dtype=torch.bool)
    for _ in range(env.spec.episode_steps):
        action = EXPERTS[task](env.observe().state)
        action[:, :3] += 0.2 * torch.randn(32, 3, generator=generator)
        solved |= env.step(action.clamp(-1, 1), ~solved).success
    assert solved.float().mean() >= 0.6
    env.close()
