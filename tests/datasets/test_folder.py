import dataclasses
import json

import pytest
import torch
from recordings import ORIGIN, SPEC, assert_same, make_episode, write_dataset

from embodied.datasets import DatasetWriter, FolderDataset, open_dataset
from embodied.errors import AssetError, RefusedInput


def test_what_is_written_is_read_back_to_the_bit(tmp_path):
    dataset = open_dataset(write_dataset(tmp_path / "data"))
    assert isinstance(dataset, FolderDataset)
    assert (dataset.spec, dataset.fps, dataset.origin) == (SPEC, 20.0, ORIGIN)
    assert dataset.lengths() == [5, 6, 7]
    for number, episode in enumerate(dataset):
        assert_same(episode, make_episode(number, 5 + number))


def test_state_only_episodes_have_no_pictures(tmp_path):
    spec = dataclasses.replace(SPEC, cameras=(), privileged_dim=0)
    dataset = open_dataset(write_dataset(tmp_path / "data", 1, spec))
    assert dataset[0].images is None
    assert_same(dataset[0], make_episode(0, 5, spec))


def test_episodes_come_by_attempt_number_whatever_the_order_of_completion(tmp_path):
    with DatasetWriter(tmp_path, SPEC, 20.0, ORIGIN) as writer:
        for number in (4, 0, 2):
            writer.add(number, make_episode(number))
        writer.reject(1, make_episode(1))
        assert writer.kept == 3
    assert [episode.assignment[2] for episode in open_dataset(tmp_path)] == [100, 102, 104]


def test_a_killed_recording_goes_on_where_it_was(tmp_path):
    folder = write_dataset(tmp_path / "data", 2)
    with (folder / "episodes.jsonl").open("a") as index:
        index.write('{"attempt": 2, "kept": tr')  # what a kill in the middle of a line leaves
    (folder / "episodes" / ".000002.safetensors.part").write_bytes(b"half")
    assert len(open_dataset(folder)) == 2
    with DatasetWriter(folder, SPEC, 20.0, ORIGIN) as writer:
        assert [entry.attempt for entry in writer.entries] == [0, 1]
        writer.add(2, make_episode(2, 7))
    assert_same(open_dataset(folder)[2], make_episode(2, 7))


def test_a_folder_of_another_recording_is_refused_naming_what_differs(tmp_path):
    folder = write_dataset(tmp_path / "data", 1)
    with pytest.raises(RefusedInput, match=r"origin\.noise is 0\.1 there, 0\.2 here"):
        DatasetWriter(folder, SPEC, 20.0, ORIGIN | {"noise": 0.2})
    with pytest.raises(RefusedInput, match=r"spec\.state_dim is 3 there, 4 here"):
        DatasetWriter(folder, dataclasses.replace(SPEC, state_dim=4), 20.0, ORIGIN)


def test_damage_is_refused_naming_file_and_reason(tmp_path):
    folder = write_dataset(tmp_path / "data", 2)
    path = folder / "episodes" / "000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    dataset = open_dataset(folder)
    assert len(dataset[0]) == 5
    with pytest.raises(AssetError, match=r"000001\.safetensors is damaged: its SHA-256"):
        dataset[1]
    path.unlink()
    with pytest.raises(AssetError, match=r"000001\.safetensors cannot be read"):
        dataset[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "does not describe a dataset"),
        (json.dumps({"format": "embodied-episodes", "version": 99}), "version 99; this program reads"),
        (json.dumps({"format": "embodied-episodes", "version": 1, "spec": {"id": "x"}, "fps": 1}), "is damaged"),
    ],
)
def test_a_damaged_description_is_refused(tmp_path, content, words):
    folder = write_dataset(tmp_path / "data", 1)
    (folder / "dataset.json").write_text(content)
    with pytest.raises(AssetError, match=words):
        open_dataset(folder)


def test_a_damaged_line_within_the_index_is_refused_with_its_number(tmp_path):
    folder = write_dataset(tmp_path / "data", 2)
    index = folder / "episodes.jsonl"
    index.write_text("nonsense\n" + index.read_text())
    with pytest.raises(AssetError, match="line 1 is no entry"):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": torch.zeros(5, 2)}, r"state is torch.float32 \[5, 2\], expected torch.float32 \[5, 3\]"),
        ({"images": None}, "images is missing"),
        ({"labels": torch.full((5, 2), torch.nan)}, "labels holds numbers that are not finite"),
        ({"rewards": torch.zeros(4)}, r"rewards is torch.float32 \[4\]"),
        ({"success": torch.zeros(5)}, "success is torch.float32"),
    ],
)
def test_an_episode_that_does_not_fit_its_environment_is_never_written(tmp_path, change, words):
    with DatasetWriter(tmp_path, SPEC, 20.0, ORIGIN) as writer, pytest.raises(AssetError, match=words):
        writer.add(0, dataclasses.replace(make_episode(0), **change))
    assert list((tmp_path / "episodes").iterdir()) == []


def test_folders_without_a_dataset_are_refused(tmp_path):
    with pytest.raises(AssetError, match="there is no dataset folder"):
        open_dataset(tmp_path / "absent")
    with pytest.raises(AssetError, match="holds no dataset"):
        open_dataset(tmp_path)
    DatasetWriter(tmp_path, SPEC, 20.0, ORIGIN).close()
    with pytest.raises(AssetError, match="holds no episodes yet"):
        open_dataset(tmp_path)
