"""Reading LeRobot datasets from disk, versions 2.0, 2.1 and 3.0, without the `lerobot` package.

Layouts as their `meta/info.json` states them: version 2 has a parquet file, and a video a camera, for every episode;
version 3 packs many episodes into each, with their places in `meta/episodes`. Pictures are PNGs inside the parquet file
or frames of an MP4. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.episode import Episode, check_episode
from embodied.errors import AssetError
from envs.api import ActionSpec, Bounds, CameraSpec, EnvSpec

INFO = "meta/info.json"
STATE, ENVIRONMENT_STATE, ACTION = "observation.state", "observation.environment_state", "action"
PICTURES = "observation.image"  # and `observation.images.<camera>`
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
TIMESTAMP = "timestamp"  # seconds into the episode
_RATE_TOLERANCE = 0.1
_PICTURE_KINDS = ("image", "video")
_MISFITS = (KeyError, TypeError, ValueError, IndexError, pa.ArrowException)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an episode's rows and frames are. videos: feature -> (file, seconds into it)."""

    episode: int
    data: Path
    length: int
    videos: dict[str, tuple[Path, float]]
    tasks: tuple[str, ...]


class LeRobotDataset(EpisodeDataset):
    """The dataset in `folder`.

    Its actions serve as `labels` too; rewards are 0 and success False where the dataset has no columns for them, and
    `spec.has_success` says which. Action bounds are the smallest and largest number that occurs.
    Raises AssetError where files are missing or are not what the format asks for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._info = _read_json(folder / INFO)
        self._latest: tuple[Path, pa.Table] | None = None
        try:
            self._read_layout()
        except (*_MISFITS, RuntimeError) as error:
            raise AssetError(
                f"{folder} is not laid out as LeRobot {self._info.get('codebase_version', '?')} says "
                f"({type(error).__name__}: {error})."
            ) from error

    def _read_layout(self) -> None:
        info = self._info
        version = str(info["codebase_version"])
        if not re.match(r"v[23]\.", version):
            raise AssetError(
                f"{self.folder / INFO} is of version {version}; versions v2.0, v2.1 and v3.0 are read. Convert it with "
                "LeRobot's own tools."
            )
        self._features: dict[str, dict[str, Any]] = info["features"]
        self.fps = float(info["fps"])
        if not 0 < self.fps < math.inf:
            raise AssetError(f"{self.folder / INFO} says fps {self.fps}; expected steps a second, above 0.")
        missing = [name for name in (ACTION, STATE) if name not in self._features]
        if missing:
            raise AssetError(
                f"{self.folder / INFO} has no feature {' and '.join(missing)}; there are {', '.join(self._features)}."
            )
        self._cameras = sorted(
            name
            for name, feature in self._features.items()
            if name.startswith(PICTURES) and feature["dtype"] in _PICTURE_KINDS
        )
        self._tasks, self._places = self._version_2() if version.startswith("v2.") else self._version_3()
        if not self._places:
            raise AssetError(f"{self.folder} holds no episodes.")
        self.origin = {"format": f"LeRobot {version}", "robot": info.get("robot_type")}
        self.spec = self._describe(version)

    # -- where things are ---------------------------------------------------------------------------------------

    def _version_2(self) -> tuple[dict[int, str], list[_Place]]:
        info = self._info
        tasks = {line["task_index"]: line["task"] for line in _read_lines(self.folder / "meta/tasks.jsonl")}
        episodes = sorted(_read_lines(self.folder / "meta/episodes.jsonl"), key=lambda line: line["episode_index"])
        places = []
        for line in episodes:
            index = int(line["episode_index"])
            names = {"episode_index": index, "episode_chunk": index // int(info["chunks_size"])}
            videos = {
                key: (self.folder / info["video_path"].format(video_key=key, **names), 0.0) for key in self._filmed()
            }
            data = self.folder / info["data_path"].format(**names)
            places.append(_Place(index, data, int(line["length"]), videos, tuple(line["tasks"])))
        return tasks, places

    def _version_3(self) -> tuple[dict[int, str], list[_Place]]:
        info = self._info
        table = _read_table(self.folder / "meta/tasks.parquet")
        texts = next(name for name in table.column_names if name != "task_index")
        tasks = dict(zip(table["task_index"].to_pylist(), table[texts].to_pylist(), strict=True))
        rows: list[dict[str, Any]] = []
        for path in sorted((self.folder / "meta/episodes").glob("*/*.parquet")):
            found = _read_table(path)
            rows += found.select([n for n in found.column_names if not n.startswith("stats/")]).to_pylist()
        places = []
        for row in sorted(rows, key=lambda row: row["episode_index"]):
            names = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
            videos = {}
            for key in self._filmed():
                at = {part: row[f"videos/{key}/{part}"] for part in ("chunk_index", "file_index")}
                path = self.folder / info["video_path"].format(video_key=key, **at)
                videos[key] = (path, float(row[f"videos/{key}/from_timestamp"]))
            data = self.folder / info["data_path"].format(**names)
            places.append(_Place(int(row["episode_index"]), data, int(row["length"]), videos, tuple(row["tasks"])))
        return tasks, places

    def _filmed(self) -> list[str]:
        return [name for name in self._cameras if self._features[name]["dtype"] == "video"]

    # -- what it is ---------------------------------------------------------------------------------------------

    def _describe(self, version: str) -> EnvSpec:
        sizes = {name: _picture_size(self._features[name]) for name in self._cameras}
        if len(set(sizes.values())) > 1:
            raise AssetError(
                f"{self.folder}: the cameras have different sizes, {sizes}; all pictures of a policy are of one size. "
                "Convert the dataset to one size first."
            )
        files = dict.fromkeys(place.data for place in self._places)
        actions = torch.cat([_numbers(self._table(file), ACTION) for file in files])
        cameras = tuple(
            CameraSpec(name.removeprefix(PICTURES).removeprefix("s.").lstrip(".") or "image", *sizes[name])
            for name in self._cameras
        )
        return EnvSpec(
            id=f"lerobot/{self.folder.name}",
            action=ActionSpec(
                Bounds.CONTINUOUS,
                dim=actions.shape[1],
                low=tuple(actions.amin(0).tolist()),
                high=tuple(actions.amax(0).tolist()),
            ),
            state_dim=self._width(STATE),
            cameras=cameras,
            privileged_dim=self._width(ENVIRONMENT_STATE) if ENVIRONMENT_STATE in self._features else 0,
            instructions=tuple(self._tasks[index] for index in sorted(self._tasks)),
            episode_steps=max(place.length for place in self._places),
            control_hz=self.fps,
            has_success=SUCCESS in self._features,
            versions={"lerobot": version},
        )

    def _width(self, feature: str) -> int:
        return int(self._features[feature]["shape"][0])

    # -- episodes -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        return [place.length for place in self._places]

    def numbers(self, index: int) -> Episode:
        place = self._places[index]
        with _readable(place):
            return self._numbers(place)

    def _numbers(self, place: _Place) -> Episode:
        rows = self._rows(place)
        if len(rows) != place.length:
            raise AssetError(
                f"{place.data} has {len(rows)} rows of episode {place.episode}; its index says {place.length}."
            )
        actions = _numbers(rows, ACTION)
        has = set(rows.column_names)
        if TIMESTAMP in has:
            self._require_rate(_numbers(rows, TIMESTAMP).flatten(), place)
        return Episode(
            state=_numbers(rows, STATE),
            actions=actions,
            labels=actions,
            rewards=_numbers(rows, REWARD).flatten() if REWARD in has else torch.zeros(place.length),
            success=_numbers(rows, SUCCESS).flatten() > 0 if SUCCESS in has else torch.zeros(place.length).bool(),
            privileged=_numbers(rows, ENVIRONMENT_STATE) if self.spec.privileged_dim else None,
            instruction=self._instruction(rows, place),
        )

    def __getitem__(self, index: int) -> Episode:
        place = self._places[index]
        episode = self.numbers(index)
        if self._cameras:
            with _readable(place):
                views = [self._pictures(place, name) for name in self._cameras]
                episode = dataclasses.replace(episode, images=torch.from_numpy(np.stack(views, axis=1)))
        check_episode(episode, self.spec, f"{place.data}, episode {place.episode},")
        return episode

    def _require_rate(self, seconds: torch.Tensor, place: _Place) -> None:
        """Raises AssetError where steps are not `1 / fps` apart."""
        if len(seconds) > 1:
            apart = float(seconds[-1] - seconds[0]) / (len(seconds) - 1)
            if not abs(apart * self.fps - 1) < _RATE_TOLERANCE:
                raise AssetError(
                    f"{place.data}, episode {place.episode}: steps are {apart:.4g} s apart, but {INFO} says fps "
                    f"{self.fps:g}. Correct whichever is wrong."
                )

    def _instruction(self, rows: pa.Table, place: _Place) -> str:
        """Of the first step: an episode has one instruction here, and few datasets change it on the way."""
        if "task_index" in rows.column_names:
            return self._tasks[rows["task_index"][0].as_py()]
        return place.tasks[0]

    def _table(self, file: Path) -> pa.Table:
        """A parquet file, the latest one remembered: neighbouring episodes share it."""
        if self._latest is None or self._latest[0] != file:
            self._latest = (file, _read_table(file))
        return self._latest[1]

    def _rows(self, place: _Place) -> pa.Table:
        """The parquet rows of an episode."""
        table = self._table(place.data)
        mask = table["episode_index"].to_numpy() == place.episode
        return table.filter(pa.array(mask))

    def _pictures(self, place: _Place, name: str) -> np.ndarray:
        """uint8 [T, H, W, 3]."""
        if name in place.videos:
            path, start = place.videos[name]
            return _read_video(path, start, place.length, self.fps)
        cells = self._rows(place)[name].to_pylist()
        return np.stack([_decode(cell, self.folder, place.data) for cell in cells])


@contextlib.contextmanager
def _readable(place: _Place) -> Iterator[None]:
    """What does not fit the format becomes an AssetError that names the episode."""
    try:
        yield
    except _MISFITS as error:
        raise AssetError(
            f"{place.data}, episode {place.episode}, is not what {INFO} says ({type(error).__name__}: {error})."
        ) from error


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise AssetError(f"{path} cannot be read as a parquet file: {error}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AssetError(f"{path} cannot be read as JSON: {error}.") from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise AssetError(f"{path} cannot be read as lines of JSON: {error}.") from error


def _numbers(rows: pa.Table, name: str) -> torch.Tensor:
    """float32 [T, dims] of a column of numbers or of lists of numbers."""
    column = rows[name].combine_chunks()
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if len(column.value_lengths().unique()) > 1:
            raise ValueError(f"the rows of {name} have different lengths")
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return torch.from_numpy(flat.reshape(len(rows), -1).astype(np.float32))
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.float32))[:, None]


def _picture_size(feature: dict[str, Any]) -> tuple[int, int]:
    """Height and width; some datasets list the channels first."""
    shape = [int(number) for number in feature["shape"]]
    return (shape[1], shape[2]) if shape[0] == 3 and shape[2] != 3 else (shape[0], shape[1])


def _decode(cell: dict[str, Any], folder: Path, file: Path) -> np.ndarray:
    """uint8 [H, W, 3] of a parquet cell: the bytes of a picture file, or the path of one inside the dataset."""
    try:
        source: Any = cell["bytes"]
        source = io.BytesIO(source) if source is not None else folder / cell["path"]
        with Image.open(source) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, KeyError, TypeError, ValueError, SyntaxError) as error:  # Pillow's own for broken files
        raise AssetError(f"{file} holds a picture that cannot be decoded: {error}.") from error


def _read_video(path: Path, start: float, frames: int, fps: float) -> np.ndarray:
    """uint8 [frames, H, W, 3]: the frames that follow `start` seconds into the file."""
    if not path.is_file():
        raise AssetError(f"there is no video {path}, which the dataset's index names.")
    # half a frame early, so that rounding of timestamps does not skip the first; frames come as stored, none repeated
    seek = ["-ss", f"{max(0.0, start - 0.5 / fps):.6f}"]
    stream = imageio_ffmpeg.read_frames(str(path), input_params=seek, output_params=["-fps_mode", "passthrough"])
    found: list[np.ndarray] = []
    with contextlib.closing(stream):
        try:
            width, height = next(stream)["size"]
            for data in stream:
                found.append(np.frombuffer(data, np.uint8).reshape(height, width, 3))
                if len(found) == frames:
                    break
        except (OSError, RuntimeError, StopIteration) as error:
            raise AssetError(f"{path} cannot be decoded as a video: {error}.") from error
    if len(found) != frames:
        raise AssetError(f"{path} has {len(found)} frames after {start:.3f} s; the dataset's index says {frames}.")
    return np.stack(found)
