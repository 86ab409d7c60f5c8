"""Several recordings read as one: say, demonstrations with little noise and more with much of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from embodied.datasets.dataset import EpisodeDataset
from embodied.datasets.episode import Episode
from embodied.datasets.lerobot import LeRobotDataset
from embodied.errors import AssetError
from envs.api import EnvSpec


class JoinedDataset(EpisodeDataset):
    """The episodes of `parts`, one dataset after another.

    What decides how an episode is read must be equal: actions, cameras, sizes and control rate. Tasks may differ;
    instructions are united. Bounds of actions must be equal where they are an environment's; those of a LeRobot dataset
    are what occurs in it, and widen to hold all parts. Folder, id and origin are the first part's.

    Raises AssetError where parts do not fit together, naming what differs.
    """

    def __init__(self, parts: Sequence[EpisodeDataset]) -> None:
        first = parts[0]
        for part in parts[1:]:
            _check_alike(first, part)
        self.parts = tuple(parts)
        self.folder, self.fps, self.origin = first.folder, first.fps, first.origin
        united = dict.fromkeys(text for part in parts for text in part.spec.instructions)
        actions = [part.spec.action for part in parts]
        low, high = (
            tuple(map(widest, zip(*bounds, strict=True)))
            for widest, bounds in ((min, [a.low for a in actions]), (max, [a.high for a in actions]))
        )
        action = dataclasses.replace(first.spec.action, low=low, high=high)
        self.spec: EnvSpec = dataclasses.replace(first.spec, action=action, instructions=tuple(united))
        self._places = [(part, index) for part in parts for index in range(len(part))]

    @property
    def where(self) -> str:
        return " + ".join(part.where for part in self.parts)

    def __len__(self) -> int:
        return len(self._places)

    def lengths(self) -> list[int]:
        return [steps for part in self.parts for steps in part.lengths()]

    def __getitem__(self, index: int) -> Episode:
        part, place = self._places[index]
        return part[place]

    def numbers(self, index: int) -> Episode:
        part, place = self._places[index]
        return part.numbers(place)


def _check_alike(first: EpisodeDataset, other: EpisodeDataset) -> None:
    observed = any(isinstance(dataset, LeRobotDataset) for dataset in (first, other))

    def compared(dataset: EpisodeDataset) -> dict[str, Any]:
        action, spec = dataset.spec.action, dataset.spec
        return {
            "numbers in an action": action.dim,
            "kind of action": action.kind.value,
            "bounds of actions": "as observed" if observed else f"{list(action.low)} to {list(action.high)}",
            "choices": action.choices,
            "numbers of state": spec.state_dim,
            "numbers of privileged state": spec.privileged_dim,
            "cameras": ", ".join(f"{c.name} {c.height}x{c.width}" for c in spec.cameras) or "none",
            "control steps a second": dataset.fps,
        }

    ours, theirs = compared(first), compared(other)
    faults = [f"{name} {theirs[name]}, not {ours[name]}" for name in ours if ours[name] != theirs[name]]
    if faults:
        raise AssetError(
            f"{other.where} cannot be joined to {first.where}: {'; '.join(faults)}. Record both with the same "
            "environment options."
        )
