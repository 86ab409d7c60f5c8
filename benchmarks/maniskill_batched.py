"""Environment steps a second of ManiSkill from state: batched scenes in our pool beside stock environments.

Peers: gymnasium's AsyncVectorEnv over stock single CPU environments (the wrapper that ManiSkill provides for it), with
2 and 8 worker processes, shared memory on. Ours: 64 environments in 2 processes, one action a chunk. Every round times
each candidate once, so that a busy machine slows all alike; the median of the rounds counts.

    OMP_NUM_THREADS=1 python benchmarks/maniskill_batched.py [--tasks PickCube-v1 PushCube-v1] [--rounds 9] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium
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


class AsyncCandidate:
    """AsyncVectorEnv over `workers` stock environments."""

    def __init__(self, task: str, workers: int) -> None:
        self.name = f"AsyncVectorEnv, {workers} environments"
        self._env = gymnasium.vector.AsyncVectorEnv([functools.partial(stock_env, task)] * workers, context="spawn")
        self._env.reset(seed=0)
        self._workers = workers

    def step(self) -> int:
        self._env.step(self._env.action_space.sample())
        return self._workers

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


def rate(step: Callable[[], int]) -> float:
    """Environment steps a second over `SECONDS`, episode ends and resets included."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += step()
    return steps / (time.perf_counter() - start)


def measure(task: str, rounds: int) -> dict[str, list[float]]:
    candidates = [AsyncCandidate(task, 2), AsyncCandidate(task, 8), OurCandidate(task)]
    rates: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for candidate in candidates:
        for _ in range(5):
            candidate.step()
    for _ in range(rounds):
        for candidate in candidates:
            rates[candidate.name].append(rate(candidate.step))
    for candidate in candidates:
        candidate.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["PickCube-v1", "PushCube-v1"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    lines = [
        "| task | candidate | steps/s, median | lowest to highest | ours is faster by |",
        "|---|---|---|---|---|",
    ]
    for task in options.tasks:
        rates = measure(task, options.rounds)
        ours = statistics.median(list(rates.values())[-1])
        for name, values in rates.items():
            middle = statistics.median(values)
            spread = f"{min(values):.0f} to {max(values):.0f}"
            lines.append(f"| {task} | {name} | {middle:.0f} | {spread} | {ours / middle:.1f} |")
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
