"""MP4 files in and out: H.264 in yuv420p with its index in front, which every browser plays while it loads.

Pictures are numpy uint8 [H, W, 3]. Encoding uses the ffmpeg program that comes with `imageio-ffmpeg`, one thread each,
so that a recording takes no more of the machine than it must.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import struct
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import imageio_ffmpeg
import numpy as np

from embodied.errors import RefusedInput, WorkerError
from envs.video.overlay import title_bar

_FULL_BYTES = 1 << 20  # a disk with less than this is full
_BOX = struct.Struct(">I4s")  # what every part of an MP4 file begins with: its length and kind
# `veryfast` is within a few percent of the default's size on rendered scenes at a third of its time
_ENCODER_OPTIONS = ["-preset", "veryfast", "-crf", "20", "-threads", "1", "-movflags", "+faststart", "-f", "mp4"]


def require_encoder() -> None:
    """Raises RefusedInput where there is no ffmpeg to run, before anything is played that is to be filmed."""
    try:
        program = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError:
        program = ""
    if not program or shutil.which(program) is None:
        which = f"{program!r} (IMAGEIO_FFMPEG_EXE) is no program" if program else "the package imageio-ffmpeg has none"
        raise RefusedInput(
            f"Videos need ffmpeg, and {which}. Get it with `{sys.executable} -m pip install --force-reinstall "
            "imageio-ffmpeg`. Without videos: record.episodes=0 and record.every=0 in training, --films 0 in eval, "
            "--preview 0 in demos."
        )


@dataclasses.dataclass(frozen=True)
class VideoInfo:
    """What a file says of itself; `frames` is counted by decoding, not taken from its header."""

    width: int
    height: int
    fps: float
    frames: int


class Encoder:
    """One MP4 file being written. It appears at `path` when `close` has returned, never half-written.

    `write` and `close` raise WorkerError where it could not be written to its end, and leave no file.
    """

    def __init__(self, path: Path, fps: float):
        self.path = path
        self.frames = 0
        self._fps = fps
        self._part = path.with_name(f".{path.name}.part")
        self._stream: Generator[None, np.ndarray, None] | None = None
        self._shape: tuple[int, ...] = ()

    def write(self, frame: np.ndarray) -> None:
        """Append uint8 [H, W, 3]; an odd height or width gains one repeated line, since yuv420p halves both."""
        frame = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")
        if self._stream is None:
            self._shape = frame.shape
            self._stream = imageio_ffmpeg.write_frames(
                str(self._part),
                (frame.shape[1], frame.shape[0]),
                fps=self._fps,
                codec="libx264",
                quality=None,
                macro_block_size=1,
                ffmpeg_log_level="error",
                output_params=_ENCODER_OPTIONS,
            )
            self._stream.send(None)
        if frame.shape != self._shape:
            raise RefusedInput(
                f"A video's pictures must all have one size: {self.path.name} began with "
                f"{self._shape[0]}x{self._shape[1]} and now got {frame.shape[0]}x{frame.shape[1]}."
            )
        try:
            self._stream.send(np.ascontiguousarray(frame))
        except (OSError, StopIteration):
            self._give_up()
        self.frames += 1

    def close(self, rename: Path | None = None) -> None:
        """Finish the file and move it to `rename` (default: `path`)."""
        if self._stream is None:
            return
        self._stream.close()
        if not _is_whole(self._part):
            self._give_up()
        self._stream = None
        self.path = rename or self.path
        os.replace(self._part, self.path)

    def discard(self) -> None:
        """Stop and leave no file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._part.unlink(missing_ok=True)

    def _give_up(self) -> NoReturn:
        free = shutil.disk_usage(self._part.parent).free
        self.discard()
        why = "the disk is full" if free < _FULL_BYTES else "ffmpeg ended before it was told to"
        raise WorkerError(f"{self.path} could not be written: {why}.")


def _is_whole(path: Path) -> bool:
    """Whether an MP4 file has its index and ends where its last part does: without room an encoder leaves less."""
    try:
        size, place, has_index = path.stat().st_size, 0, False
        with path.open("rb") as file:
            while place + _BOX.size <= size:
                file.seek(place)
                length, kind = _BOX.unpack(file.read(_BOX.size))
                if length == 1:  # the length follows, in 64 bits
                    length = int.from_bytes(file.read(8), "big")
                if length < _BOX.size:
                    return False
                has_index |= kind == b"moov"
                place += length
    except OSError:
        return False
    return has_index and place == size


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """The pictures of a video file, each uint8 [H, W, 3]. Raises RefusedInput if it is no video."""
    if not Path(path).is_file():
        raise RefusedInput(f"No video at {path}.")
    stream = imageio_ffmpeg.read_frames(str(path))
    with contextlib.closing(stream):
        try:
            width, height = next(stream)["size"]
        except (OSError, RuntimeError, StopIteration) as error:
            raise RefusedInput(f"{path} cannot be decoded as a video: {str(error).strip().splitlines()[-1]}") from error
        for data in stream:
            yield np.frombuffer(data, np.uint8).reshape(height, width, 3)


def video_info(path: Path) -> VideoInfo:
    """Decode `path` once and tell its size, rate and number of pictures."""
    frames, height, width = 0, 0, 0
    for frame in read_frames(path):
        frames += 1
        height, width = frame.shape[:2]
    return VideoInfo(width=width, height=height, fps=_fps(path), frames=frames)


def side_by_side(left: Path, right: Path, out: Path, titles: tuple[str, str] = ("Before", "After")) -> Path:
    """Write one video with `left` and `right` next to each other under their titles; the shorter holds its last frame.

    Both are brought to the larger of the two heights. The rate is `left`'s. Returns `out`.
    """
    from PIL import Image

    streams = [read_frames(Path(left)), read_frames(Path(right))]
    current = [next(stream) for stream in streams]
    height = max(frame.shape[0] for frame in current)

    def panel(frame: np.ndarray, title: str) -> np.ndarray:
        if frame.shape[0] != height:
            width = round(frame.shape[1] * height / frame.shape[0])
            frame = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS))
        return np.concatenate([title_bar(title, frame.shape[1], height), frame])

    encoder = Encoder(Path(out), _fps(left))
    try:
        running = True
        while running:
            panels = [panel(frame, title) for frame, title in zip(current, titles, strict=True)]
            gap = np.full((panels[0].shape[0], max(4, height // 64), 3), 16, np.uint8)
            encoder.write(np.concatenate([panels[0], gap, panels[1]], axis=1))
            fresh = [next(stream, None) for stream in streams]
            running = any(frame is not None for frame in fresh)
            current = [old if new is None else new for old, new in zip(current, fresh, strict=True)]
    except BaseException:
        encoder.discard()
        raise
    encoder.close()
    return Path(out)


def _fps(path: Path) -> float:
    stream = imageio_ffmpeg.read_frames(str(path))
    with contextlib.closing(stream):
        return float(next(stream)["fps"])
