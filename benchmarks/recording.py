"""What films cost the loop that is filmed: `record.every` on and off, in turns, on the same simulators.

    python benchmarks/recording.py [--turns 8] [--write]

Counts the CPU time of this process, which steps the simulators, decides nothing and hands pictures over; drawing and
encoding happen in a process of their own at the lowest priority and are not in it. CPU time depends little on what else
the machine does, so the numbers hold on a busy one too; what encoding takes away from a loop that uses every core is
measured in `tests/envs/test_video.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from embodied.interaction.assignments import TrainingAssignments
from embodied.interaction.rollout_recorder import RecordConfig, RecorderPlan, RolloutRecorder, prepared
from envs import registry
from envs.api import EnvConfig
from envs.maniskill.config import ManiSkillConfig
from policies.api import PolicyOutput

RESULTS = Path(__file__).with_name("results") / "recording.md"
ENVS, DECISIONS = 16, 25
CASES: dict[str, tuple[EnvConfig, RecordConfig]] = {
    "PushCube, pictures of 64 px; 4 of 16 environments, every episode": (
        ManiSkillConfig(id="maniskill/PushCube-v1", obs="rgb", image_size=64, robot_visual="lowpoly", processes=0),
        RecordConfig(every=1, envs=4),
    ),
    "PushCube, pictures of 64 px; all 16 environments in one picture": (
        ManiSkillConfig(id="maniskill/PushCube-v1", obs="rgb", image_size=64, robot_visual="lowpoly", processes=0),
        RecordConfig(every=1, envs=16, tiled=True),
    ),
    "PushCube from state (pictures are rendered for the film); 1 of 16 environments, every episode": (
        ManiSkillConfig(id="maniskill/PushCube-v1", robot_visual="lowpoly", processes=0),
        RecordConfig(every=1, envs=1),
    ),
}


def measure(config: EnvConfig, options: RecordConfig, turns: int) -> tuple[list[float], list[float]]:
    """CPU seconds of each turn of DECISIONS decisions without and with the recorder."""
    config = dataclasses.replace(prepared(config, options), num_envs=ENVS, episode_steps=DECISIONS)
    with registry.make(config) as env, tempfile.TemporaryDirectory() as folder:
        assignments = TrainingAssignments(0, env.spec)
        ids, rounds = np.arange(ENVS), np.zeros(ENVS, dtype=np.int64)
        plan = RecorderPlan(options, Path(folder), {})
        recorder = RolloutRecorder(plan, env, ids, ENVS, rank=0, world=1, chunk=1)
        generator = torch.Generator().manual_seed(0)
        spent: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * turns + 2):
            filming = turn % 2 == 1
            observation = env.reset(assignments.at(ids, rounds))
            began = time.process_time()
            for _ in range(DECISIONS):
                actions = 2 * torch.rand(ENVS, 1, env.spec.action.dim, generator=generator) - 1
                output = PolicyOutput(actions, actions, actions, torch.zeros(ENVS, 1))
                if filming:
                    recorder.before(slice(0, ENVS), observation, output)
                result = env.step(actions, next_assignments=assignments.at(ids, rounds + 1))
                if filming:
                    recorder.after(slice(0, ENVS), result, rounds)
                observation = result.observation
                rounds += (result.ended | result.failed).numpy()
            if turn >= 2:  # the first of each is for warming up
                spent[filming].append(time.process_time() - began)
        recorder.close()
        return spent


def main() -> None:
    """Measure all cases; print a table, and write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=8, help="turns of each kind (default 8)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the cases whose description has these words")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| what is filmed | CPU ms a decision of 16, without | with | more | in turns (10th to 90th percentile) |",
        "|---|---|---|---|---|",
    ]
    for name, (config, options) in CASES.items():
        if args.only not in name:
            continue
        without, filmed = measure(config, options, args.turns)
        ratios = [b / a - 1 for a, b in zip(without, filmed, strict=True)]
        low, *_, high = statistics.quantiles(ratios, n=10)
        off, on = (1000 * statistics.median(times) / DECISIONS for times in (without, filmed))
        lines.append(f"| {name} | {off:.1f} | {on:.1f} | {on / off - 1:+.1%} | {low:+.1%} to {high:+.1%} |")
        print(lines[-1], flush=True)
    table = "\n".join(lines)
    if args.write:
        RESULTS.write_text(
            f"# What films cost the loop that is filmed\n\n{dt.date.today()}, {os.cpu_count()} cores, "
            f"`python benchmarks/recording.py --turns {args.turns}`\n\n{table}\n\n"
            "CPU time of the process that steps the simulators and hands pictures over, medians of turns of "
            f"{DECISIONS} decisions in alternation, without a policy and without learning, which would make the share "
            "smaller. Drawing and encoding are done by another process at the lowest priority.\n"
        )
    else:
        print(table)


if __name__ == "__main__":
    main()
