"""The faithful mode against the stock simulator, which it must equal in every bit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from envs.libero.batch import LiberoBatch
from envs.libero.config import LiberoConfig
from envs.libero.experts import Expert
from envs.libero.factory import make_batch
from envs.libero.simulator import load, quiet
from envs.libero.spec import chosen_tasks
from envs.libero.suites import TaskFiles, load_initial_states
from tests.envs.libero.conftest import all_rows, assign, everyone

NO_OP = [0.0] * 6 + [-1.0]


def _stock(files: TaskFiles, cameras: bool) -> Any:
    with quiet():
        from libero.libero.envs.env_wrapper import ControlEnv

        return ControlEnv(
            bddl_file_name=str(files.bddl),
            use_camera_obs=cameras,
            has_offscreen_renderer=cameras,
            camera_heights=64,
            camera_widths=64,
        )


def _start(stock: Any, seed: int, state: np.ndarray, settling: int = 10) -> dict[str, np.ndarray]:
    with quiet():
        stock.seed(seed)
        stock.reset()
        observation = stock.set_init_state(state)
        for _ in range(settling):
            observation = stock.step(NO_OP)[0]
    return observation


def _state(observation: dict[str, np.ndarray]) -> np.ndarray:
    from robosuite.utils.transform_utils import quat2axisangle

    parts = ("robot0_eef_pos", "robot0_gripper_qpos")
    position, fingers = (observation[name] for name in parts)
    turn = quat2axisangle(observation["robot0_eef_quat"].copy())
    return np.concatenate([position, turn, fingers]).astype(np.float32)


def _pictures(observation: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack([observation[f"{name}_image"][::-1, ::-1] for name in ("agentview", "robot0_eye_in_hand")])


@pytest.fixture(scope="module")
def single() -> Iterator[LiberoBatch]:
    batch = make_batch(LiberoConfig(id="libero/libero_spatial", cameras=()), 1)
    yield batch
    batch.close()


def test_a_whole_episode_with_contacts_has_the_stock_simulators_bits(single: LiberoBatch) -> None:
    single.reset(all_rows(single), assign((2, 7, 123)))
    stock = _stock(single.task_of(0).files, cameras=False)
    observation = _start(stock, 123, single.task_of(0).initial_states[7])
    expert = Expert(single, 0)
    done = False
    for step in range(220):
        np.testing.assert_array_equal(single.data_of(0).qpos, stock.sim.data.qpos, err_msg=f"step {step}")
        np.testing.assert_array_equal(single.observe().state[0].numpy(), _state(observation), err_msg=f"step {step}")
        if done:
            break
        action = expert.act()
        if step < 20:
            action[3:6] = np.array([0.2, -0.3, 0.4]) * (-1) ** step  # the wrist turns, and turns back
        result = single.step(torch.from_numpy(action)[None], everyone(single))
        observation, reward, done, _ = stock.step(action)
        assert bool(result.success[0]) == bool(result.terminated[0]) == done
        assert float(result.reward[0]) == reward
    assert done, "the scripted policy must reach the goal, or contacts were not tried"
    stock.close()


def test_a_reset_without_a_stored_state_draws_what_the_stock_simulator_draws(single: LiberoBatch) -> None:
    single.reset(all_rows(single), assign((4, -1, 11)))  # the task that also draws how far its drawer is open
    stock = _stock(single.task_of(0).files, cameras=False)
    with quiet():
        stock.seed(11)
        stock.reset()
        for _ in range(10):
            observation = stock.step(NO_OP)[0]
    np.testing.assert_array_equal(single.data_of(0).qpos, stock.sim.data.qpos)
    np.testing.assert_array_equal(single.observe().state[0].numpy(), _state(observation))
    ids = single.task_of(0).fixture_ids
    np.testing.assert_array_equal(single.data_of(0).xpos[ids], stock.sim.data.body_xpos[ids])
    stock.close()


def test_pictures_are_the_stock_simulators_turned_by_180_degrees_with_the_burner_lit() -> None:
    """The stock simulator comes first and alone: it frees its graphics memory under whatever GL context is current."""
    config = LiberoConfig(id="libero/libero_goal:turn_on_the_stove", image_size=64)
    files = chosen_tasks(config)[0]
    states = load_initial_states(files)[:2]
    action = np.array([0.3, -0.2, -0.5, 0.1, 0.0, 0.2, 1.0], dtype=np.float32)
    load(None)
    stock = _stock(files, cameras=True)
    knob = stock.sim.model.get_joint_qpos_addr(stock.env.get_object("flat_stove_1").joints[0])
    states[1, 1 + knob] = 1.5
    expected = []
    for state in states:
        expected.append(_pictures(_start(stock, 5, state)))
        expected.append(_pictures(stock.step(action)[0]))
    stock.close()
    del stock
    gc.collect()

    batch = make_batch(config, 1)
    batch.reset(all_rows(batch), assign((0, 0, 6)))
    batch.task_of(0).initial_states[:2] = states
    shown = []
    for index in range(2):
        batch.reset(all_rows(batch), assign((0, index, 5)))
        shown.append(batch.observe().images[0].numpy())
        batch.step(torch.from_numpy(action)[None], everyone(batch))
        shown.append(batch.observe().images[0].numpy())
    batch.close()
    np.testing.assert_array_equal(np.stack(shown), np.stack(expected))
    assert np.abs(shown[0].astype(int) - shown[2]).max() > 50, "the flame must be visible for this to test it"
