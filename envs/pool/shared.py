"""What a pool holds besides its logic: processes, memory, doorbells, and what is sent to a starting process."""

from __future__ import annotations

import math
import mmap
import os
import pickle
from collections.abc import Callable

import numpy as np

from embodied.errors import ConfigurationError
from envs.api import EnvConfig
from envs.batch import BatchEnv
from envs.pool.process import SimulatorProcess, close_all
from envs.pool.worker import DONE, REQUESTED

_CLOSE_SECONDS = 5.0  # for simulators to close properly
_BUSY_SECONDS = 0.5  # the same if some are in the middle of a chunk, which an interrupted run need not wait for


def process_count(config: EnvConfig) -> int:
    """How many simulator processes `config` means: as many as there are cores, but none without an environment."""
    if config.processes is not None:
        return config.processes
    return min(len(os.sched_getaffinity(0)), config.num_envs // config.slots)


class Shared:
    """Processes, memory and doorbells: what has to be released, kept apart so that a finalizer can hold it."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.processes: list[SimulatorProcess] = []
        self.memory_fd = os.memfd_create("embodied-envs")
        self.control_fd = os.memfd_create("embodied-control")
        size = math.prod(shape) * np.dtype(np.int64).itemsize
        os.ftruncate(self.control_fd, size)
        self.control = np.frombuffer(mmap.mmap(self.control_fd, size), dtype=np.int64).reshape(shape)
        self.doorbells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(shape[0])]
        self.done = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(shape[1])]

    def release(self, owner: int) -> None:
        """Stop the processes and close the descriptors; a forked copy of this process leaves them alone."""
        if os.getpid() != owner:
            return
        busy = (self.control[..., REQUESTED] != self.control[..., DONE]).any()
        close_all(self.processes, _BUSY_SECONDS if busy else _CLOSE_SECONDS)
        # the memory itself goes when the last view of it does: results that someone still holds stay readable
        for descriptor in (self.memory_fd, self.control_fd, *self.doorbells, *self.done):
            os.close(descriptor)


def pickle_factory(make_batch: Callable[[int], BatchEnv], config: EnvConfig) -> bytes:
    """(make_batch, config) for a worker. Raises ConfigurationError where a worker could not import it."""
    function = make_batch
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        raise ConfigurationError(
            f"The environment's factory {function!r} is defined in the main script, which simulator processes do not "
            "import. Move it into a module, or pass processes=0."
        )
    try:
        return pickle.dumps((make_batch, config))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"The environment's factory cannot be sent to simulator processes: {error}. It must be a function of a "
            "module (or functools.partial of one), or pass processes=0."
        ) from error
