"""What runs in a simulator process: make the simulators, then execute chunks in shared memory until told to stop.

Chunks and resets are asked for by numbers in shared memory plus a doorbell (an eventfd); rare commands (render,
save, load) and everything said while starting go over a pipe. Nothing heavy is imported before the parent can be
told about it. Linux only: memfd, eventfd and signal-driven I/O.
"""

from __future__ import annotations

import dataclasses
import enum
import faulthandler
import fcntl
import gc
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

# columns of the control numbers, int64 [processes, slots, CONTROL_COLUMNS]; a row is one cache line
REQUESTED, DONE, OPERATION, STEPS, SPENT = range(5)  # SPENT: nanoseconds of the latest chunk
CONTROL_COLUMNS = 8


class Operation(enum.IntEnum):
    """What a request in shared memory asks for."""

    STEP = 0
    RESET = 1


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything a worker is told first. `parts` are (slot, start, stop) of the environments it hosts; `factory` is
    the pickled (make_batch, config); `core` is the CPU to run on, if any."""

    index: int
    processes: int
    slots: int
    slot_size: int
    parts: tuple[tuple[int, int, int], ...]
    factory: bytes
    core: int | None
    spin_seconds: float
    control_fd: int
    memory_fd: int
    crash_fd: int
    doorbell_fd: int
    done_fds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Phase:
    """The worker now does this."""

    name: str


@dataclasses.dataclass(frozen=True)
class Made:
    """The simulators exist; `spec` is what they are."""

    spec: Any


@dataclasses.dataclass(frozen=True)
class Attached:
    """The worker sees the shared memory and waits for requests."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """Answer to a command."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception in the worker; `slot` where a chunk or reset failed, None otherwise."""

    doing: str
    slot: int | None
    kind: str
    message: str
    traceback: str


class PipeClosed(Exception):
    """The other side of the pipe is gone; a class of its own, since simulators raise EOFError and OSError too."""


def send_message(connection: Connection, message: Any) -> None:
    """Plain pickling: `Connection.send` would pass tensors by file descriptor once torch is imported.

    Raises PipeClosed.
    """
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        connection.send_bytes(data)
    except OSError as error:
        raise PipeClosed from error


def receive_message(connection: Connection) -> Any:
    """What the other side of the pipe sent. Raises PipeClosed."""
    try:
        data = connection.recv_bytes()
    except (EOFError, OSError) as error:
        raise PipeClosed from error
    return pickle.loads(data)


def main(connection_fd: int, lifeline_fd: int) -> None:
    """Entry point of the process."""
    # Ctrl-C, a job manager's SIGTERM and a closed terminal reach the whole group; they are the parent's affair
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent(lifeline_fd)
    connection = Connection(connection_fd)
    setup = receive_message(connection)
    faulthandler.enable(file=setup.crash_fd)
    faulthandler.register(signal.SIGUSR1, file=setup.crash_fd, all_threads=True)
    if setup.core is not None:
        os.sched_setaffinity(0, {setup.core})
    worker = _Worker(setup, connection)
    try:
        worker.start()
        worker.serve()
    except PipeClosed:
        worker.close()
    except Exception as error:
        send_message(connection, _failure(worker.doing, None, error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of renderers at interpreter exit only make noise


def _die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel end this process as soon as the parent's end of the pipe closes, even if the parent was killed
    and even if this process is stuck in a simulator: SIGIO, whose default action is to terminate."""
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(lifeline_fd, select.POLLIN)
    if poller.poll(0):  # it closed before the signal was armed
        os._exit(1)


def _failure(doing: str, slot: int | None, error: Exception) -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(doing, slot, type(error).__name__, str(error), text)


class _Worker:
    def __init__(self, setup: Setup, connection: Connection) -> None:
        self._setup = setup
        self._connection = connection
        self._steppers: dict[int, Any] = {}
        self._memories: dict[int, Any] = {}
        self._fence = threading.Lock()
        self.doing = "import"

    def _enter(self, phase: str) -> None:
        self.doing = phase
        send_message(self._connection, Phase(phase))

    def start(self) -> None:
        """Import, build, attach to the memory."""
        setup = self._setup
        self._enter("import")
        import numpy as np
        import torch

        from envs.batch import require_sound
        from envs.memory import EnvMemory

        torch.set_num_threads(1)
        self._make_batch, self._config = pickle.loads(setup.factory)
        self._enter("build")
        batches = {
            slot: require_sound(self._make_batch(stop - start), stop - start) for slot, start, stop in setup.parts
        }
        spec = next(iter(batches.values())).spec
        send_message(self._connection, Made(spec))
        receive_message(self._connection)  # the parent has sized the memory
        self._enter("attach")
        num_envs = setup.slots * setup.slot_size
        control = np.frombuffer(mmap.mmap(setup.control_fd, 0), dtype=np.int64)
        control = control.reshape(setup.processes, setup.slots, CONTROL_COLUMNS)
        self._control = control[setup.index]
        self._everyone = [(control[:, slot, REQUESTED], control[:, slot, DONE]) for slot in range(setup.slots)]
        self._handled = self._control[:, REQUESTED].tolist()
        memory = EnvMemory(spec, num_envs, mmap.mmap(setup.memory_fd, EnvMemory.size(spec, num_envs)))
        for slot, start, stop in setup.parts:
            self._memories[slot] = memory.rows(start, stop, slot * setup.slot_size)
            self._adopt(slot, batches[slot], start)
        # what exists now lives as long as the process: garbage collection need not look at it again and again
        gc.collect()
        gc.freeze()
        send_message(self._connection, Attached())

    def _adopt(self, slot: int, batch: Any, first_env: int) -> None:
        from envs.stepper import ChunkStepper

        self._steppers[slot] = ChunkStepper(batch, self._config, self._memories[slot], first_env)

    def serve(self) -> None:
        """Execute requests and commands until the parent closes the pipe."""
        doorbell, pipe = self._setup.doorbell_fd, self._connection.fileno()
        poller = select.poll()
        poller.register(doorbell, select.POLLIN)
        poller.register(pipe, select.POLLIN)
        spin = self._setup.spin_seconds
        while True:
            self.doing = "wait"
            events = poller.poll(0)
            if not events and spin:
                until = time.perf_counter() + spin
                while not events and time.perf_counter() < until:
                    events = poller.poll(0)
            for descriptor, _ in events or poller.poll():
                if descriptor == doorbell:
                    os.eventfd_read(doorbell)
                    self._execute_requests()
                else:
                    self._execute_command(*receive_message(self._connection))

    def _execute_requests(self) -> None:
        while True:
            requested = self._control[:, REQUESTED].tolist()
            open_requests = [(r, slot) for slot, r in enumerate(requested) if r != self._handled[slot]]
            if not open_requests:
                return
            number, slot = min(open_requests)  # numbers grow: the oldest first
            self._handled[slot] = number
            self._execute_request(number, slot)

    def _execute_request(self, number: int, slot: int) -> None:
        control = self._control[slot]
        stepper, mask = self._steppers[slot], self._memories[slot].mask
        try:
            if control[OPERATION] == Operation.RESET:
                self.doing = "reset"
                stepper.reset(mask.nonzero()[0])
            else:
                self.doing = "step"
                began = time.perf_counter_ns()
                stepper.step(int(control[STEPS]), mask.nonzero()[0] if mask.any() else None)
                control[SPENT] = time.perf_counter_ns() - began
        except Exception as error:
            send_message(self._connection, _failure(self.doing, slot, error))
            return
        control[DONE] = number
        # Only the last process wakes the parent. Every process writes its number before it reads the others', with a
        # locked operation in between that keeps this order on x86; should two nevertheless miss each other, the
        # parent looks by itself a little later.
        with self._fence:
            requested, done = self._everyone[slot]
            unfinished = (requested != done).any()
        if not unfinished:
            os.eventfd_write(self._setup.done_fds[slot], 1)

    def _execute_command(self, name: str, *arguments: Any) -> None:
        self.doing = name
        commands = {"render": self._render, "save": self._save, "load": self._load}
        try:
            message: Reply | Failure = Reply(commands[name](*arguments))
        except Exception as error:
            message = _failure(name, None, error)
        send_message(self._connection, message)

    def _render(self, slot: int, rows: Any) -> Any:
        return self._steppers[slot].render(rows).cpu().numpy()

    def _save(self) -> dict[int, dict[str, Any]]:
        return {
            slot: {name: value.numpy() for name, value in stepper.state_dict().items()}
            for slot, stepper in self._steppers.items()
        }

    def _load(self, states: dict[int, dict[str, Any]]) -> None:
        import torch

        for slot, start, stop in self._setup.parts:
            if not self._steppers[slot].batch.spec.exact_reset:
                self._steppers[slot].close()
                self._adopt(slot, self._make_batch(stop - start), start)
            state = {name: torch.from_numpy(value) for name, value in states[slot].items()}
            self._steppers[slot].load_state_dict(state)

    def close(self) -> None:
        for stepper in self._steppers.values():
            stepper.close()
