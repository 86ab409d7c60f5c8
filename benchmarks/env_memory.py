"""Memory of one simulator process: after start-up, and what every further environment in it costs.

    python benchmarks/env_memory.py --output benchmarks/results/env_memory.md

Each line starts a pool of one process, twice: with one environment and with several. RSS is what the process occupies,
USS what would be free if it ended (libraries that processes share are not in it). Both are read after three chunks.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

import envs
from envs.api import Assignments

CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("CartPole", "gym/CartPole-v1", {}, 64),
    ("ManiSkill PushCube, state", "maniskill/PushCube-v1", {}, 16),
    ("ManiSkill PutOnPlate, state", "maniskill/PutOnPlate-v1", {}, 16),
    (
        "ManiSkill PutOnPlate, 128 px, low-poly robot",
        "maniskill/PutOnPlate-v1",
        {"obs": "rgb", "image_size": 128, "robot_visual": "lowpoly"},
        16,
    ),
    ("ManiSkill PickCube, 128 px", "maniskill/PickCube-v1", {"obs": "rgb", "image_size": 128}, 16),
    ("LIBERO goal, no pictures", "libero/libero_goal", {"cameras": (), "mode": "fast"}, 8),
    ("LIBERO goal, two 224 px cameras, fast", "libero/libero_goal", {"image_size": 224, "mode": "fast"}, 8),
    ("LIBERO goal, two 224 px cameras, faithful", "libero/libero_goal", {"image_size": 224}, 8),
]


def measure(env_id: str, num_envs: int, options: dict[str, Any]) -> tuple[float, float]:
    """RSS and USS of the simulator process, in megabytes (2^20 bytes)."""
    with envs.make(env_id, num_envs=num_envs, processes=1, start_seconds=1500.0, **options) as env:
        task = torch.zeros(num_envs, dtype=torch.int64)
        first = torch.full_like(task, 0 if env.spec.initial_states[0] else -1)
        assignments = Assignments(task, first, torch.arange(num_envs))
        env.reset(assignments)
        for _ in range(3):
            env.step(torch.zeros(num_envs, 2, env.spec.action.dim), 0, assignments)
        memory = psutil.Process(psutil.Process().children()[0].pid).memory_full_info()
    return memory.rss / 2**20, memory.uss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table to this Markdown file")
    parser.add_argument("--only", default="", help="measure the lines whose name contains this")
    args = parser.parse_args()
    lines = [
        "| environment | RSS, 1 environment (MB) | USS, 1 (MB) | several | RSS (MB) | USS (MB) | MB a further one |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, env_id, options, several in [case for case in CASES if args.only in case[0]]:
        one, many = measure(env_id, 1, options), measure(env_id, several, options)
        each = (many[1] - one[1]) / (several - 1)
        lines.append(
            f"| {name} | {one[0]:.0f} | {one[1]:.0f} | {several} | {many[0]:.0f} | {many[1]:.0f} | {each:.1f} |"
        )
        print(lines[-1], flush=True)
    head = [
        "# Memory of a simulator process",
        "",
        f"{dt.date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}; CPU physics, software rendering.",
        "",
        "    python benchmarks/env_memory.py --output benchmarks/results/env_memory.md",
        "",
    ]
    if args.output:
        args.output.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
