"""Several datasets read as one."""

import dataclasses

import pytest
from recordings import ORIGIN, SPEC, assert_same, make_episode, write_dataset

from embodied.datasets import DatasetWriter, open_dataset, open_datasets
from embodied.datasets.lerobot_export import export_lerobot
from embodied.errors import AssetError


def test_episodes_come_one_dataset_after_another(tmp_path):
    few = write_dataset(tmp_path / "few", 2)
    with DatasetWriter(tmp_path / "noisy", SPEC, 20.0, ORIGIN | {"noise": 0.4}) as writer:
        writer.add(0, make_episode(7, 9))
    joined = open_datasets([few, tmp_path / "noisy"])
    assert (len(joined), joined.lengths()) == (3, [5, 6, 9])
    assert (joined.spec, joined.fps, joined.origin) == (SPEC, 20.0, ORIGIN)
    for episode, expected in zip(joined, [make_episode(0, 5), make_episode(1, 6), make_episode(7, 9)], strict=True):
        assert_same(episode, expected)
    assert_same(joined.numbers(2), joined[2])
    assert joined.where == f"{few} + {tmp_path / 'noisy'}"


def test_one_folder_is_that_dataset(tmp_path):
    folder = write_dataset(tmp_path / "data", 1)
    assert type(open_datasets([folder])) is type(open_dataset(folder))


def test_instructions_are_united(tmp_path):
    a = write_dataset(tmp_path / "a", 1)
    b = write_dataset(tmp_path / "b", 1, dataclasses.replace(SPEC, instructions=(*SPEC.instructions, "do more")))
    assert open_datasets([a, b]).spec.instructions == (*SPEC.instructions, "do more")


def test_bounds_that_were_only_observed_widen_to_hold_all(tmp_path):
    blind = dataclasses.replace(SPEC, cameras=())
    for name, numbers in (("few", (0, 1)), ("more", (2, 3))):
        with DatasetWriter(tmp_path / name, blind, 20.0, ORIGIN) as writer:
            for place, number in enumerate(numbers):
                writer.add(place, dataclasses.replace(make_episode(number, 5 + number), images=None))
        export_lerobot(open_dataset(tmp_path / name), tmp_path / f"{name}_lerobot")
    parts = [open_dataset(tmp_path / f"{name}_lerobot") for name in ("few", "more")]
    assert parts[0].spec.action.low != parts[1].spec.action.low
    joined = open_datasets([part.folder for part in parts])
    assert joined.lengths() == [5, 6, 7, 8]
    bounds = [(part.spec.action.low, part.spec.action.high) for part in parts]
    assert joined.spec.action.low == tuple(map(min, bounds[0][0], bounds[1][0]))
    assert joined.spec.action.high == tuple(map(max, bounds[0][1], bounds[1][1]))
    assert open_datasets([tmp_path / "few", parts[1].folder]).spec.action.high == blind.action.high
    # an environment's own bounds are part of what an action means
    other = dataclasses.replace(blind, action=dataclasses.replace(blind.action, high=(9.0,) * blind.action.dim))
    with DatasetWriter(tmp_path / "other", other, 20.0, ORIGIN) as writer:
        writer.add(0, dataclasses.replace(make_episode(0, 5), images=None))
    with pytest.raises(AssetError, match="bounds of actions"):
        open_datasets([tmp_path / "few", tmp_path / "other"])


def test_datasets_that_do_not_fit_together_are_refused_naming_what_differs(tmp_path):
    a = write_dataset(tmp_path / "a", 1)
    b = write_dataset(tmp_path / "b", 1, dataclasses.replace(SPEC, cameras=(), state_dim=4))
    with pytest.raises(
        AssetError, match=r"b cannot be joined to .*a: numbers of state 4, not 3; cameras none, not \w+ \d+x\d+"
    ):
        open_datasets([a, b])
    with pytest.raises(AssetError, match=r"a is named more than once"):
        open_datasets([a, tmp_path / "x" / ".." / "a"])
    with pytest.raises(AssetError, match=r"there is no dataset folder"):
        open_datasets([a, tmp_path / "none"])
