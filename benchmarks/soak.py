"""Does memory grow with resets and pictures? A thousand resets of each simulator, every one with rendered pictures.

    OMP_NUM_THREADS=1 python benchmarks/soak.py [--resets 1000] [--write]

Each case is a process of its own with four environments: reset to new worlds, a look, two steps, a look. What the
process occupies is read after a fifth of the resets, when what is kept for ever is there, and at the end.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import torch

from envs.api import Assignments
from envs.libero import factory as libero
from envs.libero.config import LiberoConfig
from envs.maniskill import factory as maniskill
from envs.maniskill.config import ManiSkillConfig

RESULTS = Path(__file__).with_name("results") / "soak.md"
ENVS = 4
CASES: dict[str, tuple[ManiSkillConfig | LiberoConfig, int]] = {
    "ManiSkill PutOnPlate, 128 px, low-poly robot, new looks in every episode": (
        ManiSkillConfig(id="maniskill/PutOnPlate-v1", obs="rgb", image_size=128, robot_visual="lowpoly"),
        1,
    ),
    "LIBERO spatial, two 128 px cameras, fast, ten tasks": (
        LiberoConfig(id="libero/libero_spatial", mode="fast", image_size=128),
        10,
    ),
    "LIBERO object, two 128 px cameras, fast, four tasks (scenes are exchanged)": (
        LiberoConfig(id="libero/libero_object", mode="fast", image_size=128),
        4,
    ),
}
"""By name: the environment, and how many of its tasks take turns."""


def soak(name: str, resets: int) -> dict[str, float]:
    """Play one case in this process: seconds, CPU seconds, and megabytes (2^20 bytes) occupied."""
    config, tasks = CASES[name]
    make_batch = maniskill.make_batch if isinstance(config, ManiSkillConfig) else libero.make_batch
    batch = make_batch(config, ENVS)
    rows, everyone = torch.arange(ENVS), torch.ones(ENVS, dtype=torch.bool)
    actions = torch.zeros(ENVS, batch.spec.action.dim)
    process, sizes = psutil.Process(), []
    began, cpu = time.perf_counter(), time.process_time()
    rounds = resets // ENVS
    for number in range(rounds):
        seeds = rows + number * ENVS
        batch.reset(rows, Assignments(seeds % tasks, torch.full_like(rows, -1), seeds))
        batch.observe()
        for _ in range(2):
            batch.step(actions, everyone)
        batch.observe()
        if number in (rounds // 5, rounds - 1):
            sizes.append(process.memory_info().rss / 2**20)
    spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    batch.close()
    return {**spent, "early": sizes[0], "late": sizes[1]}


def main() -> None:
    """Play all cases, each in a process of its own; print a table, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resets", type=int, default=1000)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(soak(args.case, args.resets)))
        return
    lines = [
        "| case | resets | wall s | CPU s | RSS after a fifth (MB) | at the end (MB) | growth |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [case for case in CASES if args.only in case]:
        command = [sys.executable, __file__, "--case", name, "--resets", str(args.resets)]
        reply = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        got = json.loads(reply.splitlines()[-1])
        growth = got["late"] - got["early"]
        lines.append(
            f"| {name} | {args.resets} | {got['seconds']:.0f} | {got['cpu']:.0f} | {got['early']:.0f} | "
            f"{got['late']:.0f} | {growth:+.0f} MB |"
        )
        print(lines[-1], flush=True)
    if args.write:
        head = [
            "# A thousand resets with pictures",
            "",
            f"{dt.date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"torch {torch.__version__}; CPU physics, software rendering; {ENVS} environments a process.",
            "",
            "    OMP_NUM_THREADS=1 python benchmarks/soak.py --write",
            "",
        ]
        RESULTS.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
