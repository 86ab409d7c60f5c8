"""Writing a dataset in LeRobot's format, version 3.0: what our labels, states and pictures become there.

Labels become `action`; the disturbed actions that were executed are not part of that format, nor are assignments.
"""

from __future__ import annotations

import enum
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.episode import Episode
from embodied.datasets.lerobot import ACTION, DONE, ENVIRONMENT_STATE, INFO, REWARD, STATE, SUCCESS
from embodied.errors import CheckpointError, RefusedInput
from envs.api import CameraSpec

_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_FIRST = {"chunk_index": 0, "file_index": 0}
_ROWS_A_GROUP = 1024
# a key frame every other frame: readers of this format seek to single frames
_ENCODER_OPTIONS = ["-crf", "18", "-g", "2", "-threads", "1", "-movflags", "+faststart"]


class Pictures(enum.Enum):
    """How pictures are stored: as PNG inside the parquet file (lossless), or as frames of an MP4 (small)."""

    IMAGE = "image"
    VIDEO = "video"


def require_free(folder: Path) -> None:
    """Raise RefusedInput where a copy could not be put into `folder`, because there is something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefusedInput(f"{folder} is not empty; name a new folder for the LeRobot copy.")


def export_lerobot(dataset: EpisodeDataset, folder: Path, pictures: Pictures = Pictures.IMAGE) -> None:
    """Write `dataset` to `folder`, which must be new or empty; it appears when it is complete.

    Raises RefusedInput where there is something already, CheckpointError where it cannot be written.
    """
    require_free(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _Export(dataset, partial, pictures).write()
            if folder.exists():
                folder.rmdir()
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"the LeRobot copy {folder} could not be written: {error}. Free some space.") from error


class _Export:
    """One export under way."""

    def __init__(self, dataset: EpisodeDataset, folder: Path, pictures: Pictures) -> None:
        self.dataset, self.folder, self.pictures = dataset, folder, pictures
        self.fps = max(1, round(dataset.fps))
        self.cameras = {f"observation.images.{camera.name}": camera for camera in dataset.spec.cameras}
        self.features = self._features()
        self.tasks: dict[str, int] = {text: index for index, text in enumerate(dataset.spec.instructions)}
        self.episodes: list[dict[str, Any]] = []
        self.totals = {name: _Totals() for name in (STATE, ACTION, *self.cameras)}
        if dataset.spec.privileged_dim:
            self.totals[ENVIRONMENT_STATE] = _Totals()

    def _features(self) -> dict[str, dict[str, Any]]:
        spec = self.dataset.spec

        def vector(dims: int, dtype: str = "float32") -> dict[str, Any]:
            return {"dtype": dtype, "shape": [dims], "names": None}

        features = {STATE: vector(spec.state_dim)}
        for name, camera in self.cameras.items():
            features[name] = self._picture_feature(camera)
        if spec.privileged_dim:
            features[ENVIRONMENT_STATE] = vector(spec.privileged_dim)
        features |= {ACTION: vector(spec.action.dim), REWARD: vector(1), DONE: vector(1, "bool")}
        if spec.has_success:
            features[SUCCESS] = vector(1, "bool")
        features["timestamp"] = vector(1)
        return features | {name: vector(1, "int64") for name in ("frame_index", "episode_index", "index", "task_index")}

    def _picture_feature(self, camera: CameraSpec) -> dict[str, Any]:
        feature: dict[str, Any] = {
            "dtype": self.pictures.value,
            "shape": [camera.height, camera.width, 3],
            "names": ["height", "width", "channels"],
        }
        if self.pictures is Pictures.VIDEO:
            feature["info"] = {
                "video.height": camera.height,
                "video.width": camera.width,
                "video.channels": 3,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": self.fps,
                "has_audio": False,
            }
        return feature

    def write(self) -> None:
        data = self.folder / _DATA.format(**_FIRST)
        data.parent.mkdir(parents=True)
        films = self._open_films()
        total = 0
        parquet = pq.ParquetWriter(data, self._schema(), compression="snappy")
        try:
            for index, episode in enumerate(self.dataset):
                parquet.write_table(self._rows(index, episode, total), row_group_size=_ROWS_A_GROUP)
                for view, name in enumerate(films):
                    for frame in episode.images[:, view].numpy():
                        films[name].send(np.ascontiguousarray(frame))
                self._note(index, episode, total)
                total += len(episode)
        finally:
            parquet.close()
            for film in films.values():
                film.close()
        self._write_meta(total)

    def _open_films(self) -> dict[str, Any]:
        films = {}
        for name, camera in self.cameras.items() if self.pictures is Pictures.VIDEO else ():
            if camera.height % 2 or camera.width % 2:
                raise RefusedInput(
                    f"camera {camera.name} is {camera.height}x{camera.width}, and MP4 needs even sizes; export the "
                    "pictures as images instead."
                )
            path = self.folder / _VIDEO.format(video_key=name, **_FIRST)
            path.parent.mkdir(parents=True)
            film = imageio_ffmpeg.write_frames(
                str(path),
                (camera.width, camera.height),
                fps=self.fps,
                codec="libx264",
                quality=None,
                macro_block_size=1,
                ffmpeg_log_level="error",
                output_params=_ENCODER_OPTIONS,
            )
            film.send(None)
            films[name] = film
        return films

    def _schema(self) -> pa.Schema:
        numbers = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}
        fields = []
        for name, feature in self.features.items():
            if feature["dtype"] == "video":
                continue
            if feature["dtype"] == "image":
                kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
            else:
                kind = numbers[feature["dtype"]]
                dims = feature["shape"][0]
                kind = kind if dims == 1 else pa.list_(kind, dims)
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def _rows(self, index: int, episode: Episode, start: int) -> pa.Table:
        steps = len(episode)
        count = np.arange(steps)
        columns: dict[str, Any] = {
            STATE: _vectors(episode.state.numpy()),
            ACTION: _vectors(episode.labels.numpy()),
            REWARD: episode.rewards.numpy(),
            DONE: count == steps - 1,
            SUCCESS: episode.success.numpy(),
            "timestamp": (count / self.fps).astype(np.float32),
            "frame_index": count,
            "episode_index": np.full(steps, index),
            "index": start + count,
            "task_index": np.full(steps, self.tasks.setdefault(episode.instruction, len(self.tasks))),
        }
        if episode.privileged is not None:
            columns[ENVIRONMENT_STATE] = _vectors(episode.privileged.numpy())
        if self.pictures is Pictures.IMAGE:
            for view, name in enumerate(self.cameras):
                frames = episode.images[:, view].numpy()
                columns[name] = [{"bytes": _png(frame), "path": f"frame-{t:06d}.png"} for t, frame in enumerate(frames)]
        schema = self._schema()
        return pa.table([pa.array(columns[name], schema.field(name).type) for name in schema.names], schema=schema)

    def _note(self, index: int, episode: Episode, start: int) -> None:
        end = start + len(episode)
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [episode.instruction],
            "length": len(episode),
            "dataset_from_index": start,
            "dataset_to_index": end,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        row |= {f"data/{part}": number for part, number in _FIRST.items()}
        if self.pictures is Pictures.VIDEO:
            for name in self.cameras:
                row |= {f"videos/{name}/{part}": number for part, number in _FIRST.items()}
                row |= {
                    f"videos/{name}/from_timestamp": start / self.fps,
                    f"videos/{name}/to_timestamp": end / self.fps,
                }
        self.episodes.append(row)
        self.totals[STATE].add(episode.state.numpy())
        self.totals[ACTION].add(episode.labels.numpy())
        if episode.privileged is not None:
            self.totals[ENVIRONMENT_STATE].add(episode.privileged.numpy())
        for view, name in enumerate(self.cameras):
            self.totals[name].add(episode.images[:, view].numpy().reshape(-1, 3) / 255.0)

    def _write_meta(self, total: int) -> None:
        episodes = self.folder / "meta/episodes/chunk-000/file-000.parquet"
        episodes.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self.episodes), episodes)
        tasks = pa.table({"task_index": list(self.tasks.values()), "task": list(self.tasks)})
        pq.write_table(tasks.replace_schema_metadata(_TASKS_INDEX), self.folder / "meta/tasks.parquet")
        stats = {
            name: found.summary(as_picture=name in self.cameras) for name, found in self.totals.items() if found.count
        }
        (self.folder / "meta/stats.json").write_text(json.dumps(stats, indent=4))
        info = {
            "codebase_version": "v3.0",
            "robot_type": self.dataset.spec.id,
            "total_episodes": len(self.episodes),
            "total_frames": total,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": _DATA,
            "video_path": _VIDEO if self.pictures is Pictures.VIDEO and self.cameras else None,
            "features": self.features,
        }
        (self.folder / INFO).write_text(json.dumps(info, indent=4))


# pandas, which reads this table over there, takes the texts as its index only if told so
_TASKS_INDEX = {
    "pandas": json.dumps(
        {
            "index_columns": ["task"],
            "column_indexes": [],
            "columns": [
                {
                    "name": name,
                    "field_name": name,
                    "pandas_type": pandas,
                    "numpy_type": numpy,
                    "metadata": None,
                }
                for name, pandas, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
            ],
            "pandas_version": "2.0.0",
        }
    )
}


class _Totals:
    """Running smallest, largest, mean and deviation of rows [N, D]."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, rows: np.ndarray) -> None:
        rows = rows.astype(np.float64)
        low, high, total, squares = rows.min(0), rows.max(0), rows.sum(0), (rows**2).sum(0)
        if self.count:
            low, high = np.minimum(low, self.low), np.maximum(high, self.high)
            total, squares = total + self.total, squares + self.squares
        self.low, self.high, self.total, self.squares = low, high, total, squares
        self.count += len(rows)

    def summary(self, *, as_picture: bool) -> dict[str, Any]:
        mean = self.total / self.count
        deviation = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0.0))
        shape = (-1, 1, 1) if as_picture else (-1,)
        numbers = {"min": self.low, "max": self.high, "mean": mean, "std": deviation}
        return {name: value.reshape(shape).tolist() for name, value in numbers.items()} | {"count": [self.count]}


def _vectors(rows: np.ndarray) -> list[Any]:
    """Rows [T, D] as lists, or as numbers where D is 1."""
    return rows[:, 0].tolist() if rows.shape[1] == 1 else rows.tolist()


def _png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    return buffer.getvalue()
