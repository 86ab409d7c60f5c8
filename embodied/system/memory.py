"""Host memory of a run: how much it has, how much is left, and whether it grows until there is none.

Where memory runs out the kernel kills a process without a word, hours into a run. Simulators and renderers that leak a
little with every reset are the usual cause, so what is watched is the growth from one iteration to the next.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psutil

GIB = 2**30
MIB = 2**20
_CGROUP = Path("/sys/fs/cgroup")
_EVERY_SECONDS = 5.0  # finding all processes of a run takes milliseconds
_SETTLE_ITERATIONS = 5  # start-up, caches and first buffers are no leak
_READINGS = 200
_ENOUGH = 16  # readings, a quarter of which tell a trend from noise
_GROWTH_BYTES = 64 * MIB
_GROWTH = 0.05
_SHORT = 0.05  # of what there is
_SHORT_BYTES = 512 * MIB


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Bytes. used: by this process and those it started, what they share with others left out. free: that can still be
    had on this machine, within the container's limit if there is one. total: that there is."""

    used: int
    free: int
    total: int


def container_limit(folder: Path = _CGROUP) -> int | None:
    """Bytes that the container may use; None where there is no limit."""
    try:
        text = (folder / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def container_used(folder: Path = _CGROUP) -> int:
    """Bytes that the container uses, files that can be dropped from memory left out. Raises OSError."""
    used = int((folder / "memory.current").read_text())
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return used - int(fields.get("inactive_file", 0))


def machine_memory(folder: Path = _CGROUP) -> tuple[int, int]:
    """(free, total) bytes of this machine or container."""
    found = psutil.virtual_memory()
    limit = container_limit(folder)
    if limit is None or limit >= found.total:
        return found.available, found.total
    try:
        left = limit - container_used(folder)
    except (OSError, ValueError):
        left = limit
    return max(0, min(found.available, left)), limit


def own_bytes(process: psutil.Process) -> int:
    """Bytes in memory that the process shares with no other."""
    info = process.memory_info()
    return max(0, info.rss - info.shared)


def host_memory() -> HostMemory:
    """As it is now."""
    me = psutil.Process()
    used = 0
    for process in (me, *me.children(recursive=True)):
        try:
            used += own_bytes(process)
        except psutil.Error:
            continue  # it has ended meanwhile
    return HostMemory(used, *machine_memory())


class MemoryWatch:
    """Reads the memory between iterations, and warns before there is none left.

    read, now: where readings and time come from.
    """

    def __init__(self, read: Callable[[], HostMemory] = host_memory, now: Callable[[], float] = time.monotonic) -> None:
        self._read, self._now = read, now
        self._first: int | None = None
        self._last = -float("inf")
        self._readings: collections.deque[tuple[int, int]] = collections.deque(maxlen=_READINGS)

    def note(self, iteration: int, left: int) -> tuple[dict[str, float], tuple[str, ...]]:
        """Metrics and warnings after `iteration`, with `left` more to come; none where the last reading is recent."""
        if self._now() - self._last < _EVERY_SECONDS:
            return {}, ()
        self._last = self._now()
        memory = self._read()
        if self._first is None:
            self._first = iteration
        if iteration - self._first >= _SETTLE_ITERATIONS:
            self._readings.append((iteration, memory.used))
        metrics = {"host/memory_gib": memory.used / GIB, "host/memory_free_gib": memory.free / GIB}
        warnings = (self._short(memory), self._growing(memory, left))
        return metrics, tuple(warning for warning in warnings if warning)

    @staticmethod
    def _short(memory: HostMemory) -> str | None:
        if memory.free >= max(_SHORT * memory.total, _SHORT_BYTES):
            return None
        return (
            f"host memory is short: {memory.free / GIB:.1f} of {memory.total / GIB:.1f} GiB are free, this run has "
            f"{memory.used / GIB:.1f}. Where it runs out the kernel ends processes; `resume` goes on with fewer other "
            "programs running, or start again with fewer environments or workers."
        )

    def _growing(self, memory: HostMemory, left: int) -> str | None:
        if len(self._readings) < _ENOUGH:
            return None
        readings = list(self._readings)
        size = len(readings) // 4
        # what is used goes up and down within an iteration; what is never given back is its lower bound
        quarters = [readings[index * size : (index + 1) * size] for index in range(4)]
        lowest = [min(used for _, used in quarter) for quarter in quarters]
        middle = [statistics.mean(iteration for iteration, _ in quarter) for quarter in quarters]
        grown = lowest[-1] - lowest[0]
        steadily = all(later > earlier for earlier, later in itertools.pairwise(lowest))
        if not steadily or grown < max(_GROWTH_BYTES, _GROWTH * lowest[0]):
            return None
        an_iteration = grown / (middle[-1] - middle[0])
        until = memory.free / an_iteration
        if until >= left:
            return None
        return (
            f"host memory grows by {an_iteration / MIB:.1f} MiB an iteration: the {memory.free / GIB:.1f} GiB that are "
            f"free are used up after about {until:,.0f} more, and {left:,} are to come. `resume` from a checkpoint "
            "begins with fresh processes; env.growth_gib starts simulator processes anew that grow."
        )
