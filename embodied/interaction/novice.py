"""A policy that plays part of a demonstration, so that the expert can say what should have been done there.

What a policy that was fitted to an expert's episodes does wrong leads it where those episodes never were; labels for
exactly these places mend it (DAgger, Ross et al. 2011).
"""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import torch

from embodied.interaction.deciding import decide
from envs.api import EnvSpec, Observation
from policies import registry
from policies.api import Sampling

_FORWARD_ROWS = 16  # of every pass, so that a decision does not depend on how many environments play


class Novice:
    """The policy saved in `folder`, acting greedily in environments of `spec`, each with its chunk under way.

    Raises ConfigurationError where it does not fit them.
    """

    def __init__(self, folder: Path, spec: EnvSpec) -> None:
        self._policy = registry.load(folder).eval()
        registry.check_interface(self._policy, registry.interface_of(spec))
        self._policy.make_room(spec.instructions)
        self._decided: dict[int, collections.deque[torch.Tensor]] = {}

    def forget(self, row: int) -> None:
        """A new episode begins in `row`."""
        self._decided.pop(row, None)

    def actions(self, observation: Observation, rows: torch.Tensor) -> torch.Tensor:
        """float32 [R, A]: what the policy does next in `rows` int64 [R] of `observation`; one call is one step."""
        asked = torch.tensor([row for row in rows.tolist() if not self._decided.get(row)], dtype=torch.int64)
        if len(asked):
            nowhere = np.zeros(len(asked), dtype=np.int64)  # greedy decisions draw nothing
            output, _ = decide(
                self._policy,
                observation.select(asked),
                nowhere,
                nowhere,
                Sampling(decode="greedy"),
                seed=0,
                forward_rows=_FORWARD_ROWS,
                device="cpu",
            )
            for row, chunk in zip(asked.tolist(), output.actions, strict=True):
                self._decided[row] = collections.deque(chunk)
        return torch.stack([self._decided[row].popleft() for row in rows.tolist()])
