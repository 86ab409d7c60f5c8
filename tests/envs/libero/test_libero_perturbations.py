"""Perturbations: seeded, of the asked severity, and without consequences for what they do not concern."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied.config import parse
from embodied.errors import ConfigurationError
from envs.libero.batch import LiberoBatch
from envs.libero.config import LiberoConfig
from envs.libero.factory import make_batch
from envs.libero.magnitudes import KINDS, LEVELS, MAX_SEVERITY
from envs.libero.paraphrase import paraphrases
from envs.libero.spec import describe_tasks
from tests.envs.libero.conftest import all_rows, assign, everyone

SIZE = 48


def _make(**perturb: int) -> LiberoBatch:
    config = LiberoConfig(id="libero/libero_goal:8", mode="fast", image_size=SIZE, perturb=perturb)
    return make_batch(config, 2)


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    """Pictures [2, V, H, W, 3] of initial state 0 with seeds 1 and 2."""
    batch = _make()
    batch.reset(all_rows(batch), assign((0, 0, 1), (0, 0, 2)))
    images = batch.observe().images
    batch.close()
    return images


@pytest.mark.slow
def test_an_episode_is_perturbed_alike_after_its_scene_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.libero.scene._KEPT_IDLE", 0)
    batch = make_batch(LiberoConfig(id="libero/libero_10", cameras=(), perturb={"camera": 4}), 1)
    drawn = []
    for task in (0, 5, 0):
        batch.reset(all_rows(batch), assign((task, 0, 1)))
        model, world = batch.task_of(0).scene.model, batch._rows[0].world
        usual = model.cam_pos.copy()
        with world.applied():  # as when pictures are drawn
            drawn.append(model.cam_pos.copy())
        assert np.abs(drawn[-1] - usual).max() > 0.01
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert len(batch._starts) == len(batch._tasks) == 1, "what is remembered keeps no dropped scene alive"
    batch.close()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one.float() - other.float()).abs().mean().item()


@pytest.mark.parametrize(
    "kind",
    ["camera", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("light", "texture", "noise", "distractors"))],
)
def test_pictures_change_by_the_seed_and_physics_does_not(kind: str, plain: torch.Tensor) -> None:
    batch = _make(**{kind: 4})
    bare = _make()
    for each in (batch, bare):
        each.reset(all_rows(each), assign((0, 0, 1), (0, 0, 2)))
    seen = batch.observe()
    assert _difference(seen.images[0, 0], plain[0, 0]) > 0.3
    assert _difference(seen.images[1, 0], plain[1, 0]) > 0.3
    assert torch.equal(batch.observe().images, seen.images), "looking twice shows the same"
    action = torch.tensor([[0.5, 0.2, -1, 0, 0, 0, 1.0]]).repeat(2, 1)
    for _ in range(5):
        batch.step(action, everyone(batch))
        bare.step(action, everyone(bare))
    np.testing.assert_array_equal(batch.data_of(0).qpos, bare.data_of(0).qpos)
    if kind == "noise":
        assert not torch.equal(batch.observe().images, seen.images), "the noise is not frozen"
    batch.reset(all_rows(batch), assign((0, 0, 2), (0, 0, 1)))
    assert torch.equal(batch.observe().images, seen.images.flip(0)), "the seed decides, not the environment"
    batch.close()
    bare.close()


def test_the_camera_moves_by_what_its_severity_says() -> None:
    for severity in (1, MAX_SEVERITY):
        batch = _make(camera=severity)
        batch.reset(all_rows(batch), assign((0, 0, 1), (0, 0, 2)))
        model = batch.task_of(0).scene.model
        camera = model.camera("agentview").id
        before = model.cam_pos[camera].copy()
        with batch._rows[0].world.applied():
            moved = np.linalg.norm(model.cam_pos[camera] - before)
        assert moved == pytest.approx(LEVELS["camera"][severity - 1])
        np.testing.assert_array_equal(model.cam_pos[camera], before)
        batch.close()


def test_the_robot_starts_elsewhere_and_stays_there_while_settling() -> None:
    batch, bare = _make(robot_start=3), _make()
    for each in (batch, bare):
        each.reset(all_rows(each), assign((0, 0, 1), (0, 0, 2)))
    offsets = [batch.data_of(row).qpos[:7] - bare.data_of(row).qpos[:7] for row in range(2)]
    for row, offset in enumerate(offsets):
        drawn = batch._rows[row].world.joint_offset
        assert np.abs(offset - drawn).max() < 0.06
        assert np.abs(offset).max() > 0.02
    assert np.abs(offsets[0] - offsets[1]).max() > 0.02
    batch.close()
    bare.close()


def test_everything_on_the_table_is_moved_together() -> None:
    batch, bare = _make(layout=3), _make()
    starts = ((0, 0, 1), (0, -1, 2))
    for each in (batch, bare):
        each.reset(all_rows(each), assign(*starts))
    for row in range(2):
        task, moved, plain = batch.task_of(row), batch.data_of(row).xpos.copy(), bare.data_of(row).xpos.copy()
        bodies = [*task.objects.values(), *task.fixtures.values()]
        shifts = (moved - plain)[bodies]
        assert np.abs(shifts - shifts[0]).max() < 2e-3  # settling is not equal to the bit elsewhere
        assert 0.005 < np.abs(shifts[0][:2]).max() <= LEVELS["layout"][2] + 2e-3
        assert abs(shifts[0][2]) < 2e-3
        assert np.abs(batch.data_of(row).qpos[:7] - bare.data_of(row).qpos[:7]).max() < 1e-3, "the arm stays"
    batch.close()
    bare.close()


def test_instructions_are_reworded_and_listed_in_the_spec() -> None:
    config = LiberoConfig(id="libero/libero_goal", perturb={"instruction": 5})
    spec = describe_tasks(config)
    assert len(spec.instructions) == 50
    batch = make_batch(LiberoConfig(id="libero/libero_goal:8", cameras=(), perturb={"instruction": 5}), 2)
    said = set()
    for seed in range(12):
        batch.reset(all_rows(batch), assign((0, 0, seed), (0, 0, seed)))
        observation = batch.observe()
        assert observation.instruction[0] == observation.instruction[1]
        assert [batch.spec.instructions[i] for i in observation.instruction_ids] == observation.instruction
        said.add(observation.instruction[0])
    assert said <= set(paraphrases("put the bowl on the plate", 5))
    assert len(said) >= 3
    batch.close()


def test_rewordings_differ_from_each_other_and_keep_the_things_named() -> None:
    texts = paraphrases("put the bowl on the plate", MAX_SEVERITY)
    assert len({*texts, "put the bowl on the plate"}) == MAX_SEVERITY + 1
    assert all("bowl" in text and "plate" in text for text in texts)
    assert paraphrases("put the bowl on the plate", 1) == texts[:1]


def test_every_kind_has_five_growing_levels() -> None:
    for kind in set(KINDS) - {"instruction"}:
        assert len(LEVELS[kind]) == MAX_SEVERITY
        assert list(LEVELS[kind]) == sorted(set(LEVELS[kind]))


@pytest.mark.parametrize(
    ("perturb", "said"), [({"camra": 1}, "Did you mean 'camera'"), ({"light": 6}, "between 1 and 5")]
)
def test_unknown_perturbations_are_refused(perturb: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(LiberoConfig, {"id": "libero/libero_goal", "perturb": perturb})
