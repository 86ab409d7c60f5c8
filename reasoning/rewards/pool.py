"""A pool of grading processes with a deadline for every single answer.

A process that takes too long is killed with all its children and replaced; one that dies is replaced too. Either way
only the one answer is lost, and it is reported as ungraded, never as wrong. Works from any thread.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from embodied.errors import ConfigurationError, WorkerError
from reasoning.problems.record import Problem
from reasoning.rewards import process
from reasoning.rewards.graders import Grade

_START_SECONDS = 120.0
_LARGEST_CHUNK = 64


class Outcome(enum.StrEnum):
    """What became of an answer: graded, or why not."""

    GRADED = "graded"
    TIMEOUT = "timeout"
    CRASH = "crash"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """grade: None unless graded. detail: why not."""

    outcome: Outcome
    grade: Grade | None
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class GraderSpec:
    """A grader to build in every process: by kind and options, or a function given as an object."""

    kind: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    function: Callable[..., Any] | None = None

    def packed(self) -> tuple[str, bytes]:
        """What is sent to a process. Functions go by value: a script's own need no import path.

        Raises ConfigurationError for one that cannot go.
        """
        if self.function is not None:
            try:
                return "function", cloudpickle.dumps((self.function, self.options))
            except (TypeError, pickle.PicklingError) as error:
                raise ConfigurationError(
                    f"the reward function cannot be sent to the grading processes: {error}. Let it refer to plain "
                    "values only, or give it as package.module:function."
                ) from None
        return self.kind, pickle.dumps(self.options)


@dataclasses.dataclass
class _Job:
    verdicts: list[Verdict | None]
    missing: int
    done: Future[list[Verdict]]


def _closed() -> WorkerError:
    return WorkerError("the grading pool is closed; nothing can be graded any more")


_Item = tuple[_Job, int, tuple[int, str, Problem]]


class GradingPool:
    """processes: how many. deadline_seconds: for one answer, wall time. memory_gib: of one process, beyond its start.

    Raises ConfigurationError when a grader cannot be built, WorkerError when the processes do not start.
    """

    def __init__(
        self,
        graders: Sequence[GraderSpec],
        *,
        processes: int = 2,
        deadline_seconds: float = 5.0,
        memory_gib: float = 2.0,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        # a command's own path begins at the command: modules beside the user are looked for too
        self._setup = ([*sys.path, os.getcwd()], int(memory_gib * 2**30), [spec.packed() for spec in graders])
        self._queue: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._closed = False
        self._children: list[_Child] = []
        started: list[Future[None]] = [Future() for _ in range(processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(ready,), name=f"grading {i}", daemon=True)
            for i, ready in enumerate(started)
        ]
        for thread in self._threads:
            thread.start()
        try:
            for ready in started:
                ready.result()
        except BaseException:
            self.close()
            raise

    def submit(self, attempts: Sequence[tuple[int, str, Problem]]) -> Future[list[Verdict]]:
        """Grade (index of the grader, response, problem) each; the verdicts come in the same order."""
        done: Future[list[Verdict]] = Future()
        job = _Job([None] * len(attempts), len(attempts), done)
        if not attempts:
            done.set_result([])
        items = [(job, index, attempt) for index, attempt in enumerate(attempts)]
        size = min(_LARGEST_CHUNK, max(1, len(items) // (4 * len(self._threads))))
        with self._lock:  # so that nothing is put behind what `close` takes out
            if self._closed:
                raise _closed()
            for start in range(0, len(items), size):
                self._queue.put(items[start : start + size])
        return done

    def grade(self, attempts: Sequence[tuple[int, str, Problem]]) -> list[Verdict]:
        """`submit` and wait."""
        return self.submit(attempts).result()

    def counts(self) -> dict[str, int]:
        """Answers by outcome since the start, and processes that had to be replaced."""
        with self._lock:
            return {
                **{outcome.value: self._counts[outcome.value] for outcome in Outcome},
                "restarts": self._counts["restarts"],
            }

    def close(self) -> None:
        """End the processes at once; what is not graded yet fails with WorkerError."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()
        with contextlib.suppress(queue.Empty):
            while (chunk := self._queue.get_nowait()) is not None:
                self._fail(collections.deque(chunk), _closed())
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self, ready: Future[None]) -> None:
        """One thread for one process and its successors."""
        try:
            child = self._start()
        except BaseException as error:  # handed to the thread that waits for the start
            ready.set_exception(error)
            return
        ready.set_result(None)
        while (chunk := self._queue.get()) is not None:
            pending = collections.deque(chunk)
            while pending:
                if self._closed:
                    self._fail(pending, _closed())
                    continue
                try:
                    if child is None:
                        child = self._start()
                        self._count("restarts")
                    child.connection.send([attempt for _, _, attempt in pending])
                except (OSError, WorkerError, ConfigurationError) as error:
                    # the process died before it saw the answer; give up only when a fresh one does not start either
                    if child is None:
                        self._fail(pending, WorkerError(f"a grading process could not be replaced: {error}"))
                        continue
                    self._end(child)
                    child = None
                    continue
                while pending and child is not None:
                    verdict = child.next_verdict(self.deadline_seconds)
                    if verdict.outcome in (Outcome.TIMEOUT, Outcome.CRASH):
                        self._end(child)
                        child = None
                    if self._closed:
                        self._fail(pending, _closed())
                    else:
                        self._resolve(pending.popleft(), verdict)
        if child is not None:
            self._end(child)

    def _start(self) -> _Child:
        child = _Child(self._setup)
        with self._lock:
            self._children.append(child)
            if self._closed:
                child.kill()
        return child

    def _end(self, child: _Child) -> None:
        with self._lock:
            self._children.remove(child)
        child.end()

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _resolve(self, item: _Item, verdict: Verdict) -> None:
        job, index, _ = item
        job.verdicts[index] = verdict
        with self._lock:
            self._counts[verdict.outcome.value] += 1
            job.missing -= 1
            last = job.missing == 0
        if last and not job.done.done():
            job.done.set_result([v for v in job.verdicts if v is not None])

    def _fail(self, pending: collections.deque[_Item], error: WorkerError) -> None:
        while pending:
            job, _, _ = pending.popleft()
            if not job.done.done():
                job.done.set_exception(error)


class _Child:
    """One grading process, ready to grade."""

    def __init__(self, setup: tuple[list[str], int, list[tuple[str, bytes]]]) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", process.__name__, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            # a session of its own: Ctrl-C is for the run, which ends the process itself, and kills reach grandchildren
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], start_new_session=True, env=environment, stdin=subprocess.DEVNULL
            )
        self.connection = Connection(ours.detach())
        try:
            self.connection.send(setup)
            if not self.connection.poll(_START_SECONDS):
                raise WorkerError(f"a grading process did not start within {_START_SECONDS:.0f} s")
            state, detail = self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(f"a grading process did not start: {self.ending()}") from error
        finally:
            if sys.exc_info()[0] is not None:
                self.end()
        if state == process.REFUSED:
            self.end()
            raise ConfigurationError(detail)

    def next_verdict(self, deadline_seconds: float) -> Verdict:
        """The verdict on the next answer that was sent."""
        try:
            if not self.connection.poll(deadline_seconds):
                return Verdict(Outcome.TIMEOUT, None, f"took longer than {deadline_seconds:g} s")
            state, content = self.connection.recv()
        except (EOFError, OSError):
            return Verdict(Outcome.CRASH, None, f"the grading process died: {self.ending()}")
        except Exception as error:  # a grade of a user's own type that cannot be read here
            return Verdict(Outcome.ERROR, None, f"the grade cannot be read: {type(error).__name__}: {error}")
        if state == process.ERROR:
            return Verdict(Outcome.ERROR, None, content)
        return Verdict(Outcome.GRADED, content)

    def ending(self) -> str:
        """How the process ended, in words."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its connection but still runs"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Kill the process and all that it started; whoever waits for its verdict learns that it died."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and free what it held."""
        self.kill()
        self._process.wait()
        self.connection.close()
