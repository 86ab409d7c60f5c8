"""The recording process: draws overlays, composes grids, feeds ffmpeg. Started by `VideoRecorder`, never by hand.

It reads messages until its parent closes the ring or dies, then finishes every open file: pictures handed over are
never lost, even if the parent was killed.
"""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import WorkerError
from envs.video.codec import Encoder
from envs.video.overlay import Overlay, draw_overlay
from envs.video.ring import RingReader


class Stream:
    """One file in the making, from one environment."""

    def __init__(self, message: dict[str, Any], fps: float):
        self.encoder = Encoder(Path(message["unfinished"]), fps)

    def add(self, cell: int, picture: np.ndarray) -> None:
        self.encoder.write(picture)

    def cell_done(self, cell: int) -> None:
        """The environment in `cell` has ended its episode."""

    def end(self, path: str | None) -> None:
        if path is None:
            self.encoder.discard()
        else:
            self.encoder.close(Path(path))

    def abandon(self) -> None:
        self.encoder.close()


class Grid(Stream):
    """One file that shows several environments, near-square; who has ended stands still with its last picture.

    A picture of the grid is written as soon as every running environment has given a new one, or when one of them
    gives its next (the others are late).
    """

    def __init__(self, message: dict[str, Any], fps: float):
        super().__init__(message, fps)
        self.cells = int(message["cells"])
        self.columns = math.ceil(math.sqrt(self.cells))
        self.rows = math.ceil(self.cells / self.columns)
        self.canvas: np.ndarray | None = None
        self.fresh: set[int] = set()
        self.running = set(range(self.cells))

    def add(self, cell: int, picture: np.ndarray) -> None:
        if cell in self.fresh:
            self._emit()
        height, width = picture.shape[:2]
        if self.canvas is None:
            self.canvas = np.full((self.rows * height, self.columns * width, 3), 16, np.uint8)
        row, column = divmod(cell, self.columns)
        self.canvas[row * height : (row + 1) * height, column * width : (column + 1) * width] = picture
        self.fresh.add(cell)
        if self.fresh >= self.running:
            self._emit()

    def cell_done(self, cell: int) -> None:
        self.running.discard(cell)
        if self.fresh and self.fresh >= self.running:
            self._emit()

    def end(self, path: str | None) -> None:
        if self.fresh:
            self._emit()
        super().end(path)

    def abandon(self) -> None:
        if self.fresh:
            self._emit()
        super().abandon()

    def _emit(self) -> None:
        self.encoder.write(self.canvas)
        self.fresh.clear()


def serve(reader: RingReader, fps: float) -> None:
    """Act on messages until the ring ends: open a stream, add a frame, end a cell, end a stream."""
    streams: dict[int, Stream] = {}
    try:
        for message, pixels in reader:
            match message["do"]:
                case "open":
                    kind = Grid if "cells" in message else Stream
                    streams[message["stream"]] = kind(message, fps)
                case "frame":
                    picture = pixels.reshape(message["height"], message["width"], 3)
                    if message["overlay"] is not None:
                        picture = draw_overlay(picture, Overlay(**message["overlay"]))
                    streams[message["stream"]].add(message["cell"], picture)
                case "cell_done":
                    streams[message["stream"]].cell_done(message["cell"])
                case "end":
                    streams.pop(message["stream"]).end(message["path"])
    finally:
        _abandon(list(streams.values()))


def _abandon(streams: list[Stream]) -> None:
    """Finish the files of all, whatever becomes of each. Raises WorkerError for the first that could not be written."""
    failure = None
    for stream in streams:
        try:
            stream.abandon()
        except WorkerError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def main() -> None:
    # Ctrl-C, a job manager's SIGTERM and a closed terminal are meant for the parent; its end is this process's signal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    memory, places, acks = (int(argument) for argument in sys.argv[1:4])
    try:
        serve(RingReader(memory, places, acks), fps=float(sys.argv[4]))
    except WorkerError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
