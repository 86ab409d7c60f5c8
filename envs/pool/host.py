"""The processes of a pool: starting them, hearing from them, asking them over their pipes, and their names in messages.

What is done through shared memory, which is the hot path, is in `vector`.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import mmap
import os
import select
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import embodied.errors
from embodied.errors import ConfigurationError, DeadlineExceeded, EmbodiedError, SimulatorError
from envs.api import EnvConfig, EnvSpec
from envs.batch import BatchEnv
from envs.memory import EnvMemory
from envs.pool.process import SimulatorProcess, free_cores
from envs.pool.shared import Shared, pickle_factory, process_count
from envs.pool.worker import CONTROL_COLUMNS, Attached, Failure, Made, Phase, Reply, Setup
from envs.slots import Part, SlottedEnv, refuse_lonely_straggler, split_evenly

logger = logging.getLogger(__name__)

_NOTICE_SECONDS = 10.0
_SPIN_SECONDS = 50e-6


@dataclasses.dataclass(frozen=True)
class _Ended:
    """A process ended instead of answering."""

    how: str


class ProcessHost(SlottedEnv):
    """Simulators in worker processes; every process hosts an even, contiguous share of every slot.

    Subclasses execute chunks and resets, and say what becomes of a process that died (`_replace`).
    """

    def __init__(
        self,
        make_batch: Callable[[int], BatchEnv],
        config: EnvConfig,
        on_progress: Callable[[int, str, float], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_progress = on_progress
        self._factory = pickle_factory(make_batch, config)
        count = process_count(config)
        if count == 0:
            raise ConfigurationError("processes=0 asks for no simulator process: use LocalVectorEnv.")
        if count == 1 and config.straggler_seconds is not None:
            refuse_lonely_straggler(config.straggler_seconds, count)
        size = self.slot_size
        self.parts = [
            Part(process, slot, start, stop)
            for slot in range(self.slots)
            for process, (start, stop) in enumerate(split_evenly(slot * size, (slot + 1) * size, count))
        ]
        cores = len(os.sched_getaffinity(0))
        self._cores = free_cores(count) if count <= cores else [None] * count
        # spinning pays only on a core that nobody else needs; this process needs one
        self._spin_seconds = _SPIN_SECONDS if count < cores else 0.0
        self._shared = Shared((count, self.slots, CONTROL_COLUMNS))
        self._made: EnvSpec | None = None
        self._finalizer = weakref.finalize(self, self._shared.release, os.getpid())
        try:
            for index in range(count):
                self._shared.processes.append(self._start_process(index))
            self._await_start(list(range(count)))
        except BaseException:
            for process in self._shared.processes:
                process.kill()
            self.close()
            raise

    @abc.abstractmethod
    def _replace(self, process: SimulatorProcess, reason: str) -> None:
        """Start a new process in the place of one that died."""

    # ---------------------------------------------------------------- starting

    def _start_process(self, index: int) -> SimulatorProcess:
        shared = self._shared

        def make_setup(crash_fd: int) -> Setup:
            return Setup(
                index=index,
                processes=len(self._cores),
                slots=self.slots,
                slot_size=self.slot_size,
                parts=tuple((p.slot, p.start, p.stop) for p in self._parts_of(index)),
                factory=self._factory,
                core=self._cores[index],
                spin_seconds=self._spin_seconds,
                control_fd=shared.control_fd,
                memory_fd=shared.memory_fd,
                crash_fd=crash_fd,
                doorbell_fd=shared.doorbells[index],
                done_fds=tuple(shared.done),
            )

        return SimulatorProcess(
            make_setup, (shared.control_fd, shared.memory_fd, shared.doorbells[index], *shared.done)
        )

    def _await_start(self, indices: list[int]) -> None:
        """Wait until the processes `indices` are attached to the memory."""
        began = time.monotonic()
        processes = {self._shared.processes[i].connection.fileno(): self._shared.processes[i] for i in indices}
        poller = select.poll()
        for descriptor in processes:
            poller.register(descriptor, select.POLLIN)
        next_notice = began + _NOTICE_SECONDS
        while processes:
            now = time.monotonic()
            if now - began > self.config.start_seconds:
                self._raise_late_start(next(iter(processes.values())))
            if now > next_notice:
                next_notice = now + _NOTICE_SECONDS
                for process in processes.values():
                    logger.info("%s: in phase %r for %.0f s", self._name(process.index), process.phase, now - began)
            wait = min(next_notice - now, began + self.config.start_seconds - now)
            for descriptor, _ in poller.poll(max(1.0, wait * 1000)):
                process = processes[descriptor]
                message = process.receive()
                if self._hear_start(process, message, time.monotonic() - began):
                    poller.unregister(descriptor)
                    del processes[descriptor]

    def _hear_start(self, process: SimulatorProcess, message: Any, seconds: float) -> bool:
        """Take note of a message of a starting process; True once it is ready."""
        if message is None:
            raise SimulatorError(
                f"{process.describe_end()}\n{self._name(process.index)} ended while starting, in phase "
                f"{process.phase!r}."
            )
        if isinstance(message, Failure):
            raise self._error(process.index, message, "while starting")
        if isinstance(message, Phase):
            process.phase = message.name
            self._report(process.index, message.name, seconds)
        if isinstance(message, Made):
            self._take_spec(process.index, message.spec)
            process.send("attach")
        if isinstance(message, Attached):
            self._report(process.index, "ready", seconds)
        return isinstance(message, Attached)

    def _take_spec(self, index: int, spec: EnvSpec) -> None:
        if self._made is None:
            self._made = spec
            size = EnvMemory.size(spec, self.num_envs)
            os.ftruncate(self._shared.memory_fd, size)
            self._use(spec, EnvMemory(spec, self.num_envs, mmap.mmap(self._shared.memory_fd, size)))
        elif spec != self._made:
            raise SimulatorError(
                f"{self._name(index)} made an environment that differs from the others': {spec} instead of "
                f"{self._made}. An adapter's spec may depend on its configuration only."
            )

    def _report(self, index: int, phase: str, seconds: float) -> None:
        logger.debug("%s: %s after %.1f s", self._name(index), phase, seconds)
        if self._on_progress is not None:
            self._on_progress(index, phase, seconds)

    def _raise_late_start(self, process: SimulatorProcess) -> None:
        raise DeadlineExceeded(
            f"{process.dump_stack()}\n{self._name(process.index)} did not start within start_seconds="
            f"{self.config.start_seconds:g}; it was in phase {process.phase!r}, doing the above."
        )

    # ---------------------------------------------------------------- commands over the pipe

    def _ask(self, indices: list[int], commands: list[tuple[Any, ...]], seconds: float) -> list[Any]:
        """Send a command to each of the processes and wait for the answers.

        Raises what went wrong, once all have answered: an answer left in its pipe would be taken for a later one's.
        """
        replies = self._ask_living(indices, commands, seconds)
        for index, command, reply in zip(indices, commands, replies, strict=True):
            if isinstance(reply, _Ended):
                raise SimulatorError(f"{reply.how}\n{self._name(index)} ended while asked to {command[0]}.")
        return replies

    def _ask_living(self, indices: list[int], commands: list[tuple[Any, ...]], seconds: float) -> list[Any]:
        """As `_ask`, with an `_Ended` in the place of the answer of a process that ended over its command."""
        for index in indices:
            process = self._shared.processes[index]
            if process.has_ended():
                self._replace(process, process.describe_end())
        for index, command in zip(indices, commands, strict=True):
            self._shared.processes[index].send(command)
        deadline = time.monotonic() + seconds
        replies: list[Any] = []
        errors: list[EmbodiedError] = []
        for index, command in zip(indices, commands, strict=True):
            process = self._shared.processes[index]
            if not process.connection.poll(max(0.0, deadline - time.monotonic())):
                stack = process.dump_stack()
                process.kill()
                errors.append(
                    DeadlineExceeded(
                        f"{stack}\n{self._name(index)} did not answer {command[0]!r} within {seconds:g} s and was "
                        "killed."
                    )
                )
                continue
            message = process.receive()
            if message is None:
                message = Reply(_Ended(process.describe_end()))
            if isinstance(message, Failure):
                errors.append(self._error(index, message, "while running"))
            replies.append(message.value if isinstance(message, Reply) else None)
        if errors:
            raise errors[0]
        return replies

    def _replace_ended(self, indices: list[int], replies: list[Any]) -> list[int]:
        """Start others in the place of the processes that ended over a command; returns which. Their episodes are
        lost."""
        ended = [(index, reply) for index, reply in zip(indices, replies, strict=True) if isinstance(reply, _Ended)]
        for index, reply in ended:
            self._replace(self._shared.processes[index], reply.how)
        return [index for index, _ in ended]

    def _render_part(self, part: Part, rows: np.ndarray) -> torch.Tensor:
        command = ("render", part.slot, rows)
        return torch.from_numpy(self._ask([part.process], [command], self.config.start_seconds)[0])

    def _save_parts(self) -> list[dict[str, torch.Tensor]]:
        everyone = list(range(len(self._cores)))
        saved = self._ask_living(everyone, [("save",)] * len(everyone), self.config.step_seconds)
        anew = self._replace_ended(everyone, saved)
        for index, states in zip(anew, self._ask(anew, [("save",)] * len(anew), self.config.step_seconds), strict=True):
            saved[index] = states  # of environments that are in no episode
        return [
            {name: torch.from_numpy(value) for name, value in saved[part.process][part.slot].items()}
            for part in self.parts
        ]

    def _load_parts(self, states: list[dict[str, torch.Tensor]]) -> None:
        everyone = list(range(len(self._cores)))
        by_process: list[dict[int, dict[str, np.ndarray]]] = [{} for _ in everyone]
        for part, state in zip(self.parts, states, strict=True):
            by_process[part.process][part.slot] = {name: value.numpy() for name, value in state.items()}
        self._load_processes(everyone, by_process)

    def _load_processes(self, indices: list[int], states: list[dict[int, dict[str, np.ndarray]]]) -> None:
        """Let each of the processes `indices` go on from its state, by slot; the episodes of one that ends over that
        are lost."""
        longest = max(int(state["length"].max()) for slots in states for state in slots.values())
        seconds = self.config.start_seconds + longest * self.config.step_seconds
        self._replace_ended(indices, self._ask_living(indices, [("load", slots) for slots in states], seconds))

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        super().close()
        self._finalizer()

    # ---------------------------------------------------------------- helpers

    def _parts_of(self, process: int) -> list[Part]:
        return [part for part in self.parts if part.process == process]

    def _parts_in(self, slot: int) -> list[Part]:
        count = len(self._cores)
        return self.parts[slot * count : (slot + 1) * count]

    def _name(self, index: int) -> str:
        ranges = ", ".join(f"{part.start}-{part.stop - 1}" for part in self._parts_of(index))
        return f"{self.config.id}: simulator process {index} (environments {ranges})"

    def _error(self, index: int, failure: Failure, when: str) -> EmbodiedError:
        """The worker's exception as one of ours; of the same class where it was one of ours."""
        where = f"{self._name(index)} failed in phase {failure.doing!r} {when}."
        kind = getattr(embodied.errors, failure.kind, None)
        if isinstance(kind, type) and issubclass(kind, EmbodiedError):
            return kind(f"{failure.message}\n{where}")
        return SimulatorError(f"{failure.traceback}{where}")

    def _process_at(self, descriptor: int) -> SimulatorProcess:
        return next(p for p in self._shared.processes if p.connection.fileno() == descriptor)
