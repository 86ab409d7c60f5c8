"""The parent's handle of one simulator process: start it, hear from it, say how it ended.

The interpreter is started afresh, without importing the user's main script, so a pool works from notebooks, pytest,
Ray workers and scripts without a main guard alike.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from envs.pool.worker import PipeClosed, Setup, receive_message, send_message

_STACK_SECONDS = 1.0
_END_SECONDS = 5.0
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envs.pool.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class SimulatorProcess:
    """One running worker. `shared_fds` are the descriptors in `setup` besides the crash log's, which is its own."""

    def __init__(self, make_setup: Any, shared_fds: Sequence[int]) -> None:
        self.connection, child_connection = multiprocessing.Pipe()
        lifeline, self._lifeline = os.pipe()
        self._crash_log = os.memfd_create("embodied-crash-log")
        self.phase = "start"
        setup: Setup = make_setup(self._crash_log)
        self.index = setup.index
        child_fds = (child_connection.fileno(), lifeline)
        arguments = [json.dumps(sys.path), *(str(fd) for fd in child_fds)]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *arguments],
            pass_fds=(*child_fds, self._crash_log, *shared_fds),
            stdin=subprocess.DEVNULL,  # a simulator that asks a question gets an error instead of waiting for ever
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        )
        child_connection.close()
        os.close(lifeline)
        self.send(setup)

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self._popen.pid

    def own_bytes(self) -> int:
        """Memory that it shares with no other process; 0 once it is gone."""
        try:
            info = psutil.Process(self.pid).memory_info()
        except psutil.Error:
            return 0
        return max(0, info.rss - info.shared)

    def send(self, message: Any) -> None:
        """Say something; a process that is gone is noticed by whoever waits for the answer."""
        try:
            send_message(self.connection, message)
        except PipeClosed:
            return

    def receive(self) -> Any | None:
        """Its next message, None if it has ended."""
        try:
            return receive_message(self.connection)
        except PipeClosed:
            return None

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._popen.poll() is not None

    def describe_end(self) -> str:
        """How it ended, with the interpreter's last stack where a signal ended it."""
        try:
            code = self._popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its pipe but still runs"
        crash = self._read_crash_log()
        if code >= 0:
            how = f"exited with code {code}"
        else:
            how = f"was ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (perhaps the kernel was out of memory)"
        return f"{how}\n{crash}".strip()

    def dump_stack(self) -> str:
        """What the process is doing right now, for one that hangs."""
        self._popen.send_signal(signal.SIGUSR1)
        until = time.monotonic() + _STACK_SECONDS
        text = previous = ""
        while time.monotonic() < until and (not text or text != previous):
            time.sleep(0.05)
            previous, text = text, self._read_crash_log()
        return text or "(its stack could not be read)"

    def _read_crash_log(self) -> str:
        size = os.fstat(self._crash_log).st_size
        return os.pread(self._crash_log, size, 0).decode(errors="replace").strip()

    def kill(self) -> None:
        """End it at once and free what belongs to it; safe to call twice."""
        if self._popen.returncode is None:
            self._popen.kill()
            self._popen.wait()
        self._release()

    def close(self, deadline: float) -> None:
        """Let it finish until `deadline` (monotonic), then end it."""
        self.connection.close()
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._release()

    def _release(self) -> None:
        self.connection.close()
        for name in ("_lifeline", "_crash_log"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def close_all(processes: Sequence[SimulatorProcess], seconds: float) -> None:
    """Stop several processes at once, ending those that take longer than `seconds`."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.connection.close()
    for process in processes:
        process.close(deadline)


def free_cores(count: int) -> list[int]:
    """`count` of the cores this process may use, those first to which the fewest processes are bound.

    Several pools on one machine so share it evenly.
    """
    allowed = sorted(os.sched_getaffinity(0))
    bound = dict.fromkeys(allowed, 0)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            cores = os.sched_getaffinity(int(name))
        except OSError:
            continue  # it ended meanwhile
        if len(cores) == 1 and (core := next(iter(cores))) in bound:
            bound[core] += 1
    return sorted(allowed, key=lambda core: bound[core])[:count]
