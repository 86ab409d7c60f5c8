"""Randomness as a pure function: every draw is determined by the run's seed and by what it is for.

No generator state is carried through a run, so nothing has to be saved to resume it, and the noise of an
environment's action does not depend on which other environments happen to share its batch. Philox4x32-10 is
the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def derive_seed(seed: int, *purpose: int | str) -> int:
    """A 63-bit seed for one purpose of a run, e.g. `derive_seed(run_seed, "shuffle", iteration, epoch)`.

    Different purposes give independent seeds; the same purpose always gives the same one, on any machine.
    """
    text = "/".join([str(int(seed)), *(f"{type(p).__name__}:{p}" for p in purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: int | str) -> torch.Generator:
    """A CPU torch generator seeded for one purpose of a run."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10: `counter` uint64 [4, N] holding 32-bit words, `key` two 32-bit words -> uint64 [4, N] words."""
    c0, c1, c2, c3 = (counter[i] & _LOW for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p0 = _MULTIPLIER_0 * c0
        p1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


class RowNoise:
    """Noise for a batch whose row i is (stream i, step i): the same whatever the other rows are.

    Args:
        seed: seed of the purpose, from `derive_seed`.
        streams: int [B]; which independent stream each row draws from, e.g. the global environment index.
        steps: int [B]; the position in that stream, e.g. the decision count of that environment.
        device: where the returned tensors live (they are computed on the CPU).

    Successive calls on one object draw fresh numbers: the call count is part of the counter.
    """

    def __init__(
        self, seed: int, streams: np.ndarray, steps: np.ndarray, device: torch.device | str | None = None
    ) -> None:
        self._key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        self._streams = np.asarray(streams).astype(np.uint64)
        self._steps = np.asarray(steps).astype(np.uint64)
        self._device = device
        self._calls = 0

    def __len__(self) -> int:
        return len(self._streams)

    def _words(self, count: int) -> np.ndarray:
        """uint64 [B, count] of 32-bit words."""
        blocks = -(-count // 4)
        rows = len(self._streams)
        counter = np.empty((4, rows, blocks), dtype=np.uint64)
        counter[0] = np.arange(blocks, dtype=np.uint64)
        counter[1] = np.uint64(self._calls)
        counter[2] = self._streams[:, None]
        counter[3] = self._steps[:, None]
        self._calls += 1
        words = philox4x32(counter.reshape(4, -1), self._key).reshape(4, rows, blocks)
        return words.transpose(1, 2, 0).reshape(rows, blocks * 4)[:, :count]

    def uniform(self, *shape: int) -> torch.Tensor:
        """float32 [B, *shape] in the open interval (0, 1)."""
        count = math.prod(shape)
        # 23 bits and a half step: every value is exact in float32 and neither 0 nor 1 can occur
        values = ((self._words(count) >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
        return torch.from_numpy(values).reshape(len(self), *shape).to(self._device)

    def normal(self, *shape: int) -> torch.Tensor:
        """float32 [B, *shape], standard normal (Box-Muller in float64)."""
        count = math.prod(shape)
        words = self._words(2 * count).astype(np.float64)
        radius = np.sqrt(-2.0 * np.log((words[:, :count] + 0.5) * 2.0**-32))
        values = radius * np.cos((2.0 * np.pi * 2.0**-32) * words[:, count:])
        return torch.from_numpy(values.astype(np.float32)).reshape(len(self), *shape).to(self._device)
