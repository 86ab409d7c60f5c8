"""CPU milliseconds a step of ManiSkill with one rendered camera of 128 pixels, drawn by the processor.

Beside stock ManiSkill: the batched environments with the stock robot, with the low-poly one (drawn by its collision
meshes), and with the ground and the table left out too. One picture a step, which is the dear case: with chunks of
several actions only the last picture of a chunk is drawn. Candidates alternate; the median of the rounds counts. CPU
time (all threads of all processes) holds on a busy machine too.

    OMP_NUM_THREADS=1 python benchmarks/maniskill_pixels.py [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import gymnasium
import torch

from envs.api import Assignments
from envs.maniskill.config import ManiSkillConfig
from envs.registry import make

RESULTS = Path(__file__).parent / "results" / "maniskill_pixels.md"
TASK, SIZE, ENVS, SECONDS, BAR = "PickCube-v1", 128, 8, 3.0, 10.0
Step = Callable[[], int]


def stock() -> Step:
    """One stock environment."""
    import mani_skill.envs  # noqa: F401 (registers the tasks)

    env = gymnasium.make(TASK, obs_mode="rgb", sim_backend="physx_cpu", sensor_configs={"width": SIZE, "height": SIZE})
    env.reset(seed=0)

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if bool(terminated) or bool(truncated):
            env.reset()
        return 1

    return step


def ours(**options: Any) -> Step:
    """Batched environments in this process."""
    env = make(
        ManiSkillConfig(id=f"maniskill/{TASK}", obs="rgb", image_size=SIZE, num_envs=ENVS, processes=0, **options)
    )
    following = Assignments.from_seeds(range(ENVS))
    env.reset(following)

    def step() -> int:
        env.step(torch.rand(ENVS, 1, env.spec.action.dim) * 2 - 1, next_assignments=following)
        return ENVS

    return step


def timed(step: Step) -> tuple[float, float]:
    """(CPU milliseconds a step, wall milliseconds a step) over `SECONDS`."""
    steps, cpu, start = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        steps += step()
    return (time.process_time() - cpu) / steps * 1e3, (time.perf_counter() - start) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    candidates = {
        "stock ManiSkill, one environment": stock(),
        "ours, stock robot": ours(),
        "ours, low-poly robot": ours(robot_visual="lowpoly"),
        "ours, low-poly robot, ground and table hidden": ours(
            robot_visual="lowpoly", hidden=("ground", "table-workspace")
        ),
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for step in candidates.values():
        step()
    for _ in range(options.rounds):
        for name, step in candidates.items():
            measured[name].append(timed(step))
    lines = ["| candidate | CPU-ms a step, median | lowest to highest | wall ms a step, median |", "|---|---|---|---|"]
    for name, rounds in measured.items():
        cpu, wall = zip(*rounds, strict=True)
        spread = f"{min(cpu):.1f} to {max(cpu):.1f}"
        lines.append(f"| {name} | {statistics.median(cpu):.1f} | {spread} | {statistics.median(wall):.1f} |")
    lowpoly = statistics.median(cpu for cpu, _ in measured["ours, low-poly robot"])
    verdict = "met" if lowpoly < BAR else "NOT met"
    lines += ["", f"Bar: under {BAR:.0f} CPU-ms a step with the low-poly robot. {verdict}: {lowpoly:.1f}."]
    lines += [f"Load average at the end {os.getloadavg()[0]:.1f}."]
    print("\n".join(lines))
    if options.write:
        head = [
            f"# {TASK} with one camera of {SIZE} pixels",
            "",
            f"{dt.date.today()}, {platform.processor() or platform.machine()}, 2 cores, software Vulkan, Python "
            f"{platform.python_version()}, torch {torch.__version__}.",
            f"{ENVS} environments in one process, {options.rounds} rounds of {SECONDS:.0f} s in turns.",
            "",
            "    OMP_NUM_THREADS=1 python benchmarks/maniskill_pixels.py --write",
            "",
        ]
        RESULTS.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
