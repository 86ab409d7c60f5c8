"""The order in which problems are asked: a pure function of (seed, position), so that nothing is saved to resume it."""

from __future__ import annotations

import functools

import numpy as np


class ProblemOrder:
    """Every problem once an epoch, each epoch in another order.

    Positions count the problems asked since the start of training, without end; `position // count` is the epoch.
    """

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError(f"an order needs at least one problem; there are {count}")
        self.count = count
        self._epoch = functools.lru_cache(maxsize=2)(functools.partial(epoch_order, count, seed))

    def take(self, position: int, number: int) -> list[int]:
        """Indices of the `number` problems from `position` on; runs over into the next epoch."""
        places = range(position, position + number)
        return [int(self._epoch(place // self.count)[place % self.count]) for place in places]


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """int64 [count], the permutation of one epoch; the same on any machine."""
    from embodied.random import derive_seed  # loads torch, which grading processes do without

    return np.random.Generator(np.random.Philox(derive_seed(seed, "problem order", epoch))).permutation(count)
