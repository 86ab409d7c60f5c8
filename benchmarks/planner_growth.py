"""How the planner's search grows with devices and stages, on one core, and its time on the paper's flows.

Chains of 3, 5 and 8 stages with drawn costs (fixed parts, work for 8192 items, communication, replicas of 1 to 4
devices; the last stage needs all items) on 8 to 4096 devices: with memory that never binds, and with states of 5 to
60 GiB of which the devices (80 GB) cannot keep all. CPU seconds of one process: of each of three drawn chains the least
of three searches, for other programs on the machine only add to it, and of those the median.

    python benchmarks/planner_growth.py [--output benchmarks/results/planner_growth.md]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import itertools
import platform
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from embodied.commands.plan import shipped_profiles
from embodied.scheduler.planner.problem import Problem
from embodied.scheduler.planner.profile import (
    Cluster,
    EdgeProfile,
    FlowProfile,
    MemoryModel,
    NodeGroup,
    StageCost,
    StageProfile,
    SwitchModel,
    TimeModel,
    load_profile,
)
from embodied.scheduler.planner.search import search

GIB = 2.0**30
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STAGES = (3, 5, 8)
PAPER = {
    "maniskill_openvla": (8, 32, 1024),
    "libero_openvla_oft": (8, 32, 1024),
    "grpo_qwen2_5_7b": (64, 256, 1024),
    "grpo_qwen3_30b_a3b": (32, 128, 1024),
    "ppo_qwen2_5_7b": (16, 64, 1024),
}


def chain(stages: int, devices: int, seed: int, *, memory: bool) -> FlowProfile:
    """A chain of `stages` stages whose costs are drawn from `seed`."""
    draw = random.Random(seed)
    names = [f"s{i}" for i in range(stages)]
    found = {}
    for index, name in enumerate(names):
        last = index == stages - 1
        time_model = TimeModel(
            fixed=draw.uniform(0, 2), per_item=draw.uniform(0.01, 1), per_doubling=draw.uniform(0, 0.3)
        )
        room = MemoryModel(
            state_bytes=draw.uniform(5, 60) * GIB,
            state="sharded" if last else "replicated",
            working_bytes=2 * GIB,
            item_bytes=0.5 * GIB,
            live_items=4,
        )
        cost = StageCost(
            time=time_model,
            memory=room if memory else MemoryModel(),
            switch=SwitchModel(bytes_per_second=20 * GIB) if memory else None,
            devices_per_replica=draw.choice([1, 1, 2, 4]),
        )
        found[name] = StageProfile(items=8192, max_pieces=1 if last else 64, on={"accelerator": cost})
    edges = tuple(EdgeProfile(source=a, target=b, seconds_per_item=1e-4) for a, b in itertools.pairwise(names))
    group = NodeGroup(nodes=devices // 8, accelerators_per_node=8, accelerator_memory_bytes=80e9)
    return FlowProfile(flow="chain", stages=found, edges=edges, cluster=Cluster(groups={"gpus": group}))


def seconds(profile: FlowProfile) -> float:
    """CPU seconds of one search, from the profile to the schedule."""
    start = time.process_time()
    search(Problem(profile))
    return time.process_time() - start


def least(profile: FlowProfile) -> float:
    """Of three searches."""
    return min(seconds(profile) for _ in range(3))


def grown(stages: int, devices: int, *, memory: bool) -> float:
    """Median CPU seconds over three chains."""
    return statistics.median(least(chain(stages, devices, seed, memory=memory)) for seed in range(3))


def draw(results: dict[tuple[int, bool], list[float]], path: Path) -> None:
    """The growth as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for (stages, memory), times in results.items():
        style = "--" if memory else "-"
        label = f"{stages} stages, memory {'binds' if memory else 'ample'}"
        axis.plot(DEVICES[: len(times)], times, style, color=f"C{STAGES.index(stages)}", marker=".", label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("devices")
    axis.set_ylabel("CPU seconds of the search, one core")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Print the tables; write them, and the picture beside them, if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    seconds(chain(3, 8, 0, memory=True))  # imports and first calls are not the search's
    results = {}
    lines = ["| stages | memory | " + " | ".join(map(str, DEVICES)) + " |", "|---" * (len(DEVICES) + 2) + "|"]
    for memory in (False, True):
        for stages in STAGES:
            results[stages, memory] = [grown(stages, devices, memory=memory) for devices in DEVICES]
            cells = " | ".join(f"{t:.3f}" for t in results[stages, memory])
            lines.append(f"| {stages} | {'binds' if memory else 'ample'} | {cells} |")
            print(lines[-1], flush=True)
    lines += ["", "| profile | accelerators | CPU seconds |", "|---|---|---|"]
    for name, sizes in PAPER.items():
        profile = load_profile(shipped_profiles()[f"paper/{name}"])
        for devices in sizes:
            sized = dataclasses.replace(profile, cluster=profile.cluster.resized(devices, None))
            lines.append(f"| {name} | {devices} | {least(sized):.3f} |")
            print(lines[-1], flush=True)
    if args.output:
        text = (__doc__ or "").replace("    python", f"{dt.date.today()}, {platform.machine()}. Command:\n\n    python")
        picture = args.output.with_suffix(".svg")
        head = ["# Growth of the planner's search", "", text.strip(), "", f"![growth]({picture.name})", ""]
        args.output.write_text("\n".join([*head, *lines]) + "\n")
        draw(results, picture)


if __name__ == "__main__":
    main()
