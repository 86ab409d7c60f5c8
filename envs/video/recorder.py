"""`VideoRecorder`: episodes as MP4 files, one per environment or one grid of several.

The caller pays for one copy of each picture into shared memory; drawing and encoding happen in a process of its own
(`envs.video.writer`). It drops nothing: if encoding cannot keep up and the buffer is full, `add` waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from embodied.errors import DeadlineExceeded, RefusedInput, WorkerError
from envs.video.codec import require_encoder
from envs.video.overlay import Overlay
from envs.video.ring import RingWriter

_LOWEST_PRIORITY = 19
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Keep(enum.Enum):
    """Which episodes stay on disk once their outcome is known."""

    ALL = "all"
    SUCCESSES = "successes"
    FAILURES = "failures"


@dataclasses.dataclass
class _Episode:
    """One environment's current episode: how many came before it, and the stream it is recorded to, if it is."""

    number: int = 0
    stream: int | None = None
    shape: tuple[int, ...] = ()


class VideoRecorder:
    """Records pictures of environments to MP4 files in `folder`; a context manager.

    fps: pictures a second of the video.
    overlay: draw the `Overlay` given to `add` around each picture; False records the bare pixels.
    tile: None for a file per environment and episode; n for one grid of the environments 0..n-1, which is complete
        when each of them has ended one episode.
    every: record an environment's episodes (or the grid's rounds) 0, every, 2·every, …
    keep: which episodes to keep by outcome; the others are encoded and then removed. Not for grids.
    buffer_mib: memory for pictures on their way; when it is full, `add` waits.
    deadline_s: longest wait for the recording process before `add` or `close` raises DeadlineExceeded; long, because
        that process goes last where a machine is full.

    Files are named `<name>_success.mp4`, `<name>_failure.mp4`, `<name>.mp4` (outcome unknown), grids
    `<name>_<successes>of<n>.mp4`; an episode cut short by `close` or by an exception `<name>_unfinished.mp4`. A name
    already taken gets `-2`, `-3`, … A file appears under its name when it is complete, never before.
    Not for use from several threads at once.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        fps: float = 20,
        overlay: bool = True,
        tile: int | None = None,
        every: int = 1,
        keep: Keep = Keep.ALL,
        buffer_mib: int = 64,
        deadline_s: float = 300.0,
    ):
        if fps <= 0 or every < 1 or (tile is not None and tile < 1) or buffer_mib < 1:
            raise RefusedInput(
                f"VideoRecorder needs fps > 0, every >= 1, tile >= 1 and buffer_mib >= 1; got fps={fps}, "
                f"every={every}, tile={tile}, buffer_mib={buffer_mib}."
            )
        if tile is not None and keep is not Keep.ALL:
            raise RefusedInput(f"A grid mixes outcomes, so keep={keep.value!r} needs tile=None.")
        require_encoder()
        self.folder = Path(folder).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RefusedInput(f"Videos cannot be written to {self.folder}: {error.strerror}.") from error
        if not os.access(self.folder, os.W_OK):
            raise RefusedInput(f"Videos cannot be written to {self.folder}: no permission.")
        self._overlay, self._tile, self._every, self._keep = overlay, tile, every, keep
        self._deadline_s = deadline_s
        self._episodes: dict[int, _Episode] = {}
        self._grid = _Episode()
        self._grid_done: dict[int, bool | None] = {}
        self._streams = 0
        self._taken: set[str] = set()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        self._ring = RingWriter(buffer_mib * 2**20, deadline_s=deadline_s, alive=self._raise_if_ended)
        self._process = self._start(fps)
        self._owner = os.getpid()
        self._finish = weakref.finalize(self, _finish, self._ring, self._process, deadline_s, self._owner)

    def __enter__(self) -> VideoRecorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add(self, env_index: int, frame: Any, overlay: Overlay | None = None) -> None:
        """Append `frame` (uint8 [H, W, 3], numpy or torch on any device) to the episode of environment `env_index`.

        Raises RefusedInput for another shape or type, WorkerError if the recording process has failed.
        """
        if self._tile is not None and not 0 <= env_index < self._tile:
            raise RefusedInput(f"The grid shows environments 0..{self._tile - 1}; got a picture of {env_index}.")
        # where its part of a grid is over, the next grid begins when all are
        if not self.wants(env_index):
            return
        episode = self._grid if self._tile is not None else self._episodes.setdefault(env_index, _Episode())
        pixels = _as_pixels(frame)
        if episode.stream is None:
            self._open(episode, env_index, pixels.shape)
        elif pixels.shape != episode.shape:
            raise RefusedInput(
                f"The pictures of one video must have one size: environment {env_index} gave "
                f"{'x'.join(map(str, pixels.shape))} after {'x'.join(map(str, episode.shape))}."
            )
        message = {
            "do": "frame",
            "stream": episode.stream,
            "cell": env_index,
            "height": pixels.shape[0],
            "width": pixels.shape[1],
            "overlay": _as_plain(overlay or Overlay()) if self._overlay else None,
        }
        self._put(message, pixels)

    def wants(self, env_index: int) -> bool:
        """Whether a picture of this environment would be recorded now, for callers to whom drawing one costs time."""
        if self._tile is not None:
            return env_index not in self._grid_done and self._grid.number % self._every == 0
        return self._episodes.get(env_index, _Episode()).number % self._every == 0

    def end_episode(self, env_index: int, success: bool | None = None, name: str | None = None) -> Path | None:
        """Say that the environment's episode is over; its next picture begins another.

        Returns where the file will be (complete after `flush` or `close`), or None if there is none: this episode was
        not recorded or not kept, or others of the grid still run.
        """
        if self._tile is not None:
            return self._end_cell(env_index, success, name)
        episode = self._episodes.setdefault(env_index, _Episode())
        stream, number = episode.stream, episode.number
        episode.stream, episode.number = None, number + 1
        if stream is None:
            return None
        success = None if success is None else bool(success)
        kept = self._keep is Keep.ALL or success is (self._keep is Keep.SUCCESSES)
        outcome = {True: "_success", False: "_failure", None: ""}[success]
        path = self._free_path(f"{name or f'env{env_index:03d}_episode{number:04d}'}{outcome}") if kept else None
        self._put({"do": "end", "stream": stream, "path": str(path) if path else None})
        return path

    def flush(self) -> None:
        """Wait until every ended episode's file is complete. Raises WorkerError if the recording process failed."""
        _set_priority(self._process.pid, os.getpriority(os.PRIO_PROCESS, 0))
        try:
            self._ring.wait_until_empty()
        finally:
            _set_priority(self._process.pid, _LOWEST_PRIORITY)

    def close(self) -> None:
        """Finish all files and end the recording process; a second call does nothing.

        Raises WorkerError, with what the process said, if files could not be written.
        """
        if self._finish.alive and os.getpid() == self._owner:
            self._finish()
            self._raise_if_failed()

    def _start(self, fps: float) -> subprocess.Popen[bytes]:
        # a program, not a fork: no copy of the simulators' memory, threads or CUDA state, and no main module re-run
        paths = [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        environment["OPENBLAS_NUM_THREADS"] = "1"
        process = subprocess.Popen(
            [sys.executable, "-m", "envs.video.writer", *map(str, self._ring.child_fds()), str(fps)],
            pass_fds=self._ring.child_fds(),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=environment,
        )
        self._ring.close_child_fds()
        _set_priority(process.pid, _LOWEST_PRIORITY)  # when the machine is full, the loop goes first
        return process

    def _open(self, episode: _Episode, env_index: int, shape: tuple[int, ...]) -> None:
        self._streams += 1
        episode.stream, episode.shape = self._streams, shape
        grid = self._tile is not None
        stem = f"grid_round{episode.number:04d}" if grid else f"env{env_index:03d}_episode{episode.number:04d}"
        message = {"do": "open", "stream": episode.stream, "unfinished": str(self._free_path(f"{stem}_unfinished"))}
        self._put(message | ({"cells": self._tile} if grid else {}))

    def _end_cell(self, env_index: int, success: bool | None, name: str | None) -> Path | None:
        if env_index in self._grid_done:
            return None
        self._grid_done[env_index] = success
        stream, number = self._grid.stream, self._grid.number
        if stream is not None:
            self._put({"do": "cell_done", "stream": stream, "cell": env_index})
        if len(self._grid_done) < self._tile:
            return None
        outcomes = list(self._grid_done.values())
        self._grid_done = {}
        self._grid = _Episode(number=number + 1)
        if stream is None:
            return None
        known = all(outcome is not None for outcome in outcomes)
        tally = f"_{sum(map(bool, outcomes))}of{self._tile}" if known else ""
        path = self._free_path(f"{name or f'grid_round{number:04d}'}{tally}")
        self._put({"do": "end", "stream": stream, "path": str(path)})
        return path

    def _free_path(self, stem: str) -> Path:
        stem = stem.replace("/", "_")
        candidate, attempt = stem, 1
        while candidate in self._taken or (self.folder / f"{candidate}.mp4").exists():
            attempt += 1
            candidate = f"{stem}-{attempt}"
        self._taken.add(candidate)
        return self.folder / f"{candidate}.mp4"

    def _put(self, message: dict[str, Any], pixels: np.ndarray | None = None) -> None:
        if not self._finish.alive:
            raise RefusedInput("This VideoRecorder is closed; create another to record more.")
        try:
            self._ring.put(message, pixels)
        except BrokenPipeError:
            self._process.wait(self._deadline_s)
            self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        """The ring's far end is gone or silent: raise if that is because the process has ended."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return
        self._raise_if_failed()
        raise WorkerError("The recording process ended before it was told to.")

    def _raise_if_failed(self) -> None:
        if self._process.returncode is None:
            raise DeadlineExceeded(
                f"The recording process is still encoding {self._deadline_s:.0f} s after the last picture; it goes on "
                f"by itself and its files will appear in {self.folder}."
            )
        if self._process.returncode != 0:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise WorkerError(
                f"The recording process failed (exit code {self._process.returncode}); videos in {self.folder} may be "
                f"missing. It said:\n{said[-2000:]}"
            )


def _finish(ring: RingWriter, process: subprocess.Popen[bytes], deadline_s: float, owner: int) -> None:
    """End of the recorder, by `close` or, where nobody called it, by the interpreter's exit."""
    if os.getpid() != owner:
        return  # a forked process ends; the recording is its parent's
    ring.close()
    _set_priority(process.pid, os.getpriority(os.PRIO_PROCESS, 0))
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return  # reported by `close`; the process needs nobody to finish its files


def _set_priority(pid: int, priority: int) -> None:
    """Of the recording process and its encoders. While somebody waits for them they get the waiter's own, where that is
    allowed: raising a priority takes a privilege."""
    with contextlib.suppress(psutil.Error, OSError):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            os.setpriority(os.PRIO_PROCESS, process.pid, priority)


def _as_pixels(frame: Any) -> np.ndarray:
    if hasattr(frame, "detach"):  # a torch tensor, without importing torch here
        frame = frame.detach().cpu().numpy()
    pixels = np.asarray(frame)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise RefusedInput(
            f"A picture is uint8 [H, W, 3]; got {pixels.dtype} {list(pixels.shape)}. Scale floats to 0..255 and "
            "convert, and put channels last."
        )
    return pixels


def _as_plain(overlay: Overlay) -> dict[str, Any]:
    """`overlay` in JSON's types; numbers may come as numpy or torch scalars."""

    def number(value: Any, kind: type) -> Any:
        return None if value is None else kind(value)

    action = overlay.action
    return {
        "instruction": overlay.instruction,
        "step": number(overlay.step, int),
        "reward": number(overlay.reward, float),
        "success": number(overlay.success, bool),
        "value": number(overlay.value, float),
        "action": None if action is None else [float(a) for a in action],
    }
