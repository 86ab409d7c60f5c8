"""The grading process: builds its graders once, then grades whatever comes, one at a time, until its parent is gone.

Started by `pool`; the messages are pickles between the two ends of a socket pair of our own.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection

READY, REFUSED = "ready", "refused"
GRADED, ERROR = "graded", "error"

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve one connection."""
    # an endless calculation must not outlive the run; the second look closes the gap before the first took effect
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    connection = Connection(descriptor)
    path, memory, specs = connection.recv()
    sys.path[:] = path
    graders = _build(connection, specs)
    if graders is None:
        return
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    connection.send((READY, ""))
    while True:
        try:
            attempts = connection.recv()
        except EOFError:
            return
        for term, response, problem in attempts:
            try:
                answer = (GRADED, graders[term](response, problem))
            except MemoryError:
                answer = (ERROR, f"more than {memory >> 20} MiB of memory")
            except RecursionError:
                answer = (ERROR, "RecursionError: nested too deeply")
            except Exception as error:
                # a fault of a grader, or of a user's function, is an outcome to report, not the end of the process
                answer = (ERROR, f"{type(error).__name__}: {error}")
            connection.send(answer)


def _build(connection: Connection, specs: list[tuple[str, bytes]]) -> list | None:
    from embodied.errors import EmbodiedError
    from reasoning.rewards.graders import build_grader, wrap_function

    graders = []
    try:
        for kind, payload in specs:
            content = pickle.loads(payload)
            if kind == "function":
                graders.append(wrap_function(*content))
            else:
                graders.append(build_grader(kind, content))
    except EmbodiedError as error:
        connection.send((REFUSED, str(error)))
        return None
    except Exception as error:  # what a user's function refers to may be missing here, in any way
        connection.send((REFUSED, f"the reward cannot be built in a grading process: {type(error).__name__}: {error}"))
        return None
    if any(kind == "math" for kind, _ in specs):
        import math_verify  # noqa: F401  (a second that no answer's deadline should pay for)
    return graders


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
