"""What the adapter contract promises of LIBERO, in both modes."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied.errors import ConfigurationError, SimulatorError
from envs.conformance import check
from envs.libero.batch import LiberoBatch
from envs.libero.config import LiberoConfig
from envs.libero.experts import Expert, can_solve
from envs.libero.factory import make_batch
from envs.libero.suites import SUITES, WHOLE
from tests.envs.libero.conftest import all_rows, assign, everyone


def _actions(steps: int, rows: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (steps, rows, 7)).astype(np.float32)
    actions[..., 2] -= 0.3
    return torch.from_numpy(actions)


def _trace(batch: LiberoBatch, row: int, actions: torch.Tensor) -> np.ndarray:
    """Joint positions of one environment over a run of [T, n, A] actions."""
    positions = []
    for action in actions:
        batch.step(action, everyone(batch))
        positions.append(batch.data_of(row).qpos.copy())
    return np.stack(positions)


def test_a_reset_forgets_the_past_to_the_bit(pair: LiberoBatch) -> None:
    actions = _actions(15, 2)
    pair.reset(all_rows(pair), assign((1, 4, 9), (1, 4, 9)))
    first = _trace(pair, 0, actions)
    pair.reset(all_rows(pair), assign((0, 2, 1), (3, 5, 2)))
    _trace(pair, 0, _actions(10, 2, seed=1))
    pair._starts.clear()  # so that the second start is settled anew and not copied
    pair.reset(all_rows(pair), assign((1, 4, 9), (1, 4, 9)))
    np.testing.assert_array_equal(_trace(pair, 0, actions), first)


def test_a_remembered_start_continues_as_one_that_was_settled(pair: LiberoBatch) -> None:
    actions = _actions(8, 2)
    traces = []
    for clear in (True, False):
        if clear:
            pair._starts.clear()
        pair.reset(all_rows(pair), assign((2, 3, 4), (2, 6, 8)))
        shown = pair.observe().privileged.clone()
        traces.append((shown, _trace(pair, 1, actions)))
    np.testing.assert_array_equal(traces[0][0], traces[1][0])
    np.testing.assert_array_equal(traces[0][1], traces[1][1])


def test_environments_do_not_disturb_each_other(pair: LiberoBatch) -> None:
    """Neighbours with other fixture poses on the same compiled scene, one of them reset in between."""
    actions = _actions(12, 2)
    pair.reset(all_rows(pair), assign((0, 1, 3), (0, 1, 3)))
    alone = _trace(pair, 0, actions)
    pair.reset(all_rows(pair), assign((0, 1, 3), (7, 9, 77)))
    first = _trace(pair, 0, actions[:6])
    before = pair.observe(torch.tensor([0]))
    pair.reset(torch.tensor([1]), assign((9, 2, 5)))
    after = pair.observe(torch.tensor([0]))
    np.testing.assert_array_equal(before.privileged, after.privileged)
    np.testing.assert_array_equal(np.concatenate([first, _trace(pair, 0, actions[6:])]), alone)


def test_the_seed_places_the_fixtures_and_the_index_the_objects(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 1, 3), (0, 1, 4)))
    one, other = pair.observe().privileged
    fixtures = slice(pair.spec.privileged_dim - 28, None)
    moved = (one[fixtures] - other[fixtures]).abs().max().item()
    assert 1e-4 < moved < 0.1
    pair.reset(all_rows(pair), assign((0, 1, 3), (0, 2, 3)))
    one, other = pair.observe().privileged
    assert torch.equal(one[fixtures], other[fixtures])
    assert (one[9:30] - other[9:30]).abs().max() > 1e-4


def test_inactive_rows_stand_still(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (1, 0, 0)))
    before = pair.data_of(1).qpos.copy()
    pair.step(_actions(1, 2)[0], torch.tensor([True, False]))
    np.testing.assert_array_equal(pair.data_of(1).qpos, before)


def test_tasks_switch_in_place_and_keep_one_compiled_scene(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((2, 0, 0), (8, 0, 0)))
    assert pair.task_of(0) is not pair.task_of(1)
    assert pair.task_of(0).scene is pair.task_of(1).scene
    observation = pair.observe()
    assert observation.instruction[0] != observation.instruction[1]
    assert observation.instruction == [pair.spec.instructions[2], pair.spec.instructions[8]]


def test_the_gripper_opens_for_minus_one_and_closes_for_plus_one(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (0, 0, 0)))
    actions = torch.zeros(2, 7)
    actions[0, 6], actions[1, 6] = -1.0, 1.0
    for _ in range(8):
        pair.step(actions, everyone(pair))
    opened, closed = pair.observe().state[:, 6:]
    assert opened[0] > 0.035
    assert closed[0] < 0.02


@pytest.mark.parametrize("assigned", [(10, 0, 0), (0, 50, 0), (0, -2, 0)])
def test_assignments_that_do_not_exist_are_refused(pair: LiberoBatch, assigned: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigurationError, match="0 to"):
        pair.reset(torch.tensor([0]), assign(assigned))


def test_placement_that_never_succeeds_ends_with_the_cause(pair: LiberoBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (0, 0, 0)))
    task = pair.task_of(0)
    cause = task._simulator.RandomizationError("no room")

    def fail() -> None:
        raise cause

    monkeypatch.setattr(task._env.placement_initializer, "sample", fail)
    with pytest.raises(SimulatorError, match="in 100 tries") as raised:
        task.draw(987654)
    assert raised.value.__cause__ is cause


def test_unstable_physics_ends_the_episode_as_truncated(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (1, 0, 0)))
    pair.data_of(0).qvel[:] = 1e12
    result = pair.step(torch.zeros(2, 7), everyone(pair))
    assert result.truncated.tolist() == [True, False]
    assert not result.success.any()
    pair.reset(torch.tensor([0]), assign((0, 0, 0)))
    assert not pair.step(torch.zeros(2, 7), everyone(pair)).truncated.any()


def test_the_scripted_policy_solves_tasks_in_either_mode(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (3, 25, 1)))
    experts = [Expert(pair, row) for row in range(2)]
    solved = torch.zeros(2, dtype=torch.bool)
    for _ in range(150):
        actions = torch.from_numpy(np.stack([expert.act() for expert in experts]))
        solved |= pair.step(actions, ~solved).success
    assert solved.all()


def test_the_script_keeps_no_memory_and_takes_a_lost_object_anew(pair: LiberoBatch) -> None:
    pair.reset(all_rows(pair), assign((0, 0, 0), (3, 25, 1)))
    task, data, row = pair.task_of(0), pair.data_of(0), torch.tensor([True, False])
    bowl = task.objects[task.goal[0][1]]
    table, dropped = data.xpos[bowl][2], 0
    first = Expert(pair, 0)
    for _ in range(220):
        action = first.act()
        np.testing.assert_array_equal(Expert(pair, 0).act(), action)  # one that was made this moment says the same
        if (dropped < 10 and data.xpos[bowl][2] > table + 0.05) or 0 < dropped < 10:
            action[6] = -1.0  # the fingers open, and the bowl falls
            dropped += 1
        result = pair.step(torch.from_numpy(np.stack([action, np.zeros(7, np.float32)])), row)
        if result.success[0]:
            break
    assert dropped == 10
    assert result.success[0]


def test_a_task_without_a_script_is_refused(stove: LiberoBatch) -> None:
    stove.reset(all_rows(stove), assign((0, 0, 0)))
    assert not can_solve(stove.task_of(0))
    with pytest.raises(ConfigurationError, match="no scripted policy"):
        Expert(stove, 0)


def test_observations_are_fresh_and_render_shows_people_an_upright_picture(stove: LiberoBatch) -> None:
    stove.reset(all_rows(stove), assign((0, 3, 0)))
    first = stove.observe()
    kept = first.images.clone()
    stove.step(torch.tensor([[1.0, 0, 0, 0, 0, 0, 1]]), everyone(stove))
    second = stove.observe()
    assert torch.equal(first.images, kept)
    assert not torch.equal(second.images, kept)
    picture = stove.render(torch.tensor([0]))
    assert picture.shape == (1, 256, 256, 3)
    # the policy's picture of the same camera is this one mirrored: compare them at the policy's size
    small = picture[0].reshape(64, 4, 64, 4, 3).float().mean(dim=(1, 3)).flip(1)
    assert (small - second.images[0, 0].float()).abs().mean() < 6


@pytest.mark.slow
def test_nothing_is_asked_and_nothing_is_said_on_stderr() -> None:
    """From import to exit, with pictures, in a process of its own whose stdin is closed."""
    program = (
        "import torch\n"
        "from envs.api import Assignments\n"
        "from envs.libero.config import LiberoConfig\n"
        "from envs.libero.factory import make_batch\n"
        "b = make_batch(LiberoConfig(id='libero/libero_goal:0', mode='fast', image_size=32), 1)\n"
        "b.reset(torch.tensor([0]), Assignments.unstack(torch.tensor([[0, 0, 0]])))\n"
        "print(tuple(b.observe().images.shape))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "(1, 2, 32, 32, 3)"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["faithful", "fast"])
def test_the_conformance_suite_passes_here_and_in_worker_processes(mode: str) -> None:
    config = LiberoConfig(id="libero/libero_goal", mode=mode, num_envs=4, slots=2, processes=2, image_size=32)
    check(dataclasses.replace(config, episode_steps=8))


@pytest.mark.slow
def test_assets_may_lie_in_another_folder(tmp_path: Path) -> None:
    """A process of its own: LIBERO binds its asset folder when it is imported."""
    paths = importlib.import_module("libero.libero").get_default_path_dict()
    for name, key in (("bddl_files", "bddl_files"), ("init_files", "init_states"), ("assets", "assets")):
        (tmp_path / name).symlink_to(Path(paths[key]).resolve())
    program = (
        "import torch\n"
        "from envs.api import Assignments\n"
        "from envs.libero.config import LiberoConfig\n"
        "from envs.libero.factory import make_batch\n"
        f"b = make_batch(LiberoConfig(id='libero/libero_goal:0', cameras=(), assets={str(tmp_path)!r}), 1)\n"
        "b.reset(torch.tensor([0]), Assignments.unstack(torch.tensor([[0, 0, 0]])))\n"
        "print(b.task_of(0)._env._arena_xml)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(str(tmp_path))


@pytest.mark.slow
def test_memory_does_not_grow_with_resets_and_pictures() -> None:
    batch = make_batch(LiberoConfig(id="libero/libero_goal", mode="fast", image_size=48), 2)
    sizes = []
    for index in range(600):
        batch.reset(all_rows(batch), assign((index % 10, index % 7, index % 11), (0, index % 5, 1)))
        batch.observe()
        if index in (200, 599):
            status = Path("/proc/self/statm").read_text()
            sizes.append(int(status.split()[1]) * 4096 / 2**20)
    batch.close()
    assert sizes[1] - sizes[0] < 40


@pytest.mark.slow
@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite != WHOLE])
def test_every_task_builds_settles_and_waits_to_be_solved(suite: str) -> None:
    batch = make_batch(LiberoConfig(id=f"libero/{suite}", cameras=()), 1)
    for task in range(batch.spec.tasks):
        batch.reset(all_rows(batch), assign((task, 0, 5)))
        result = batch.step(torch.zeros(1, 7), everyone(batch))
        name = batch.task_of(0).files.name
        assert not result.success.any(), name
        assert not result.truncated.any(), name
    batch.close()


def test_of_all_suites_together_each_task_is_cut_at_its_own_limit() -> None:
    batch = make_batch(LiberoConfig(id="libero/libero_130", mode="fast", cameras=()), 1)
    batch.reset(all_rows(batch), assign((20, 0, 0)))  # of libero_goal, whose limit is 300
    for row in batch._rows:
        row.steps = 298
    action = torch.tensor([[0.0, 0, 0, 0, 0, 0, -1]])
    cuts = [batch.step(action, everyone(batch)).truncated.item() for _ in range(2)]
    assert cuts == [False, True]
    batch.close()
