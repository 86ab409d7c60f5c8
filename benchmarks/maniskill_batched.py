"""Environment steps a second of ManiSkill from state: batched scenes in our pool beside stock environments.

Peers: gymnasium's AsyncVectorEnv over stock single CPU environments (the wrapper that ManiSkill provides for it), with
2 and 8 worker processes, shared memory on. Ours: 64 environments in 2 processes, one action a chunk. Every round times
each candidate once; the median of the rounds counts.

Wall-clock rates mean something only on a machine that is otherwise idle, so the load average is written beside them.
CPU milliseconds a step (this process and its workers together) hold on a busy machine too, but say nothing of the
time that processes wait for each other.

    OMP_NUM_THREADS=1 python benchmarks/maniskill_batched.py [--tasks PickCube-v1 PushCube-v1] [--rounds 9] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium
import psutil
import torch

from envs.api import Assignments
from envs.maniskill.config import ManiSkillConfig
from envs.registry import make

RESULTS = Path(__file__).parent / "results" / "maniskill_batched.md"
SECONDS = 2.0


def stock_env(task: str) -> gymnasium.Env:
    """One stock environment, unbatched numpy in and out."""
    import mani_skill.envs  # noqa: F401 (registers the tasks)
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    from envs.maniskill.quiet import without_graphics, without_noise

    torch.set_num_threads(1)
    with without_noise(), without_graphics():
        env = gymnasium.make(task, obs_mode="state", render_backend="none", sim_backend="physx_cpu")
    return CPUGymWrapper(env)


class Candidate(Protocol):
    """Something that steps environments; `workers` are its processes, `step` returns how many steps it made."""

    name: str
    workers: list[psutil.Process]

    def step(self) -> int: ...

    def close(self) -> None: ...


class AsyncCandidate:
    """AsyncVectorEnv over `workers` stock environments."""

    def __init__(self, task: str, workers: int) -> None:
        self.name = f"AsyncVectorEnv, {workers} environments"
        self._env = gymnasium.vector.AsyncVectorEnv([functools.partial(stock_env, task)] * workers, context="spawn")
        self._env.reset(seed=0)
        self._count = workers

    def step(self) -> int:
        self._env.step(self._env.action_space.sample())
        return self._count

    def close(self) -> None:
        self._env.close()


class OurCandidate:
    """64 environments in 2 processes."""

    def __init__(self, task: str, num_envs: int = 64, processes: int = 2) -> None:
        self.name = f"ours, {num_envs} environments in {processes} processes"
        config = ManiSkillConfig(id=f"maniskill/{task}", num_envs=num_envs, processes=processes)
        self._env = make(config)
        self._next = Assignments.from_seeds(range(num_envs))
        self._env.reset(self._next)
        self._dim = self._env.spec.action.dim

    def step(self) -> int:
        actions = torch.rand(self._env.num_envs, 1, self._dim) * 2 - 1
        self._env.step(actions, next_assignments=self._next)
        return self._env.num_envs

    def close(self) -> None:
        self._env.close()


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time that the processes have used so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def timed(candidate: Candidate) -> tuple[float, float]:
    """Environment steps a second, and CPU milliseconds a step, over `SECONDS`; episode ends and resets included."""
    processes = [psutil.Process(), *candidate.workers]
    steps, cpu, start = 0, cpu_seconds(processes), time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += candidate.step()
    elapsed = time.perf_counter() - start
    return steps / elapsed, (cpu_seconds(processes) - cpu) / steps * 1e3


def started(make_candidate: Callable[[], Candidate]) -> Candidate:
    """A candidate that knows its worker processes."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    candidate = make_candidate()
    candidate.workers = [process for process in me.children(recursive=True) if process not in before]
    return candidate


def measure(task: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    makers = (lambda: AsyncCandidate(task, 2), lambda: AsyncCandidate(task, 8), lambda: OurCandidate(task))
    candidates = [started(maker) for maker in makers]
    rates: dict[str, list[tuple[float, float]]] = {candidate.name: [] for candidate in candidates}
    for candidate in candidates:
        for _ in range(5):
            candidate.step()
    for _ in range(rounds):
        for candidate in candidates:
            rates[candidate.name].append(timed(candidate))
    for candidate in candidates:
        candidate.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["PickCube-v1", "PushCube-v1"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    lines = [
        "| task | candidate | steps/s, median | lowest to highest | ours: times steps/s | CPU-ms a step, median | "
        "ours: times less CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in options.tasks:
        measured = measure(task, options.rounds)
        middle = {name: [statistics.median(column) for column in zip(*v, strict=True)] for name, v in measured.items()}
        our_rate, our_cpu = list(middle.values())[-1]
        for name, (rate, cpu) in middle.items():
            rates = [rate for rate, _ in measured[name]]
            spread = f"{min(rates):.0f} to {max(rates):.0f}"
            lines.append(
                f"| {task} | {name} | {rate:.0f} | {spread} | {our_rate / rate:.1f} | {cpu:.2f} | {cpu / our_cpu:.1f} |"
            )
    load = f"Load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after."
    lines += ["", load]
    print("\n".join(lines))
    if options.write:
        head = [
            "# ManiSkill from state, environment steps a second",
            "",
            f"{dt.date.today()}, {platform.processor() or platform.machine()}, 2 cores, Python "
            f"{platform.python_version()}, torch {torch.__version__}, gymnasium {gymnasium.__version__}.",
            f"Random actions, {options.rounds} interleaved rounds of {SECONDS:.0f} s for each candidate.",
            "",
            "    OMP_NUM_THREADS=1 python benchmarks/maniskill_batched.py --write",
            "",
        ]
        RESULTS.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
