"""Which format a folder is in, and several folders as one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.folder import FolderDataset
from embodied.datasets.joined import JoinedDataset
from embodied.datasets.layout import DESCRIPTION
from embodied.datasets.lerobot import INFO, LeRobotDataset
from embodied.errors import AssetError


def open_dataset(folder: str | Path) -> EpisodeDataset:
    """The dataset in `folder`: one of ours, or LeRobot's of version 2 or 3. Raises AssetError for anything else."""
    folder = Path(folder).expanduser()
    if (folder / DESCRIPTION).is_file():
        return FolderDataset(folder)
    if (folder / INFO).is_file():
        return LeRobotDataset(folder)
    if not folder.is_dir():
        raise AssetError(f"there is no dataset folder {folder}; record one with `embodied demos ENV --out {folder}`.")
    raise AssetError(
        f"{folder} holds no dataset: neither {DESCRIPTION} (ours) nor {INFO} (LeRobot) is in it. RLDS datasets must be "
        "converted to LeRobot's format first."
    )


def open_datasets(folders: Sequence[str | Path]) -> EpisodeDataset:
    """The datasets in `folders` as one, in this order. Raises AssetError for a folder named twice, and as
    `open_dataset` and `JoinedDataset` do."""
    resolved = [Path(folder).expanduser().resolve() for folder in folders]
    for folder, place in zip(folders, resolved, strict=True):
        if resolved.count(place) > 1:
            raise AssetError(f"the dataset folder {folder} is named more than once; name each once.")
    parts = [open_dataset(folder) for folder in folders]
    return parts[0] if len(parts) == 1 else JoinedDataset(parts)
