"""What a person sees while a run goes on: a bar with time left on a terminal, a plain line now and then elsewhere.

Everything said is also written to the run's log.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

# off a terminal, a line at most so often
_LINE_SECONDS = 10.0
_RATE_UPDATES = 30


def spoken_time(seconds: float) -> str:
    """ "45 s", "3 min 20 s", "2 h 5 min"."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


class _Screen(Console):
    """Goes on in silence where its reader is gone (`embodied train ... | head`): the log has everything."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.close(silence)


class RunProgress:
    """Progress of one run; a context manager.

    log: file that everything said is appended to. total: what `update` counts up to, at most.
    """

    def __init__(self, log: Path, *, total: int, unit: str) -> None:
        self.console = _Screen(highlight=False, soft_wrap=True)
        self._log = log.open("a")
        self._total, self._unit = total, unit
        # the rate of the recent past: one slow evaluation must not spoil the time left for long
        self._recent = collections.deque([(time.monotonic(), 0)], maxlen=_RATE_UPDATES)
        self._last_line = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> RunProgress:
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[left]}"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("starting", total=self._total, left="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with self._perhaps_unread():
                self._bar.stop()
        self._log.close()

    def say(self, text: str) -> None:
        """Print a line that stays, and log it."""
        with self._perhaps_unread():
            self.console.print(text, markup=False)
        self._note(text)

    def count_from(self, done: int) -> None:
        """Work begins here, with `done` of it done before: neither that nor the start-up counts in the rate."""
        self._recent.clear()
        self._recent.append((time.monotonic(), done))

    def update(self, done: int, status: str) -> None:
        """`done` of the total; `status` is a few words on how it goes."""
        self._recent.append((time.monotonic(), done))
        (first, done_then), (last, _) = self._recent[0], self._recent[-1]
        rate = (done - done_then) / (last - first) if last > first else 0.0
        left = f"at most {spoken_time((self._total - done) / rate)} left" if rate > 0 else "time left unknown"
        speed = f"{rate:,.0f}/s" if rate >= 1 or rate <= 0 else f"{spoken_time(1 / rate)} each"
        line = f"{done:,} of {self._total:,} {self._unit}, {speed}, {left}  {status}"
        self._note(line)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=done, description=status, left=f"{done:,} {self._unit}, {speed}, {left}"
            )
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            with self._perhaps_unread():
                self.console.print(line, markup=False)

    @contextlib.contextmanager
    def _perhaps_unread(self) -> Iterator[None]:
        """A terminal that is closed gives an error (EIO) to whoever writes, maybe before the signal that says so."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self.console.on_broken_pipe()

    def _note(self, text: str) -> None:
        self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._log.flush()
