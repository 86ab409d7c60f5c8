"""Demonstrations on disk: recorded episodes, written atomically, read back verified; LeRobot datasets in and out.

A leaf: knows nothing of simulators, policies or training. `open_dataset(folder)` reads any of the formats,
`open_datasets(folders)` several as one.
"""

from __future__ import annotations

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.episode import Episode
from embodied.datasets.folder import FolderDataset
from embodied.datasets.opening import open_dataset, open_datasets
from embodied.datasets.writer import DatasetWriter, require_same_origin

__all__ = [
    "DatasetWriter",
    "Episode",
    "EpisodeDataset",
    "FolderDataset",
    "open_dataset",
    "open_datasets",
    "require_same_origin",
]
