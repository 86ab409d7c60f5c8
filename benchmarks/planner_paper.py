"""What the planner predicts for the RLinf paper's settings beside what the paper measured.

    python benchmarks/planner_paper.py [--output benchmarks/results/planner_paper.md]

A ratio is how many times longer a style takes than the style that was measured fastest. Profiles and their assumptions:
configs/profiles/paper/.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from embodied.commands.plan import shipped_profiles
from embodied.scheduler.planner.choose import Choice, compare
from embodied.scheduler.planner.profile import load_profile
from embodied.scheduler.planner.search import Style

SHARED, SPLIT, MIXED = Style.SHARED, Style.SPLIT, Style.MIXED

# throughputs as measured, by style (paper's temporal, spatial, hybrid), in the paper's unit; empty: none published
MEASURED = [
    ("maniskill_openvla", 8, {MIXED: 30.9, SHARED: 18.6, SPLIT: 16.5}),
    ("maniskill_openvla", 16, {MIXED: 44.1, SHARED: 29.0, SPLIT: 26.1}),
    ("maniskill_openvla", 32, {MIXED: 49.4, SHARED: 29.2, SPLIT: 30.7}),
    ("libero_openvla_oft", 8, {SHARED: 37.8, MIXED: 29.1}),
    ("libero_openvla_oft", 16, {SHARED: 74.1, MIXED: 54.7}),
    ("libero_openvla_oft", 32, {SHARED: 136.5, MIXED: 102.3}),
    ("grpo_qwen2_5_7b", 64, {SHARED: 118.0}),
    ("grpo_qwen2_5_7b", 128, {SHARED: 196.0}),
    ("grpo_qwen2_5_7b", 256, {SHARED: 304.0}),
    ("grpo_qwen3_30b_a3b", 32, {SPLIT: 18.4, SHARED: 14.2}),
    ("grpo_qwen3_30b_a3b", 64, {SPLIT: 27.3, SHARED: 25.5}),
    ("grpo_qwen3_30b_a3b", 128, {SHARED: 36.7, SPLIT: 34.0}),
    *((f"ppo_qwen2_5_{size}", n, {SPLIT: 1.0}) for size in ("1_5b", "7b", "14b") for n in (16, 32, 64)),
]
# what the paper says of a style in words only
WORDS = {("grpo_qwen2_5_7b", SPLIT): "1.8-3.2 (loses 44-69 %)"}


def row(name: str, devices: int, measured: dict[Style, float]) -> str:
    """One line of the table."""
    profile = load_profile(shipped_profiles()[f"paper/{name}"])
    comparison = compare(dataclasses.replace(profile, cluster=profile.cluster.resized(devices, None)))
    predicted = {s: c.seconds for s, c in comparison.styles.items() if isinstance(c, Choice)}
    fastest = max(measured, key=measured.get)
    cells = [name, str(devices), fastest.value, min(predicted, key=predicted.get).value, f"{predicted[fastest]:.0f} s"]
    for style in (SHARED, SPLIT, MIXED):
        ours = f"{predicted[style] / predicted[fastest]:.2f}" if style in predicted else "-"
        theirs = f"{measured[fastest] / measured[style]:.2f}" if style in measured else WORDS.get((name, style), "-")
        cells.append("1" if style is fastest else f"{ours} / {theirs}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print, and write if asked, the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    lines = [
        "| profile | GPUs | fastest measured | fastest predicted | its time, predicted "
        "| shared: predicted / measured | split | mixed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for setting in MEASURED:
        lines.append(row(*setting))
        print(lines[-1], flush=True)
    if args.output:
        args.output.write_text(
            "# The planner beside the paper\n\n" + (__doc__ or "").strip() + "\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
