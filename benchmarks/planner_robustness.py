"""What a wrong profile costs: plans made from noisy profiles, simulated with the true one.

Every time of every stage is multiplied by its own factor from 1 - noise to 1 + noise, as are transfers, weights and
switching; the plan found with that is simulated with the profile as it is and compared with the plan found without.
The planner knows how uncertain its profile is and hedges; the last columns are plans that take it at its word.

    python benchmarks/planner_robustness.py [--noise 0.3] [--draws 20] [--only paper/ppo_qwen2_5_7b] [--output FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from embodied.commands.plan import shipped_profiles
from embodied.scheduler.planner.choose import Choice, choose, hedge
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import FlowProfile, load_profile
from embodied.scheduler.planner.simulation import simulate

SIZES = {
    "paper/maniskill_openvla": (8, 16, 32),
    "paper/libero_openvla_oft": (8, 16, 32),
    "paper/grpo_qwen2_5_7b": (64, 128, 256),
    "paper/grpo_qwen3_30b_a3b": (32, 64, 128),
    "paper/ppo_qwen2_5_1_5b": (16, 32, 64),
    "paper/ppo_qwen2_5_7b": (16, 32, 64),
    "paper/ppo_qwen2_5_14b": (16, 32, 64),
}


def noisy(profile: FlowProfile, source: random.Random, noise: float) -> FlowProfile:
    """A profile whose times are off by factors drawn from 1 - noise to 1 + noise; memory as it is."""

    def off(record, *names):
        factor = source.uniform(1 - noise, 1 + noise)
        return dataclasses.replace(record, **{name: getattr(record, name) * factor for name in names})

    stages = {}
    for name, stage in profile.stages.items():
        on = {}
        for kind, cost in stage.on.items():
            time = off(cost.time, "fixed", "per_item", "per_item_squared", "per_doubling")
            switch = off(cost.switch, "fixed_seconds", "bytes_per_second") if cost.switch else None
            # what a fit to measurements this noisy would state: the deviation of a factor spread evenly over the range
            time = dataclasses.replace(time, error=noise / 3**0.5)
            on[kind] = dataclasses.replace(cost, time=time, switch=switch)
        stages[name] = dataclasses.replace(stage, on=on)
    edges = tuple(off(edge, "latency_seconds", "seconds_per_item") for edge in profile.edges)
    weights = tuple(off(weight, "seconds") for weight in profile.weights)
    return dataclasses.replace(profile, stages=stages, edges=edges, weights=weights)


def losses(name: str, devices: int, noise: float, draws: int, plan: Callable[[Problem], Choice] = hedge) -> list[float]:
    """Throughput lost by each of `draws` plans, as a fraction of that of the plan without noise."""
    profile = load_profile(shipped_profiles()[name])
    profile = dataclasses.replace(profile, cluster=profile.cluster.resized(devices, None))
    truth = Problem(profile)
    best = choose(truth).seconds
    found = []
    for seed in range(draws):
        guess = plan(Problem(noisy(profile, random.Random(f"{name} {devices} {seed}"), noise)))
        found.append(1.0 - best / simulate(truth, guess.schedule).seconds)
    return found


def main() -> None:
    """Print, and write if asked, a table of the throughput lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", choices=SIZES, action="append", help="these profiles; may be given several times")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    lines = [
        f"| profile | accelerators | mean loss | worst of {args.draws} | without hedging: mean | worst |",
        "|---|---|---|---|---|---|",
    ]
    means = []
    for name in args.only or SIZES:
        for devices in SIZES[name]:
            cells = [name.removeprefix("paper/"), str(devices)]
            for plan in (hedge, choose):
                lost = losses(name, devices, args.noise, args.draws, plan)
                cells += [f"{statistics.mean(lost):.1%}", f"{max(lost):.1%}"]
                means += [statistics.mean(lost)] if plan is hedge else []
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    lines += [
        "",
        f"The largest mean loss is {max(means):.1%}, the mean over all settings {statistics.mean(means):.1%}.",
    ]
    print(lines[-1])
    if args.output:
        command = f"    python benchmarks/planner_robustness.py --noise {args.noise} --draws {args.draws}"
        head = ["# What a wrong profile costs", "", f"{dt.date.today()}. Command:", "", command, ""]
        head += [f"Every time of every stage is off by its own factor from {1 - args.noise:g} to {1 + args.noise:g}. "]
        head[-1] += "Throughput lost against the plan found without noise."
        args.output.write_text("\n".join([*head, "", *lines]) + "\n")


if __name__ == "__main__":
    main()
