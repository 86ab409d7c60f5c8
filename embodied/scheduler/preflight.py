"""Before a run on several nodes: does every node run the same code, reach the others, and have shared memory to spare?

Each node answers through a `Probe` in one of the processes that the run has there. All faults are told at once, before
any worker is made.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import psutil
import torch

import embodied
from embodied.errors import ConfigurationError
from embodied.scheduler.planner.cache import code_version

# for Ray's control messages and NCCL; items and observations travel in anonymous memory, which this does not limit
SHARED_MEMORY_BYTES = 64 << 20
DISK_BYTES = 512 << 20  # Ray's logs, and what it spills
_CONNECT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """What a node runs and has.

    project: version and fingerprint of the source files of `embodied`. interface: network interface of its address.
    shared_memory: free bytes in /dev/shm. disk: free bytes where temporary files go, Ray's among them.
    """

    python: str
    torch: str
    project: str
    interface: str | None
    shared_memory: int
    disk: int


@dataclasses.dataclass(frozen=True)
class NodeAnswer:
    """facts: of a node. unreachable: by the names of other nodes, why it cannot connect to them."""

    facts: NodeFacts
    unreachable: dict[str, str]


class Probe:
    """One node's side."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._waiting: socket.socket | None = None

    def facts(self) -> NodeFacts:
        """What this node runs and has."""
        return NodeFacts(
            python=platform.python_version(),
            torch=torch.__version__,
            project=code_version((Path(embodied.__file__).parent,)).split(" torch ")[0],
            interface=interface_of(self.address),
            shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
            disk=shutil.disk_usage(tempfile.gettempdir()).free,
        )

    def listen(self) -> int:
        """Wait for others at a port that the system chooses, as links do; returns it."""
        self._waiting = socket.create_server((self.address, 0))
        threading.Thread(target=self._greet, args=(self._waiting,), name="preflight", daemon=True).start()
        return self._waiting.getsockname()[1]

    @staticmethod
    def _greet(waiting: socket.socket) -> None:
        try:
            while True:
                connection, _ = waiting.accept()
                with connection:
                    connection.sendall(b"!")
        except OSError:
            return  # closed: the check is over

    def reach(self, others: dict[str, tuple[str, int]], seconds: float = _CONNECT_SECONDS) -> dict[str, str]:
        """Why others, by name, cannot be reached at their (address, port)."""
        failed = {}
        for name, place in others.items():
            try:
                with socket.create_connection(place, timeout=seconds) as connection:
                    if connection.recv(1) != b"!":
                        failed[name] = f"{place[0]}:{place[1]} is answered by something else"
            except OSError as error:
                failed[name] = f"{place[0]}:{place[1]}: {error}"
        return failed

    def close(self) -> None:
        """Stop waiting."""
        if self._waiting is not None:
            self._waiting.close()


def interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    return None


def check_nodes(own: NodeFacts, answers: dict[str, NodeAnswer]) -> None:
    """Raise ConfigurationError naming every fault. own: of the process that starts the run. answers: by node name."""
    faults = []
    for name, answer in answers.items():
        for field in ("python", "torch", "project"):
            expected, found = getattr(own, field), getattr(answer.facts, field)
            if found != expected:
                faults.append(f"{name} runs {field} {found}, this process {expected}; install the same on every node")
        if answer.facts.shared_memory < SHARED_MEMORY_BYTES:
            faults.append(
                f"{name} has {answer.facts.shared_memory >> 20} MiB free in /dev/shm, {SHARED_MEMORY_BYTES >> 20} are "
                "needed; start its container with --shm-size=1g"
            )
        if answer.facts.disk < DISK_BYTES:
            faults.append(
                f"{name} has {answer.facts.disk >> 20} MiB of disk free for temporary files, {DISK_BYTES >> 20} are "
                "needed; free some space there, or set TMPDIR before its Ray is started"
            )
        for other, why in answer.unreachable.items():
            faults.append(
                f"{name} cannot connect to {other} ({why}); open all TCP ports between the nodes, or start Ray with "
                "--node-ip-address where it took the wrong network"
            )
    if faults:
        raise ConfigurationError("the nodes of this run do not fit together:\n  " + "\n  ".join(faults))
