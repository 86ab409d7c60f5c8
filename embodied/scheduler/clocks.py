"""Clocks of different nodes brought onto one: how far each is ahead, measured when a run begins and when it ends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable

_EXCHANGES = 15


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """How much another process's `time.perf_counter()` is ahead of ours, in seconds, give or take `error`; found when
    ours said `at`."""

    seconds: float
    error: float
    at: float


def offset_from(begin: float, theirs: float, end: float) -> ClockOffset:
    """From one exchange: asked at `begin`, answered with `theirs`, heard at `end` (Cristian 1989)."""
    return ClockOffset(theirs - (begin + end) / 2, (end - begin) / 2, (begin + end) / 2)


def aligned(moment: float, first: ClockOffset, last: ClockOffset) -> float:
    """A moment of another process's clock on ours; clocks drift evenly between the two measurements."""
    passed = last.at - first.at
    rate = (last.seconds - first.seconds) / passed if passed > 0 else 0.0
    return moment - first.seconds - rate * (moment - first.seconds - first.at)


async def measure(ask: Callable[[], Awaitable[float]], exchanges: int = _EXCHANGES) -> ClockOffset:
    """The offset by the quickest of several exchanges; `ask` returns the other's clock."""
    found = []
    for _ in range(exchanges):
        begin = time.perf_counter()
        theirs = await ask()
        found.append(offset_from(begin, theirs, time.perf_counter()))
    return min(found, key=lambda offset: offset.error)
