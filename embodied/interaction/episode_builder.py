"""An episode in the making, control step by control step."""

from __future__ import annotations

import collections
from typing import Any

import torch

from embodied.datasets import Episode
from envs.api import Observation


class EpisodeBuilder:
    """Copies what is seen and done, since simulators overwrite what they show."""

    def __init__(self) -> None:
        self.steps = 0
        self._rows: dict[str, list[torch.Tensor]] = collections.defaultdict(list)
        self._instruction = ""

    def see(self, observation: Observation, row: int, action: torch.Tensor, label: torch.Tensor) -> None:
        """What `row` shows, float32 [A] what is done about it, and what should be."""
        self._instruction = observation.instruction[row]
        shown = {"state": observation.state, "images": observation.images, "privileged": observation.privileged}
        for name, tensor in shown.items():
            if tensor is not None:
                self._rows[name].append(tensor[row].cpu().clone())
        self._rows["actions"].append(action.clone())
        self._rows["labels"].append(label.clone())

    def feel(self, reward: torch.Tensor, success: torch.Tensor) -> None:
        """What came of it: float32 and bool without dimensions."""
        self.steps += 1
        self._rows["rewards"].append(reward.clone())
        self._rows["success"].append(success.clone())

    def episode(self, assignment: tuple[int, int, int]) -> Episode:
        """All of it."""
        tensors: dict[str, Any] = {name: torch.stack(rows) for name, rows in self._rows.items()}
        return Episode(**tensors, instruction=self._instruction, assignment=assignment)
