"""Several datasets read as one."""

import dataclasses

import pytest
from recordings import ORIGIN, SPEC, assert_same, make_episode, write_dataset

from embodied.datasets import DatasetWriter, open_dataset, open_datasets
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
