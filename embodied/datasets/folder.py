"""Reading a dataset of ours. Files are mapped, not copied: a picture costs memory only when it is looked at."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.episode import Episode, check_episode
from embodied.datasets.layout import DESCRIPTION, Entry, file_hash, read_description, read_index, spec_from_json
from embodied.errors import AssetError


class FolderDataset(EpisodeDataset):
    """The kept episodes of `folder`, by attempt number. Raises AssetError where it is no dataset, or an empty one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        values = read_description(folder)
        try:
            self.spec = spec_from_json(values["spec"])
            self.fps = float(values["fps"])
            self.origin = dict(values["origin"])
        except (KeyError, TypeError, ValueError) as error:
            raise AssetError(f"{folder / DESCRIPTION} is damaged ({type(error).__name__}: {error}).") from error
        self.entries: list[Entry] = [entry for entry in read_index(folder) if entry.kept]
        if not self.entries:
            raise AssetError(f"{folder} holds no episodes yet; record some with `embodied demos`.")
        self._verified: set[int] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def lengths(self) -> list[int]:
        return [entry.steps for entry in self.entries]

    def __getitem__(self, index: int) -> Episode:
        entry = self.entries[index]
        path = self.folder / entry.file
        try:
            # hashing reads the whole file; once is enough for one process
            if index not in self._verified and file_hash(path) != entry.sha256:
                raise AssetError(f"{path} is damaged: its SHA-256 is not the one in the index. Record it again.")
            episode = Episode(
                **safetensors.torch.load_file(path), instruction=entry.instruction, assignment=entry.assignment
            )
        except (OSError, TypeError, safetensors.SafetensorError) as error:
            raise AssetError(f"{path} cannot be read as an episode ({type(error).__name__}: {error}).") from error
        if index not in self._verified:
            check_episode(episode, self.spec, str(path))
            if len(episode) != entry.steps:
                raise AssetError(f"{path} has {len(episode)} steps; the index says {entry.steps}.")
            self._verified.add(index)
        return episode

    def numbers(self, index: int) -> Episode:
        return self[index]
