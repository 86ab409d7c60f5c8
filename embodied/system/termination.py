"""SIGTERM, as job managers and `timeout` send it, ends a command as Ctrl-C does: in order, but with a code of its own.

What ends in order on KeyboardInterrupt needs to know of one way only; `interruption` says afterwards which it was.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_received = False


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within the block a SIGTERM does what a Ctrl-C would do, also where Ctrl-C itself is ignored (`nohup`, `&`)."""
    global _received
    _received = False
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        with _ctrl_c_has_a_handler():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ctrl_c_has_a_handler() -> Iterator[None]:
    """Where Ctrl-C is ignored, keep it away by a mask instead: asyncio puts its orderly handler in place of Python's
    own only, and that handler is what a SIGTERM calls."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _received
    _received = True
    # asyncio has a handler of its own for Ctrl-C, which cancels the main task instead of raising in the middle of it
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back that was there before the block, for libraries that set their own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def was_terminated() -> bool:
    """Whether the interruption was a SIGTERM."""
    return _received


def interruption() -> str:
    """What interrupted the command, in words."""
    return "ended by SIGTERM" if _received else "interrupted by the user"
