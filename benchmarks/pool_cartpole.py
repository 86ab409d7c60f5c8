"""The pool against gymnasium's AsyncVectorEnv on CartPole, where the simulator costs nothing and overhead is all.

Both step 64 environments with the same random actions, one control step a call; the pool on 2 processes,
AsyncVectorEnv (shared memory) on its 64. The two alternate within one run, so that other work on the machine
disturbs both.

    python benchmarks/pool_cartpole.py
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import psutil
import torch

import envs
from envs.api import Assignments, VectorEnv

ENVS = 64
BAR = 8.0


def cpu_seconds() -> float:
    """CPU time of this process and its children so far: what other work on the machine changes least."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


def time_pool(env: VectorEnv, calls: int, chunk: int) -> tuple[float, list[float]]:
    """(Valid) environment steps a second of the pool, and the seconds of every call."""
    generator = torch.Generator().manual_seed(0)
    actions = torch.randint(0, 2, (64, ENVS, chunk, 1), generator=generator).float()
    following = [Assignments.from_seeds(range(i * ENVS, (i + 1) * ENVS)) for i in range(64)]
    executed = 0
    moments = [time.perf_counter()]
    for call in range(calls):
        result = env.step(actions[call % 64], 0, following[call % 64])
        executed += ENVS if chunk == 1 else int(result.valid.sum())
        moments.append(time.perf_counter())
    return executed / (moments[-1] - moments[0]), [b - a for a, b in itertools.pairwise(moments)]


def time_gymnasium(env: gymnasium.vector.VectorEnv, calls: int) -> tuple[float, list[float]]:
    """The same of a gymnasium vector environment."""
    actions = np.random.default_rng(0).integers(0, 2, (64, ENVS))
    moments = [time.perf_counter()]
    for call in range(calls):
        env.step(actions[call % 64])
        moments.append(time.perf_counter())
    return calls * ENVS / (moments[-1] - moments[0]), [b - a for a, b in itertools.pairwise(moments)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", help="write the table to this Markdown file")
    options = parser.parse_args()

    pool = envs.make("gym/CartPole-v1", num_envs=ENVS, processes=2)
    pool.reset(Assignments.from_seeds(range(ENVS)))
    makers = [functools.partial(gymnasium.make, "CartPole-v1") for _ in range(ENVS)]
    asynchronous = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True)
    asynchronous.reset(seed=0)
    synchronous = gymnasium.vector.SyncVectorEnv(makers)
    synchronous.reset(seed=0)
    cases: dict[str, Callable[[], tuple[float, list[float]]]] = {
        "gymnasium AsyncVectorEnv, shared memory, 64 processes": lambda: time_gymnasium(asynchronous, 200),
        "gymnasium SyncVectorEnv, this process": lambda: time_gymnasium(synchronous, 300),
        "pool, 2 processes": lambda: time_pool(pool, 2000, 1),
        "pool, 2 processes, chunks of 8": lambda: time_pool(pool, 400, 8),
    }
    names = list(cases)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    calls: dict[str, list[float]] = {name: [] for name in names}
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds + 1):
        for name in names:
            before = cpu_seconds()
            speed, seconds = cases[name]()
            if number:  # the first round warms up
                speeds[name].append(speed)
                calls[name] += seconds
                spent[name].append((cpu_seconds() - before) / (speed * sum(seconds)) * 1e6)
    asynchronous.close()
    synchronous.close()
    pool.close()

    peer = names[0]
    lines = [
        f"# CartPole-v1, {ENVS} environments: environment steps a second",
        "",
        f"{dt.date.today()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}, gymnasium {gymnasium.__version__}; median of {options.rounds} alternating "
        "rounds (least, most); the ratio is the median of the rounds' ratios. Other work on the machine "
        f"weighs on the pool's 3 processes more than on 64; load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| | steps/s | to AsyncVectorEnv | median call, ms | CPU µs a step | times less CPU |",
        "|---|---|---|---|---|---|",
    ]
    ratios = {}
    for name in names:
        values = speeds[name]
        ratios[name] = statistics.median(a / b for a, b in zip(values, speeds[peer], strict=True))
        spread = f"{min(values):,.0f}, {max(values):,.0f}"
        speed, call = statistics.median(values), statistics.median(calls[name]) * 1e3
        cpu, saved = statistics.median(spent[name]), statistics.median(spent[peer]) / statistics.median(spent[name])
        lines.append(
            f"| {name} | {speed:,.0f} ({spread}) | {ratios[name]:.1f}x | {call:.2f} | {cpu:.1f} | {saved:.1f}x |"
        )
    ratio = ratios["pool, 2 processes"]
    by_call = statistics.median(calls[peer]) / statistics.median(calls["pool, 2 processes"])
    lines += [
        "",
        f"Bar: at least {BAR:g}x. {'Met' if ratio >= BAR else 'NOT met'}: {ratio:.1f}x by steps a second, "
        f"{by_call:.1f}x by the median call.",
        "",
        "Command: `python benchmarks/pool_cartpole.py --output benchmarks/results/pool_cartpole.md`",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
