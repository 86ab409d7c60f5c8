"""How long chunks take, and a report of those that take far longer than is usual."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

logger = logging.getLogger(__name__)

SLOW_FACTOR = 10.0
"""A chunk is slow that takes so many times the usual time ..."""
SLOW_SECONDS = 0.2
"""... and at least so long: shorter ones are the operating system's hiccups."""

_LEARNT_FROM = 10  # chunks of a slot before its usual time is known
_WEIGHT = 0.05  # of a new chunk in what is usual
_REPORT_SECONDS = 10.0  # between two reports


class Pace:
    """The usual time of a chunk, by slot, and the exceptions to it.

    Args:
        names: what to call each process in a report.
        slots: how many there are.

    Attributes:
        slow_chunks: int64 [processes]: how many slow chunks each has had.
    """

    def __init__(self, names: Sequence[str], slots: int) -> None:
        self.slow_chunks = np.zeros(len(names), dtype=np.int64)
        self._names = names
        self._usual = [0.0] * slots  # nanoseconds of the slowest process
        self._seen = [0] * slots
        self._silent_until = 0.0

    def usual_seconds(self, slot: int) -> float:
        """What a chunk usually takes the slowest process; 0 before the first."""
        return self._usual[slot] / 1e9

    def note(self, slot: int, spent: np.ndarray, left: np.ndarray) -> None:
        """Take note of a chunk. spent: int64 [processes], nanoseconds; left: bool [processes], not part of it."""
        longest = int(spent.max())
        self._seen[slot] += 1
        usual = self._usual[slot]
        if self._seen[slot] > _LEARNT_FROM and longest > SLOW_FACTOR * usual and longest > SLOW_SECONDS * 1e9:
            slow = np.flatnonzero((spent > SLOW_FACTOR * usual) & (spent > SLOW_SECONDS * 1e9) & ~left)
            self._report(slow.tolist(), spent, usual)
            return
        self._usual[slot] = longest if not usual else usual + _WEIGHT * (longest - usual)

    def _report(self, slow: list[int], spent: np.ndarray, usual: float) -> None:
        self.slow_chunks[slow] += 1
        now = time.monotonic()
        if not slow or now < self._silent_until:
            return
        self._silent_until = now + _REPORT_SECONDS
        for index in slow:
            logger.warning(
                "%s is slow: a chunk took %.2f s where %.3f s are usual (slow chunk %d of this process). The others "
                "waited for it; env.straggler_seconds lets them go on.",
                self._names[index],
                spent[index] / 1e9,
                usual / 1e9,
                self.slow_chunks[index],
            )
