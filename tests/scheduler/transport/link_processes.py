"""Real processes for the tests of links: a child runs one function and reports how it ended."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from embodied.scheduler.transport import Codec, Ends
from embodied.scheduler.transport.ring import SharedMemoryIncoming, SharedMemoryOutgoing
from embodied.scheduler.transport.shared_memory import Listener, connect


class Child:
    """A process running `work(*args)`; `ended()` waits for it and returns its exit code. Where a GPU is involved the
    start method is "spawn": CUDA does not survive a fork."""

    def __init__(self, work: Callable[..., Any], *args: Any, method: str = "fork") -> None:
        self._process = multiprocessing.get_context(method).Process(target=self._run, args=(work, args), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @staticmethod
    def _run(work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        gc.freeze()  # the parent's garbage is not the child's to finalise: its threads do not exist here
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            work(*args)
        except KeyboardInterrupt:
            raise
        except BaseException:
            traceback.print_exc()
            raise

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ended(self, seconds: float = 30) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode


def listener(codec: Codec | None = None, deadline: float = 20.0, link: str = "numbers", **options: Any) -> Listener:
    return Listener(Ends(link, "reader[0]", "writer[0]"), codec or Codec(), deadline=deadline, **options)


def writer(address: str, codec: Codec | None = None, deadline: float = 20.0, **options: Any) -> SharedMemoryOutgoing:
    return connect(address, Ends("numbers", "writer[0]", "reader[0]"), codec or Codec(), deadline=deadline, **options)


def both_ends(**options: Any) -> tuple[SharedMemoryOutgoing, SharedMemoryIncoming]:
    """A link whose two ends are in this process: everything but the death of a peer can be seen that way."""
    codec = options.pop("codec", None)
    deadline = options.pop("deadline", 20.0)
    waiting = listener(codec, deadline)
    return writer(waiting.address, codec, deadline, **options), waiting.accept()


@contextlib.contextmanager
def reading_from(
    work: Callable[..., Any], *args: Any, deadline: float = 20.0, method: str = "fork"
) -> Iterator[tuple[SharedMemoryIncoming, Child]]:
    """The reader's end here; `work(address, *args)` in a child writes."""
    waiting = listener(deadline=deadline)
    child = Child(work, waiting.address, *args, method=method)
    try:
        with waiting.accept() as incoming:
            yield incoming, child
    finally:
        child.kill()
        child.ended()
