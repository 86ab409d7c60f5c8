"""When a run's next checkpoint is due: after so many iterations, or by the clock, whichever comes first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from embodied.runs.options import CheckpointConfig

_LARGEST_SHARE = 0.05  # of the time, that writing by the clock may take: a 7B model's state fills 80 GB


class CheckpointTurns:
    """Knows when the last one was begun and how long it took. clock: seconds, as `time.monotonic` counts them."""

    def __init__(self, config: CheckpointConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._written = clock()
        self._cost = 0.0

    def due(self, step: int, *, by_clock: bool = True) -> bool:
        """Whether a checkpoint should follow step number `step`. by_clock False: count steps only."""
        return step % self._config.every == 0 or (by_clock and self._is_time())

    def _is_time(self) -> bool:
        minutes = self._config.minutes
        return minutes is not None and self._clock() - self._written >= max(minutes * 60, self._cost / _LARGEST_SHARE)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around a checkpoint's writing; one that fails has had its turn too."""
        began = self._clock()
        try:
            yield
        finally:
            self._written = self._clock()
            self._cost = self._written - began
