"""The reading contract: a sequence of episodes of one kind of environment, whatever the format on disk."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embodied.datasets.episode import Episode
from envs.api import EnvSpec


class EpisodeDataset(abc.ABC):
    """Episodes in a fixed order.

    spec: sizes, cameras, instructions and versions of what was recorded. fps: control steps a second.
    origin: how the recording was made (environment options, expert, seed), as far as the format says.
    """

    folder: Path
    spec: EnvSpec
    fps: float
    origin: dict[str, Any]

    @property
    def where(self) -> str:
        """The folder, or folders, for messages."""
        return str(self.folder)

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many episodes there are."""

    @abc.abstractmethod
    def lengths(self) -> list[int]:
        """Steps of every episode, known without reading them."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Episode:
        """Read and verify one episode. Raises AssetError naming the file and what is wrong with it."""

    @abc.abstractmethod
    def numbers(self, index: int) -> Episode:
        """The episode without its pictures, where leaving them out is cheaper."""

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))


def demonstrated_numbers(
    dataset: EpisodeDataset, episodes: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """`labels` float32 [N, A], `state` float32 [N, S] and, where there is any, `privileged` float32 [N, P] of all steps
    of the given episodes (None: all)."""
    chosen = [dataset.numbers(index) for index in (range(len(dataset)) if episodes is None else episodes)]
    labels = np.concatenate([episode.labels.numpy() for episode in chosen])
    state = np.concatenate([episode.state.numpy() for episode in chosen])
    known = [episode.privileged.numpy() for episode in chosen if episode.privileged is not None]
    return labels, state, np.concatenate(known) if len(known) == len(chosen) else None
