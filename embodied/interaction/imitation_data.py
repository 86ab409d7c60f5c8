"""Demonstrations as a policy learns from them: prepared once, kept in mapped files, cut into chunks on the way out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tensordict import TensorDict

from embodied.datasets import Episode, EpisodeDataset
from embodied.errors import CheckpointError
from embodied.random import generator
from envs.api import Observation
from policies.api import Policy
from policies.vla.policy import VLAPolicy

_PREPARED_ROWS = 64


def split_episodes(count: int, held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the episodes to learn from and of those held out (at least one of either where there are two)."""
    wanted = 0 if held_out == 0 or count < 2 else min(count - 1, max(1, round(held_out * count)))
    order = torch.randperm(count, generator=generator(seed, "held out")).tolist()
    return sorted(order[wanted:]), sorted(order[:wanted])


class Demonstrations:
    """Every step of some episodes as a sample: what the policy sees there, and the C labels that follow.

    Samples are numbered 0 to N - 1 in the order of the episodes. What `policy.prepare` makes of the observations lies
    in files in `folder` that are mapped into memory, so a dataset may be larger than that. inputs [N]: all of them.
    """

    def __init__(self, inputs: TensorDict, labels: torch.Tensor, left: torch.Tensor, chunk: int) -> None:
        self.inputs, self._labels, self._left, self._chunk = inputs, labels, left, chunk

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, rows: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor]:
        """Inputs [B], labels float32 [B, C, A] and valid bool [B, C] of the samples `rows` int64 [B].

        valid is False past an episode's end, where the last label is repeated.
        """
        ahead = torch.arange(self._chunk)[None]
        left = self._left[rows][:, None]
        where = rows[:, None] + torch.minimum(ahead, left)
        return self.inputs[rows], self._labels[where], ahead <= left


def prepare(
    policy: Policy,
    dataset: EpisodeDataset,
    episodes: list[int],
    folder: Path,
    on_progress: Callable[[int], None] = lambda episodes: None,
) -> Demonstrations:
    """Read `episodes` of `dataset`, verified, and keep what the policy makes of them in files in `folder`.

    on_progress: called with the number of episodes read so far. Raises AssetError for a damaged episode and
    CheckpointError where the files cannot be written.
    """
    lengths = [dataset.lengths()[index] for index in episodes]
    total = sum(lengths)
    stored: dict[str, torch.Tensor] = {}
    labels, left, done = [], [], 0
    for count, index in enumerate(episodes, start=1):
        episode = dataset[index]
        steps = len(episode)
        labels.append(episode.labels)
        left.append(torch.arange(steps - 1, -1, -1))
        for rows in torch.arange(steps).split(_PREPARED_ROWS):
            inputs = policy.prepare(_observation(episode, slice(int(rows[0]), int(rows[-1]) + 1)))
            for name in inputs.keys():  # noqa: SIM118 (not a dict)
                if name not in stored:
                    stored[name] = _mapped(folder / f"{name}.bin", (total, *inputs[name].shape[1:]), inputs[name].dtype)
                stored[name][done + rows] = inputs[name].cpu()
        done += steps
        on_progress(count)
    return Demonstrations(TensorDict(stored, batch_size=[total]), torch.cat(labels), torch.cat(left), policy.spec.chunk)


def _observation(episode: Episode, rows: slice) -> Observation:
    count = len(range(*rows.indices(len(episode))))
    return Observation(
        state=episode.state[rows],
        instruction_ids=torch.zeros(count, dtype=torch.int64),
        instruction=[episode.instruction] * count,
        images=None if episode.images is None else episode.images[rows],
        privileged=None if episode.privileged is None else episode.privileged[rows],
    )


def _mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor in a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        size = math.prod(shape)
        with path.open("wb") as file:
            file.truncate(size * dtype.itemsize)
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} could not be written: {error}. Free some space or choose another run.root."
        ) from error


@contextlib.contextmanager
def whole_pictures(policy: Policy) -> Iterator[None]:
    """Leave out the centre crop that the policy acts with: what is fitted is cropped at random instead."""
    if not isinstance(policy, VLAPolicy):
        yield
        return
    options = policy.pictures.options
    policy.pictures.options = dataclasses.replace(options, crop_area=1.0)
    try:
        yield
    finally:
        policy.pictures.options = options
