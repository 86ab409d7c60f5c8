"""What all tests share."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

# a test run that was started in the background inherits an ignored SIGINT, and would hand it on to the processes whose
# answer to Ctrl-C is tested
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOM, _DOOR = Path(__file__), Path(__file__).parent  # only locked, by processes of parallel runs


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Generator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough where a forked process still has it open
        os.close(descriptor)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests run several at a time, but those marked `alone` have no other test beside them.

    They look at the whole machine (processes and shared memory left behind) or at the clock. Everyone comes through
    one door, so that who waits to be alone is not overtaken.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with contextlib.ExitStack() as room:
        with _locked(_DOOR, fcntl.LOCK_EX):
            room.enter_context(_locked(_ROOM, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH))
        return (yield)
