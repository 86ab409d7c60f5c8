"""SIGTERM, as job managers and `timeout` send it, and SIGHUP, as a terminal that is closed does, end a command as
Ctrl-C does: in order, but with codes of their own.

What ends in order on KeyboardInterrupt needs to know of one way only; `interruption` says afterwards which it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_received: signal.Signals | None = None


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Within the block a SIGTERM or SIGHUP does what a Ctrl-C would do, also where Ctrl-C itself is ignored (`&`).

    A SIGHUP that is ignored (`nohup`) stays so."""
    global _received
    _received = None
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if number == signal.SIGTERM or before[number] is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    try:
        with _ctrl_c_has_a_handler():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ctrl_c_has_a_handler() -> Iterator[None]:
    """Where Ctrl-C is ignored, keep it away by a mask instead: asyncio puts its orderly handler in place of Python's
    own only, and that handler is what the other signals call."""
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


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _received
    _received = signal.Signals(number)
    if _received is signal.SIGHUP:
        _say_nothing_more()
    # asyncio has a handler of its own for Ctrl-C, which cancels the main task instead of raising in the middle of it
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _say_nothing_more() -> None:
    """Nobody reads a terminal that is gone, and writing to it is an error; what goes into a file still does."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for said in (1, 2):
        if not stat.S_ISREG(os.fstat(said).st_mode):
            os.dup2(silence, said)
    os.close(silence)


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back that was there before the block, for libraries that set their own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def exit_code() -> int:
    """Of a command that was interrupted: 128 and the signal's number, as shells have it."""
    return 128 + (_received or signal.SIGINT)


def interruption() -> str:
    """What interrupted the command, in words."""
    return f"ended by {_received.name}" if _received else "interrupted by the user"
