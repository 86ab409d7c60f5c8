"""How often the scripted experts succeed, undisturbed and with the disturbances that demonstrations are recorded with.

    OMP_NUM_THREADS=1 python benchmarks/scripted_experts.py [--only maniskill] [--write]

Every attempt has a world of its own; noise is `embodied demos --noise`: a standard deviation on translations, in half
action ranges (ManiSkill: 0.2 is 2 cm a step; LIBERO: 1 cm). Success is the simulator's, at any step of an episode of
the task's own length.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from embodied.interaction.experts import expert_config, expert_kind, make_expert_env, plain_spec, split_advice
from embodied.runs.metrics import wilson_interval
from envs.api import Assignments, VectorEnv

RESULTS = Path(__file__).with_name("results") / "scripted_experts.md"
NOISE = (0.0, 0.1, 0.2)
MANISKILL = ("PushCube-v1", "PullCube-v1", "PickCube-v1", "StackCube-v1", "PutOnPlate-v1")
LIBERO = ("libero_object", "libero_spatial", "libero_goal")


def play(env: VectorEnv, task: int, seeds: range, noise: float) -> tuple[int, int]:
    """Successes and attempts in the worlds of `seeds`, as many as there are environments; none where the expert does
    not know the task."""
    count = len(seeds)
    spec = plain_spec(env.spec)
    low, high = torch.tensor(spec.action.low), torch.tensor(spec.action.high)
    spread = torch.zeros(spec.action.dim)
    disturbed = list(expert_kind(spec.id).disturbed)
    spread[disturbed] = noise * ((high - low) / 2)[disturbed]
    generator = torch.Generator().manual_seed(seeds.start)
    assignments = Assignments(torch.full((count,), task), torch.full((count,), -1), torch.tensor(list(seeds)))
    observation = env.reset(assignments)
    if not bool(split_advice(observation, spec)[2].all()):
        return 0, 0
    succeeded, over = torch.zeros(2, count, dtype=torch.bool)
    while not bool(over.all()):
        advice = split_advice(observation, spec)[1]
        actions = (advice + spread * torch.randn(advice.shape, generator=generator)).clamp(low, high)
        result = env.step(actions[:, None])
        observation = result.observation
        succeeded |= result.success[:, 0].cpu() & ~over
        over |= result.ended.cpu() | result.failed.cpu()
    return int(succeeded.sum()), count


def measured(env_id: str, options: dict, tasks: int, attempts: int, at_once: int) -> list[str]:
    """One cell for each noise: successes over all tasks with an expert, and the share's 95 % interval."""
    cells = []
    config = expert_config({"id": env_id, "num_envs": at_once, "processes": 0, **options})
    with make_expert_env(config) as env:
        for noise in NOISE:
            won = made = 0
            for task in range(tasks):
                for first in range(0, attempts, at_once):
                    successes, played = play(env, task, range(first, first + at_once), noise)
                    won, made = won + successes, made + played
            low, high = wilson_interval(won, made)
            cells.append(f"{won}/{made}, {won / made:.0%} ({low:.0%} to {high:.0%})")
    return cells


def main() -> None:
    """Measure all of them, or those of one simulator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="environments whose id has this in it")
    parser.add_argument("--worlds", type=int, default=4, help="of each LIBERO task (default 4)")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases: list[tuple[str, dict, int, int, int]] = []
    for task in MANISKILL:
        cases.append((f"maniskill/{task}", {}, 1, 64, 64))
    for task in ("PushCube-v1", "PullCube-v1", "PickCube-v1", "PutOnPlate-v1"):
        cases.append((f"maniskill/{task}", {"control_mode": "pd_ee_delta_pos"}, 1, 64, 64))
    for suite in LIBERO:
        cases.append((f"libero/{suite}", {"cameras": (), "mode": "fast"}, 10, args.worlds, args.worlds))
    lines = [f"| environment | {' | '.join(f'noise {noise:g}' for noise in NOISE)} |", "|---" * (len(NOISE) + 1) + "|"]
    for env_id, options, tasks, attempts, at_once in cases:
        name = env_id + (f", {options['control_mode']}" if "control_mode" in options else "")
        if args.only in name:
            lines.append(f"| {name} | {' | '.join(measured(env_id, options, tasks, attempts, at_once))} |")
            print(lines[-1], flush=True)
    if args.write:
        head = [
            "# Success of the scripted experts",
            "",
            f"{dt.date.today()}, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}. "
            f"Seeds from 0; LIBERO in `fast` mode, {args.worlds} worlds of each task that has an expert.",
            "",
            "    OMP_NUM_THREADS=1 python benchmarks/scripted_experts.py --write",
            "",
        ]
        RESULTS.write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
