"""A gymnasium environment that ends its process at a later step of the worlds of one seed, whenever it is played."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

DEADLY_SEED = 12345
DIES_AT = 3


class Deadly(gymnasium.Env):
    """It counts its steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._count, self._seed = 0, seed
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        if self._seed == DEADLY_SEED and self._count == DIES_AT:
            os._exit(9)
        return np.full(1, self._count, dtype=np.float32), 1.0, False, False, {}


gymnasium.register("Deadly-v0", Deadly, max_episode_steps=5)
