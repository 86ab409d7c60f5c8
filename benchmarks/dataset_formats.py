"""Where pictures of demonstrations are kept: raw and mapped, PNG inside parquet, MP4; size and reading speed.

    python benchmarks/dataset_formats.py data/maniskill_PushCube-v1

Writes copies of a dataset of ours in LeRobot's format with images and with videos, then reads all three, in turns:
every episode once, and single steps at random places as a shuffled epoch does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from embodied.datasets import EpisodeDataset, open_dataset
from embodied.datasets.lerobot import LeRobotDataset, _read_video
from embodied.datasets.lerobot_export import Pictures, export_lerobot

_ROUNDS = 5
_RANDOM_STEPS = {"raw": 2000, "png": 500, "mp4": 10}


def every_episode(dataset: EpisodeDataset) -> int:
    """Read all pictures; returns how many steps."""
    return sum(len(episode) for episode in dataset if episode.images.sum() > 0)


def raw_steps(dataset: EpisodeDataset, places: list[tuple[int, int]]) -> None:
    """Copy single pictures out of the mapped files."""
    for episode, step in places:
        dataset[episode].images[step].clone()


def png_steps(dataset: LeRobotDataset, places: list[tuple[int, int]]) -> None:
    """Decode single cells."""
    from embodied.datasets.lerobot import _decode

    for episode, step in places:
        place = dataset._places[episode]
        for name in dataset._cameras:
            cell = dataset._table(place.data)[name][_first(dataset, episode) + step].as_py()
            _decode(cell, dataset.folder, place.data)


def mp4_steps(dataset: LeRobotDataset, places: list[tuple[int, int]]) -> None:
    """Seek to single frames."""
    for episode, step in places:
        for path, start in dataset._places[episode].videos.values():
            _read_video(path, start + step / dataset.fps, 1, dataset.fps)


def _first(dataset: EpisodeDataset, episode: int) -> int:
    return sum(dataset.lengths()[:episode])


def _size(folder: Path) -> int:
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.suffix in (".safetensors", ".parquet", ".mp4") and "preview" not in path.name
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    source = open_dataset(parser.parse_args().dataset)
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"raw": source.folder, "png": Path(scratch) / "png", "mp4": Path(scratch) / "mp4"}
        export_lerobot(source, folders["png"], Pictures.IMAGE)
        export_lerobot(source, folders["mp4"], Pictures.VIDEO)
        sets = {name: open_dataset(folder) for name, folder in folders.items()}
        readers = {"raw": raw_steps, "png": png_steps, "mp4": mp4_steps}
        generator = torch.Generator().manual_seed(0)
        whole: dict[str, list[float]] = {name: [] for name in sets}
        single: dict[str, list[float]] = {name: [] for name in sets}
        steps = sum(source.lengths())
        for _ in range(_ROUNDS):
            for name, dataset in sets.items():
                whole[name].append(steps / _seconds(lambda dataset=dataset: every_episode(dataset)))
                places = []
                for _ in range(_RANDOM_STEPS[name]):
                    episode = int(torch.randint(len(source), (), generator=generator))
                    places.append((episode, int(torch.randint(source.lengths()[episode], (), generator=generator))))
                read = readers[name]
                single[name].append(len(places) / _seconds(lambda d=dataset, r=read, p=places: r(d, p)))
        camera = source.spec.cameras[0]
        print(
            f"{len(source)} episodes, {steps} steps, {len(source.spec.cameras)} x {camera.height}x{camera.width} pixels"
        )
        print("| pictures | bytes a step | steps/s, whole episodes | steps/s, random places |")
        print("|---|---|---|---|")
        for name in sets:
            rates = [statistics.median(rates[name]) for rates in (whole, single)]
            print(f"| {name} | {_size(folders[name]) / steps:,.0f} | {rates[0]:,.0f} | {rates[1]:,.0f} |")


if __name__ == "__main__":
    main()
