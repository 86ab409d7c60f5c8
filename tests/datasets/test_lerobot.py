import dataclasses
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from recordings import SPEC, assert_same, make_episode, write_dataset

from embodied.datasets import open_dataset
from embodied.datasets.lerobot_export import Pictures, export_lerobot
from embodied.errors import AssetError, RefusedInput

LOST = ("actions", "assignment")  # not part of the format


def exported(tmp_path, pictures=Pictures.IMAGE):
    source = open_dataset(write_dataset(tmp_path / "data"))
    export_lerobot(source, tmp_path / "copy", pictures)
    return open_dataset(tmp_path / "copy")


def test_an_export_with_images_is_read_back_to_the_bit(tmp_path):
    copy = exported(tmp_path)
    assert copy.spec.cameras == SPEC.cameras
    assert (copy.spec.state_dim, copy.spec.privileged_dim, copy.spec.action.dim) == (3, 4, 2)
    assert copy.spec.instructions == SPEC.instructions
    assert copy.spec.has_success
    assert (copy.fps, copy.lengths()) == (20.0, [5, 6, 7])
    for number, episode in enumerate(copy):
        assert_same(episode, make_episode(number, 5 + number), without=LOST)
        assert torch.equal(episode.actions, episode.labels)


def test_an_export_with_videos_keeps_every_frame_in_its_place(tmp_path):
    copy = exported(tmp_path, Pictures.VIDEO)
    for number, episode in enumerate(copy):
        expected = make_episode(number, 5 + number)
        assert_same(episode, expected, without=(*LOST, "images"))
        # neighbouring frames differ by 8 grey levels, episodes by 20, cameras by 50
        assert (episode.images.float() - expected.images.float()).abs().mean(dim=(2, 3, 4)).max() < 3


def test_the_index_of_an_export_is_laid_out_as_version_3_says(tmp_path):
    exported(tmp_path, Pictures.VIDEO)
    folder = tmp_path / "copy"
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 18, 2)
    assert info["features"]["observation.images.front"]["dtype"] == "video"
    rows = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [(0, 5), (5, 11), (11, 18)]
    assert rows[1]["videos/observation.images.wrist/from_timestamp"] == pytest.approx(5 / 20)
    data = pq.read_table(folder / "data/chunk-000/file-000.parquet")
    assert data["index"].to_pylist() == list(range(18))
    assert data["frame_index"].to_pylist()[:6] == [0, 1, 2, 3, 4, 0]
    assert data["task_index"].to_pylist()[4:6] == [0, 1]
    stats = json.loads((folder / "meta/stats.json").read_text())
    labels = torch.cat([make_episode(n, 5 + n).labels for n in range(3)]).double()
    assert stats["action"]["mean"] == pytest.approx(labels.mean(0).tolist())
    assert stats["action"]["std"] == pytest.approx(labels.std(0, correction=0).tolist())
    assert np.shape(stats["observation.images.front"]["mean"]) == (3, 1, 1)


def png(picture):
    buffer = io.BytesIO()
    Image.fromarray(picture.numpy()).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_version_2(folder, count=2):
    """A dataset as LeRobot 2.1 lays it out, with one camera whose channels are listed first and no reward."""
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "observation.images.front": {"dtype": "image", "shape": [3, 16, 24], "names": ["c", "h", "w"]},
        "action": {"dtype": "float32", "shape": [2], "names": None},
    }
    info = {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "fps": 10,
        "chunks_size": 1,
        "features": features,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
    }
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": i, "task": text} for i, text in enumerate(SPEC.instructions)]
    (folder / "meta/tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    lines = []
    for number in range(count):
        episode = make_episode(number, 5 + number)
        rows = {
            "observation.state": episode.state.tolist(),
            "observation.images.front": [png(picture) for picture in episode.images[:, 0]],
            "action": episode.labels.tolist(),
            "episode_index": [number] * len(episode),
            "timestamp": [step / 10 for step in range(len(episode))],
            "task_index": [number % 2] * len(episode),
        }
        path = folder / f"data/chunk-{number:03d}/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(rows), path)
        lines.append({"episode_index": number, "tasks": [episode.instruction], "length": len(episode)})
    (folder / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_version_2_dataset_is_read(tmp_path):
    dataset = open_dataset(write_version_2(tmp_path / "set"))
    assert [camera.name for camera in dataset.spec.cameras] == ["front"]
    assert (dataset.spec.cameras[0].height, dataset.spec.cameras[0].width) == (16, 24)
    assert not dataset.spec.has_success
    for number, episode in enumerate(dataset):
        expected = make_episode(number, 5 + number)
        expected = dataclasses.replace(
            expected,
            images=expected.images[:, :1],
            rewards=torch.zeros(len(expected)),
            success=torch.zeros(len(expected)).bool(),
            privileged=None,
        )
        assert_same(episode, expected, without=LOST)
    bounds = torch.cat([make_episode(n, 5 + n).labels for n in range(2)])
    assert dataset.spec.action.low == pytest.approx(bounds.amin(0).tolist())


def rewritten(**columns):
    """The first episode's file with some columns as `columns[name]` makes them of what they were."""

    def damage(folder):
        path = folder / "data/chunk-000/episode_000000.parquet"
        rows = {name: column.to_pylist() for name, column in zip(*_columns(path), strict=True)}
        for name, change in columns.items():
            rows[name] = change(rows[name])
        pq.write_table(pa.table({name: rows[name] for name in rows if rows[name] is not None}), path)

    return damage


def _columns(path):
    table = pq.read_table(path)
    return table.column_names, table.columns


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (rewritten(action=lambda old: None), "is not laid out"),
        (rewritten(action=lambda old: [[float("nan"), 0.0], *old[1:]]), "actions holds numbers that are not finite"),
        (rewritten(action=lambda old: [row[:1] for row in old]), "is not laid out"),
        (rewritten(**{"observation.state": lambda old: None}), "episode 0, is not what"),
        (rewritten(**{"observation.state": lambda old: [old[0][:2], [*old[1], 0.0], *old[2:]]}), "different lengths"),
        (rewritten(**{"observation.images.front": lambda old: [{"bytes": b"x", "path": None}] * 5}), "be decoded"),
        (rewritten(task_index=lambda old: [77] * 5), "episode 0, is not what"),
        (rewritten(timestamp=lambda old: [3 * second for second in old]), "0.3 s apart, but .* says fps 10"),
        (
            lambda f: (f / "meta/info.json").write_text(
                (f / "meta/info.json").read_text().replace('"fps": 10', '"fps": 0')
            ),
            "says fps 0",
        ),
        (lambda f: (f / "meta/episodes.jsonl").write_text(""), "holds no episodes"),
        (lambda f: (f / "data/chunk-001/episode_000001.parquet").unlink(), "episode_000001.parquet cannot be read"),
        (lambda f: (f / "meta/tasks.jsonl").unlink(), "tasks.jsonl cannot be read"),
        (lambda f: (f / "meta/info.json").write_text("{"), "info.json cannot be read as JSON"),
        (
            lambda f: (f / "meta/info.json").write_text((f / "meta/info.json").read_text().replace("v2.1", "v9.0")),
            "is of version v9.0",
        ),
        (
            lambda f: (f / "meta/info.json").write_text(
                (f / "meta/info.json").read_text().replace('"action"', '"act"')
            ),
            "has no feature action",
        ),
        (
            lambda f: (f / "meta/episodes.jsonl").write_text('{"episode_index": 0, "tasks": ["x"], "length": 4}\n'),
            "has 5 rows of episode 0; its index says 4",
        ),
    ],
)
def test_a_damaged_dataset_is_refused_naming_file_and_reason(tmp_path, damage, words):
    folder = write_version_2(tmp_path / "set")
    damage(folder)
    with pytest.raises(AssetError, match=words):
        open_dataset(folder)[0]


def test_a_video_that_is_too_short_is_refused(tmp_path):
    exported(tmp_path, Pictures.VIDEO)
    path = tmp_path / "copy/meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[2]["videos/observation.images.front/from_timestamp"] += 0.1
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(AssetError, match=r"has 5 frames after 0\.650 s; the dataset's index says 7"):
        open_dataset(tmp_path / "copy")[2]


def test_an_export_does_not_overwrite(tmp_path):
    source = open_dataset(write_dataset(tmp_path / "data", 1))
    with pytest.raises(RefusedInput, match="is not empty"):
        export_lerobot(source, tmp_path / "data")
