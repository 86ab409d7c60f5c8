"""What the fast mode changes, and what it must not change."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest
import torch

from envs.libero.arm import ExactController, FastController
from envs.libero.batch import LiberoBatch, axis_angle
from envs.libero.config import LiberoConfig
from envs.libero.decimate import TARGET_FACES, TARGET_TEXELS
from envs.libero.factory import make_batch
from tests.envs.libero.conftest import all_rows, assign, everyone


@pytest.fixture(scope="module")
def fast_stove() -> Iterator[LiberoBatch]:
    config = LiberoConfig(id="libero/libero_goal:turn_on_the_stove", mode="fast", image_size=64)
    batch = make_batch(config, 1)
    yield batch
    batch.close()


def test_both_controllers_ask_for_the_same_torques(stove: LiberoBatch) -> None:
    stove.reset(all_rows(stove), assign((0, 0, 0)))
    task, data = stove.task_of(0), stove.data_of(0)
    model = task.scene.model
    exact = ExactController(model, task.controller.arm, stove._simulator)
    fast = FastController(model, task.controller.arm)
    rng = np.random.default_rng(0)
    probe = mujoco.MjData(model)
    for _ in range(50):
        probe.qpos[:] = data.qpos
        probe.qpos[:7] += rng.normal(0, 0.2, 7)
        probe.qvel[:9] = rng.normal(0, 0.5, 9)
        mujoco.mj_step1(model, probe)
        action = rng.uniform(-1.5, 1.5, 7)
        one, other = stove._rows[0].arm.copy(), stove._rows[0].arm.copy()
        exact._torques(probe, one, action)
        fast._torques(probe, other, action)
        np.testing.assert_allclose(other.goal_position, one.goal_position, atol=1e-12)
        # robosuite turns axis-angles into matrices in single precision
        np.testing.assert_allclose(other.goal_rotation, one.goal_rotation, atol=1e-6)
        other.goal_rotation = one.goal_rotation
        wanted = exact._torques(probe, one, None)
        np.testing.assert_allclose(fast._torques(probe, other, None), wanted, rtol=1e-9, atol=1e-9)


def test_without_contact_the_fast_trajectory_stays_with_the_faithful_one(
    stove: LiberoBatch, fast_stove: LiberoBatch
) -> None:
    for batch in (stove, fast_stove):
        batch.reset(all_rows(batch), assign((0, 3, 2)))
        for step in range(20):
            action = torch.tensor([[np.sin(step), 0.5, 0.3, 0.1, 0.0, 0.2, -1.0]], dtype=torch.float32)
            batch.step(action, everyone(batch))
    gap = np.abs(stove.data_of(0).qpos[:9] - fast_stove.data_of(0).qpos[:9]).max()
    assert gap < 1e-6


def test_what_decides_the_physics_is_the_same_in_both_models(stove: LiberoBatch, fast_stove: LiberoBatch) -> None:
    for batch in (stove, fast_stove):
        batch.reset(all_rows(batch), assign((0, 0, 0)))
    one, other = stove.task_of(0).scene.model, fast_stove.task_of(0).scene.model
    names = ("body_mass", "body_inertia", "geom_size", "geom_pos", "geom_friction", "dof_damping", "jnt_range")
    for name in names:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    colliding = (other.geom_contype != 0) | (other.geom_conaffinity != 0)
    for mesh in {m for m in other.geom_dataid[colliding].tolist() if m >= 0}:
        vertices = slice(one.mesh_vertadr[mesh], one.mesh_vertadr[mesh] + one.mesh_vertnum[mesh])
        np.testing.assert_array_equal(one.mesh_vert[vertices], other.mesh_vert[vertices])


def test_meshes_and_textures_shrink_and_pictures_stay_close(stove: LiberoBatch, fast_stove: LiberoBatch) -> None:
    pictures = []
    for batch in (stove, fast_stove):
        batch.reset(all_rows(batch), assign((0, 0, 0)))
        pictures.append(batch.observe().images.float())
    original, simple = stove.task_of(0).scene.model, fast_stove.task_of(0).scene.model
    assert simple.mesh_facenum.sum() < 0.35 * original.mesh_facenum.sum()
    shrunk = simple.mesh_facenum < original.mesh_facenum
    assert shrunk.sum() > 10
    assert simple.mesh_facenum[shrunk].max() <= TARGET_FACES
    assert simple.tex_width.max() < 2 * TARGET_TEXELS < original.tex_width.max() * 2
    difference = (pictures[0] - pictures[1]).abs().mean().item()
    assert 0.1 < difference < 6, "of 255 grey levels; the picture without the scene's objects differs by more"


@pytest.mark.parametrize(
    ("quaternion", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)], [0.0, 0.0, np.pi / 2]),
        ([0.0, 1.0, 0.0, 0.0], [np.pi, 0.0, 0.0]),
        ([-np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0], [0.0, 1.5 * np.pi, 0.0]),
    ],
)
def test_axis_angle_of_known_rotations(quaternion: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(axis_angle(np.array(quaternion)), expected, atol=1e-12)
