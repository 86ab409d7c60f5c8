"""Options, suites and task files, without a simulator."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied.config import parse
from embodied.errors import AssetError, ConfigurationError
from envs.libero.config import LiberoConfig
from envs.libero.spec import describe_tasks
from envs.libero.suites import SUITES, TaskFiles, load_initial_states, task_files


def _config(**options: object) -> LiberoConfig:
    return parse(LiberoConfig, {"id": "libero/libero_spatial", **options})


def test_all_suites_are_complete() -> None:
    sizes = {suite: len(task_files(suite, None)) for suite in SUITES}
    assert len(SUITES) == 22
    assert (sizes["libero_90"], sizes["libero_130"]) == (90, 130)
    assert {size for suite, size in sizes.items() if suite not in ("libero_90", "libero_130")} == {10}
    assert len({task.bddl for task in task_files("libero_130", None)}) == 130


def test_each_task_of_all_suites_together_keeps_its_own_step_limit() -> None:
    limits = _config(id="libero/libero_130").step_limits
    assert [limits[task] for task in (0, 10, 20, 30, 129)] == [220, 280, 300, 520, 400]
    assert _config(id="libero/libero_130:12").step_limits == (280,)
    assert describe_tasks(_config(id="libero/libero_130")).episode_steps == 520


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "libero/libero_spatal"}, "Did you mean 'libero_spatial'"),
        ({"id": "libero/libero_goal:turn_on_the_stve"}, "Did you mean 'turn_on_the_stove'"),
        ({"id": "libero/libero_goal:10"}, "numbered 0 to 9"),
        ({"cameras": ["agentveiw"]}, "Did you mean 'agentview'"),
        ({"cameras": ["agentview", "agentview"]}, "twice"),
        ({"mode": "quick"}, "faithful, fast"),
        ({"protocol": "oft"}, "openvla_oft"),
        ({"image_size": 4}, "between 8 and 2048"),
        ({"assets": "/nowhere/at/all"}, "no folder"),
    ],
)
def test_what_cannot_be_is_refused_with_the_valid_choices(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _config(**options)


@pytest.mark.parametrize(
    ("suite", "protocol", "limit", "settling"),
    [
        ("libero_spatial", "openvla_oft", 220, 10),
        ("libero_object", "openvla_oft", 280, 10),
        ("libero_goal", "openvla_oft", 300, 10),
        ("libero_10", "openvla_oft", 520, 10),
        ("libero_90", "openvla_oft", 400, 10),
        ("libero_goal_swap", "openvla_oft", 300, 10),
        ("libero_10_task", "rlinf", 512, 15),
        ("libero_goal", "rlinf", 320, 15),
        ("libero_spatial", "simplevla", 512, 10),
    ],
)
def test_protocols_have_their_published_numbers(suite: str, protocol: str, limit: int, settling: int) -> None:
    config = _config(id=f"libero/{suite}", protocol=protocol)
    assert (config.step_limits[0], config.settling_steps) == (limit, settling)
    assert describe_tasks(config).episode_steps == limit


def test_the_spec_of_a_suite_and_of_one_task() -> None:
    suite = describe_tasks(_config(image_size=224))
    assert (suite.tasks, suite.initial_states) == (10, (50,) * 10)
    assert (suite.action.dim, suite.state_dim) == (7, 8)
    assert [(c.name, c.height, c.width) for c in suite.cameras] == [
        ("agentview", 224, 224),
        ("robot0_eye_in_hand", 224, 224),
    ]
    one = describe_tasks(_config(id="libero/libero_spatial:1"))
    by_name = describe_tasks(
        _config(id="libero/libero_spatial:pick_up_the_black_bowl_next_to_the_ramekin_and_place_it_on_the_plate")
    )
    assert one.instructions == by_name.instructions == (suite.instructions[1],)
    assert one.tasks == 1


def test_instructions_are_those_a_policy_was_trained_on_or_those_the_variant_is_about() -> None:
    said = {suite: task_files(suite, None)[1].instruction for suite in SUITES}
    assert said["libero_goal"] == "put the bowl on the stove"
    assert said["libero_goal_swap"] == said["libero_goal_object"] == said["libero_goal"]
    assert said["libero_goal_lan"] == "place the bowl on the stove"
    assert said["libero_goal_task"] == "put the plate on the stove"
    assert said["libero_10"] == "put both the cream cheese box and the butter in the basket"


def test_original_torch_files_are_read_without_running_what_is_in_them(tmp_path: Path) -> None:
    states = np.arange(6.0).reshape(2, 3)
    good, bad = tmp_path / "good.pruned_init", tmp_path / "bad.pruned_init"
    torch.save(states, good)
    bad.write_bytes(pickle.dumps(_Touch(str(tmp_path / "touched")), protocol=2))
    torch_bad = tmp_path / "torch_bad.pruned_init"
    torch.save(_Touch(str(tmp_path / "touched")), torch_bad)
    np.testing.assert_array_equal(load_initial_states(TaskFiles("t", "t", good, good)), states)
    for path in (bad, torch_bad):
        with pytest.raises(AssetError, match="cannot be read"):
            load_initial_states(TaskFiles("t", "t", path, path))
    assert not (tmp_path / "touched").exists()


class _Touch:
    """Unpickling this creates a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def test_a_folder_without_task_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="10 files"):
        describe_tasks(_config(assets=str(tmp_path)))
